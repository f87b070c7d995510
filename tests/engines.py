"""One installed engine of each kind for a test, its clock, and a way into its raw tables."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg

from dever_sql.engine import Engine

START = datetime(2027, 3, 1, 12, 0, 0, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """The engine's clock, standing still until a test moves it."""

    @property
    def now(self) -> datetime: ...
    def set(self, instant: datetime) -> None: ...
    def advance(self, duration: timedelta | float) -> datetime:
        """Moves by a duration or by that many seconds; returns the new instant."""
        ...


class PostgresClock:
    """Replaces `dever.clock()` in the test's own database by one that reads a row."""

    DEFINITION = """
        create schema dever_test;
        create table dever_test.clock (now timestamptz);
        insert into dever_test.clock (now) values (null);
        grant usage on schema dever_test to public;
        grant select on dever_test.clock to public;
        create or replace function dever.clock()
        returns timestamptz
        language sql
        stable
        parallel safe
        set search_path = pg_catalog, pg_temp
        as $$
            select coalesce(c.now, pg_catalog.clock_timestamp()) from dever_test.clock as c
        $$;
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.now = START

    def set(self, instant: datetime) -> None:
        self._connection.execute("update dever_test.clock set now = %s", [instant])
        self.now = instant

    def advance(self, duration: timedelta | float) -> datetime:
        self.set(self.now + _duration(duration))
        return self.now


class SqliteClock:
    """The function that the SQLite engine of a test calls for the time."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def set(self, instant: datetime) -> None:
        self.now = instant

    def advance(self, duration: timedelta | float) -> datetime:
        self.set(self.now + _duration(duration))
        return self.now


class Raw(Protocol):
    """The tables behind the engine, to make states that take too long to reach, and to look."""

    def change_job(self, id: int, **columns: Any) -> None:
        """Overwrite columns of a live job's stored row."""
        ...

    def count(self, table: str) -> int:
        """Rows of `job` or `finished`."""
        ...


class PostgresRaw:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def change_job(self, id: int, **columns: Any) -> None:
        assignments = ", ".join(f"{name} = %({name})s" for name in columns)
        done = self.connection.execute(
            f"update dever.job set {assignments} where id = %(id)s", {**columns, "id": id}
        )
        assert done.rowcount == 1

    def count(self, table: str) -> int:
        row = self.connection.execute(f"select count(*) from dever.{table}").fetchone()
        assert row is not None
        return int(row[0])


class SqliteRaw:
    def __init__(self, path: Path) -> None:
        self.path = path

    def change_job(self, id: int, **columns: Any) -> None:
        assignments = ", ".join(f"{name} = :{name}" for name in columns)
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            done = connection.execute(
                f"update dever_job set {assignments} where id = :id", {**columns, "id": id}
            )
            assert done.rowcount == 1
        finally:
            connection.close()

    def count(self, table: str) -> int:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return int(connection.execute(f"select count(*) from dever_{table}").fetchone()[0])
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Installed:
    """What the fixtures `engine`, `clock` and `raw` hand out."""

    engine: Engine
    clock: Clock
    raw: Raw
    url: str


def _duration(value: timedelta | float) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)
