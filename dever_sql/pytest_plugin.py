"""The pytest plugin: the fixtures `dever` and `dever_jobs`. Loads nothing before a test asks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .declare import Job
    from .testing import Kit


@pytest.fixture
def dever_jobs() -> Callable[[], Iterable[Job[Any]]]:
    """Tells the jobs of the program under test: all that are declared. Override it to narrow."""
    from .declare import all_jobs

    return all_jobs


@pytest.fixture
def dever(dever_jobs: Callable[[], Iterable[Job[Any]]]) -> Generator[Kit]:
    """Databases of this test alone, a clock it moves, and jobs that run when it says so (R8.6)."""
    from .testing import kit

    with kit(dever_jobs) as made:
        yield made
