"""One installed engine of each kind for a test, its clock, and a way into its raw tables."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    """Replaces the view `dever_clock` in the test's own database by one that reads a row."""

    DEFINITION = (
        "drop view dever_clock",
        "create table dever_test_clock (now integer)",
        "insert into dever_test_clock (now) values (0)",
        "create view dever_clock (now) as select now from dever_test_clock",
    )

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        for statement in self.DEFINITION:
            connection.execute(statement)
        self.set(START)

    def set(self, instant: datetime) -> None:
        self._connection.execute("update dever_test_clock set now = ?", [microseconds(instant)])
        self.now = instant

    def advance(self, duration: timedelta | float) -> datetime:
        self.set(self.now + _duration(duration))
        return self.now


def microseconds(instant: datetime) -> int:
    """How SQLite stores an instant."""
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND


class Raw(Protocol):
    """The tables behind the engine, to make states that take too long to reach, and to look."""

    def change_job(self, id: int, **columns: Any) -> None:
        """Overwrite columns of a live job's stored row."""
        ...

    def count(self, table: str) -> int:
        """Rows of `job` or `finished`."""
        ...

    def execute(self, text: str) -> None:
        """Run a statement in which `{schedule}` stands for the table of that name."""
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

    def execute(self, text: str) -> None:
        self.connection.execute(text.format_map(_Tables("dever.")))


class SqliteRaw:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def change_job(self, id: int, **columns: Any) -> None:
        assignments = ", ".join(f"{name} = :{name}" for name in columns)
        values = {
            name: microseconds(value) if isinstance(value, datetime) else value
            for name, value in columns.items()
        }
        done = self.connection.execute(
            f"update dever_job set {assignments} where id = :id", {**values, "id": id}
        )
        assert done.rowcount == 1

    def count(self, table: str) -> int:
        row = self.connection.execute(f"select count(*) from dever_{table}").fetchone()
        return int(row[0])

    def execute(self, text: str) -> None:
        self.connection.execute(text.format_map(_Tables("dever_")))


class _Tables(dict[str, str]):
    """Full names of tables by their short ones."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, table: str) -> str:
        return self._prefix + table


@dataclass(frozen=True, slots=True)
class Installed:
    """What the fixtures `engine`, `clock` and `raw` hand out."""

    engine: Engine
    clock: Clock
    raw: Raw
    url: str


def _duration(value: timedelta | float) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)
