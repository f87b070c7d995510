"""The pytest plugin: the fixtures `dever` and `dever_jobs`. Loads nothing before a test asks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .declare import Job
    from .testing import Kit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("dever").addoption(
        "--dever-database",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="run tests that use the fixture dever on this PostgreSQL database, which must be for"
        " tests alone: everything in it is removed (default: new SQLite files)",
    )


@pytest.fixture
def dever_jobs() -> Callable[[], Iterable[Job[Any]]]:
    """Tells the jobs of the program under test: all that are declared. Override it to narrow."""
    from .declare import all_jobs

    return all_jobs


@pytest.fixture
def dever(
    dever_jobs: Callable[[], Iterable[Job[Any]]], pytestconfig: pytest.Config
) -> Generator[Kit]:
    """Databases of this test alone, a clock it moves, and jobs that run when it says so (R8.6)."""
    from .testing import kit

    named: list[str] = pytestconfig.getoption("--dever-database") or []
    with kit(dever_jobs, dict(_name_and_url(each) for each in named)) as made:
        yield made


def _name_and_url(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if separator and "/" not in name:
        return name, url
    return "default", text
