"""Closes every engine that a test opens: an open connection is an error at the end (3.13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dever_sql.sqlite import SQLiteEngine


@pytest.fixture(autouse=True)
def close_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[SQLiteEngine] = []
    original = SQLiteEngine.__init__

    def remembering(self: SQLiteEngine, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        opened.append(self)

    monkeypatch.setattr(SQLiteEngine, "__init__", remembering)
    yield
    for engine in opened:
        engine.close()
