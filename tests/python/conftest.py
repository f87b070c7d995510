"""Engines with the real clock, for what runs on threads and waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dever_sql.engine import Engine
from dever_sql.postgres import PostgresEngine
from dever_sql.sqlite import SQLiteEngine


@pytest.fixture(params=["sqlite", "postgresql"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Each engine in turn, installed, empty, with the clock of the machine."""
    engine: Engine
    if request.param == "postgresql":
        engine = PostgresEngine(request.getfixturevalue("pg_url"))
    else:
        engine = SQLiteEngine(tmp_path / "live.db", synchronous="normal")
        engine.install()
    yield engine
    engine.close()
