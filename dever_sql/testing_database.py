"""The databases that a test runs on: made from nothing, with a clock that stands still.

Production has no switch for the time; a test replaces what tells it, in its own database.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sqlite3
import tempfile
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from .engine import Engine
from .errors import InvalidArgument
from .sqlite import SQLiteEngine

if TYPE_CHECKING:
    import psycopg

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SQLITE_CLOCK: Final = (
    "drop view dever_clock",
    "create table dever_testing_clock (now integer not null)",
    "insert into dever_testing_clock (now) values (0)",
    "create view dever_clock (now) as select now from dever_testing_clock",
)

_POSTGRES_CLOCK: Final = """
    create schema dever_testing;
    create table dever_testing.clock (now timestamptz not null);
    insert into dever_testing.clock (now) values ('epoch');
    grant usage on schema dever_testing to public;
    grant select on dever_testing.clock to public;
    create or replace function dever.clock()
    returns timestamptz
    language sql
    stable
    parallel safe
    set search_path = pg_catalog, pg_temp
    as $$
        select c.now from dever_testing.clock as c
    $$;
"""

# Identities go on: what a session remembers about an id never meets another row.
_POSTGRES_ROWS: Final = (
    "truncate dever.job, dever.finished, dever.schedule, dever.lock, dever.worker_policy,"
    " dever.worker, dever.policy, dever.contract, dever.queue"
)
_POSTGRES_SWEEP: Final = (
    "update dever.sweep_cursor set queue_id = 0, run_at = '-infinity', job_id = 0"
)
_POSTGRES_LOCK: Final = "select pg_advisory_lock(hashtext('dever_testing'))"


class TestedDatabase(Protocol):
    """One logical database of a test."""

    __test__ = False  # what pytest asks before it takes a class for tests

    @property
    def engine(self) -> Engine: ...
    def set_clock(self, instant: datetime) -> None: ...
    def close(self) -> None:
        """End its use. Its engine is closed by whoever asked for it."""
        ...


class TestedSqlite:
    """A new file: a copy of one that is installed once per process."""

    __test__ = False

    def __init__(self, path: Path) -> None:
        shutil.copyfile(_template(), path)
        self._clock = sqlite3.connect(
            path, timeout=10, isolation_level=None, check_same_thread=False
        )
        self._clock.execute("pragma synchronous = off")
        # Copies are different databases, and a job must not get into the wrong one (R3.5).
        self._clock.execute("update dever_installation set id = ?", [str(uuid.uuid4())])
        self.engine: Engine = SQLiteEngine(path, synchronous="off")

    def set_clock(self, instant: datetime) -> None:
        microseconds = (instant - _EPOCH) // _MICROSECOND
        self._clock.execute("update dever_testing_clock set now = ?", [microseconds])

    def close(self) -> None:
        self._clock.close()


class TestedPostgres:
    """A database that the caller named for tests: emptied, and used by one test at a time.

    Raises InvalidArgument for a database that holds jobs and was never used for tests.
    """

    __test__ = False

    def __init__(self, url: str) -> None:
        import psycopg

        from .postgres import PostgresEngine

        self.engine: Engine = PostgresEngine(url)
        self.engine.install()
        self._clock: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        try:
            self._clock.execute(_POSTGRES_LOCK)  # other tests wait here until this one is over
            self._prepare()
        except BaseException:
            self.close()
            self.engine.close()
            raise

    def _prepare(self) -> None:
        rows = self._clock.execute(
            "select to_regclass('dever_testing.clock') is not null,"
            " exists (select from dever.job) or exists (select from dever.finished)"
        ).fetchall()
        is_for_tests, has_jobs = rows[0]
        if has_jobs and not is_for_tests:
            raise InvalidArgument(
                "the database named for tests holds jobs", hint="name one that is empty"
            )
        if not is_for_tests:
            self._clock.execute(_POSTGRES_CLOCK)
        self._clock.execute(_POSTGRES_ROWS)
        self._clock.execute(_POSTGRES_SWEEP)

    def set_clock(self, instant: datetime) -> None:
        self._clock.execute("update dever_testing.clock set now = %s", [instant])

    def close(self) -> None:
        self._clock.close()


@functools.cache
def _template() -> Path:
    """Installed once per process: an install takes longer than most tests."""
    directory = tempfile.mkdtemp(prefix="dever-template-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "template.db"
    engine = SQLiteEngine(path, synchronous="normal")
    engine.install()
    engine.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in _SQLITE_CLOCK:
            connection.execute(statement)
    return path
