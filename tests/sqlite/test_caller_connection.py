"""Enqueuing on the caller's own sqlite3 connection: it joins their transaction (R3.4)."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from samples import RECEIPT, RECEIPT_SCHEMA, TARGET, declaration, fingerprint, register, running

from dever_sql import sqlite_file
from dever_sql.engine import Enqueued
from dever_sql.errors import (
    CrossDatabaseError,
    DatabaseUnavailable,
    InvalidArgument,
    InvalidKey,
    InvalidPayload,
    UnknownJob,
)
from dever_sql.sqlite import SQLiteEngine

Connect = Callable[..., sqlite3.Connection]
FINGERPRINT = fingerprint(RECEIPT_SCHEMA)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SQLiteEngine]:
    engine = SQLiteEngine(tmp_path / "jobs.db", synchronous="normal")
    engine.install()
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    yield engine
    engine.close()


@pytest.fixture
def connect(engine: SQLiteEngine) -> Iterator[Connect]:
    """Opens connections of a caller, with a table of theirs."""
    opened: list[sqlite3.Connection] = []

    def connect(path: Path | str = engine.path, **options: object) -> sqlite3.Connection:
        connection = sqlite3.connect(path, **{"timeout": 5, **options})  # pyright: ignore
        opened.append(connection)
        return connection

    with connect(isolation_level=None) as first:
        first.execute("create table mine (n integer)")
    yield connect
    for connection in opened:
        connection.close()


def enqueue(engine: SQLiteEngine, connection: sqlite3.Connection, *keys: str) -> list[Enqueued]:
    return engine.enqueue_as(
        TARGET, FINGERPRINT, keys, [RECEIPT] * len(keys), connection=connection
    )


@pytest.mark.req("R3.4")
def test_legacy_connection_commits_rows_and_job_together(
    engine: SQLiteEngine, connect: Connect
) -> None:
    connection = connect()
    assert enqueue(engine, connection, "k") == [Enqueued(1, True)]
    assert connection.in_transaction
    assert engine.get_job(1) is None
    connection.execute("insert into mine values (1)")
    connection.commit()
    assert engine.get_job(1) is not None


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("begin", ["begin", "begin immediate", "savepoint s"])
def test_explicit_transaction_is_joined(engine: SQLiteEngine, connect: Connect, begin: str) -> None:
    connection = connect(isolation_level=None)
    connection.execute(begin)
    connection.execute("insert into mine values (1)")
    enqueue(engine, connection, "k", "l")
    assert connection.in_transaction
    connection.execute("rollback")
    assert engine.jobs() == []
    assert connection.execute("select count(*) from mine").fetchone() == (0,)


@pytest.mark.req("R3.4", "R3.2")
def test_savepoint_that_is_rolled_back_frees_the_key(
    engine: SQLiteEngine, connect: Connect
) -> None:
    """C20."""
    connection = connect(isolation_level=None)
    connection.execute("begin")
    connection.execute("savepoint s")
    assert enqueue(engine, connection, "k")[0].created
    assert not enqueue(engine, connection, "k")[0].created
    connection.execute("rollback to s")
    assert enqueue(engine, connection, "k")[0].created
    connection.execute("commit")
    assert [row.key for row in engine.jobs()] == ["k"]


@pytest.mark.req("R3.4")
def test_without_a_transaction_it_is_stored_at_once(engine: SQLiteEngine, connect: Connect) -> None:
    connection = connect(isolation_level=None)
    enqueue(engine, connection, "k", "k", "l")
    assert not connection.in_transaction
    assert sorted(str(row.key) for row in engine.jobs()) == ["k", "l"]


@pytest.mark.req("R3.4")
@pytest.mark.skipif(sys.version_info < (3, 12), reason="autocommit= came with Python 3.12")
def test_autocommit_off_is_joined_and_on_stores_at_once(
    engine: SQLiteEngine, connect: Connect
) -> None:
    connection = connect(autocommit=False)
    enqueue(engine, connection, "k")
    connection.rollback()
    assert engine.jobs() == []
    enqueue(engine, connection, "k")
    connection.commit()
    enqueue(engine, connect(autocommit=True), "l")
    assert sorted(str(row.key) for row in engine.jobs()) == ["k", "l"]


@pytest.mark.req("R3.4")
def test_factories_of_the_caller_are_neither_used_nor_changed(
    engine: SQLiteEngine, connect: Connect
) -> None:
    connection = connect()
    connection.row_factory = row_factory = sqlite3.Row
    connection.text_factory = text_factory = bytes
    assert enqueue(engine, connection, "k", "k") == [Enqueued(1, True), Enqueued(1, False)]
    assert connection.row_factory is row_factory
    assert connection.text_factory is text_factory


@pytest.mark.req("R2.2", "R3.6")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e, c: enqueue(e, c, " "), InvalidKey),
        (lambda e, c: enqueue(e, c, "a\0b"), InvalidKey),
        (lambda e, c: enqueue(e, c, "a\ud800"), InvalidKey),
        (lambda e, c: e.enqueue_as("nobody", "f", ["k"], connection=c), UnknownJob),
        (lambda e, c: e.send("q", "1e400", connection=c), InvalidPayload),
        (lambda e, c: e.outbox_enqueue("o", "{", connection=c), InvalidPayload),
    ],
)
def test_refusal_keeps_the_transaction_usable(
    engine: SQLiteEngine,
    connect: Connect,
    call: Callable[[SQLiteEngine, sqlite3.Connection], object],
    error: type[Exception],
) -> None:
    """C43."""
    connection = connect()
    connection.execute("insert into mine values (1)")
    with pytest.raises(error):
        call(engine, connection)
    connection.execute("insert into mine values (2)")
    connection.commit()
    assert connection.execute("select count(*) from mine").fetchone() == (2,)
    assert engine.jobs() == []


@pytest.mark.req("R3.5")
@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_connection_of_another_database_is_refused(
    engine: SQLiteEngine, connect: Connect, tmp_path: Path, installed: bool, begun: bool
) -> None:
    path = tmp_path / "other.db"
    if installed:
        other = SQLiteEngine(path)
        other.install()
        register(other, declaration(schema=RECEIPT_SCHEMA))
        other.close()
    connection = connect(path)
    if begun:
        connection.execute("begin")
    with pytest.raises(CrossDatabaseError):
        enqueue(engine, connection, "k")
    assert connection.in_transaction == begun
    connection.rollback()
    tables = connection.execute("select name from sqlite_master where name = 'dever_job'")
    if tables.fetchall():
        assert connection.execute("select count(*) from dever_job").fetchone() == (0,)


@pytest.mark.req("R3.4")
def test_own_write_transaction_without_connection_says_what_to_do(
    engine: SQLiteEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_PATIENCE", 0.2)
    connection = connect(isolation_level=None)
    connection.execute("begin immediate")
    with pytest.raises(DatabaseUnavailable, match="connection="):
        engine.enqueue(TARGET, "k", RECEIPT)
    connection.execute("rollback")
    assert engine.enqueue(TARGET, "k", RECEIPT).created


@pytest.mark.req("R3.2", "R3.4")
def test_deferred_transaction_waits_for_other_writers(
    engine: SQLiteEngine, connect: Connect
) -> None:
    """C70: one that has not read yet takes the write lock with its first statement, and waits."""
    writer = connect(isolation_level=None, check_same_thread=False)
    writer.execute("begin immediate")
    writer.execute("insert into mine values (1)")
    threading.Timer(0.3, lambda: writer.execute("commit")).start()
    connection = connect(isolation_level=None)
    connection.execute("begin")
    assert enqueue(engine, connection, "k")[0].created
    connection.execute("commit")


@pytest.mark.req("R3.2", "R3.4")
def test_deferred_transaction_that_was_overtaken_gets_busy(
    engine: SQLiteEngine, connect: Connect
) -> None:
    """C70: it has read, another one has written: SQLite's own error, to be tried again."""
    connection = connect(isolation_level=None)
    connection.execute("begin")
    connection.execute("select count(*) from mine").fetchone()
    connect(isolation_level=None).execute("insert into mine values (1)")
    with pytest.raises(sqlite3.OperationalError) as caught:
        enqueue(engine, connection, "k")
    assert caught.value.sqlite_errorname.startswith("SQLITE_BUSY")
    connection.execute("rollback")
    connection.execute("begin")
    assert enqueue(engine, connection, "k")[0].created
    connection.execute("commit")


@pytest.mark.req("R5.8")
@pytest.mark.parametrize("commit", [True, False])
def test_completion_in_the_callers_transaction(
    engine: SQLiteEngine, connect: Connect, commit: bool
) -> None:
    from dever_sql import connection as caller

    job = running(engine, target="other", key="k2")
    connection = connect()
    connection.execute("insert into mine values (1)")
    verdicts = caller.run(engine, connection, engine.complete_steps([job.id], [job.token]))
    assert [verdict.ok for verdict in verdicts] == [True]
    connection.commit() if commit else connection.rollback()
    row = engine.get_job(job.id)
    assert row is not None
    assert row.state == ("succeeded" if commit else "running")


@pytest.mark.req("R3.4")
@pytest.mark.skipif(
    sqlite3.sqlite_version_info >= (3, 41), reason="JSON may be called from 3.41 on"
)
def test_a_connection_that_trusts_no_schema_is_told_so(
    engine: SQLiteEngine, connect: Connect
) -> None:
    connection = connect()
    connection.execute("pragma trusted_schema = off")
    with pytest.raises(InvalidArgument, match="trust"):
        engine.enqueue_as(TARGET, FINGERPRINT, ["k"], [RECEIPT], connection=connection)


@pytest.mark.req("R3.5")
def test_a_copy_of_the_file_is_told_from_its_source(
    engine: SQLiteEngine, connect: Connect, tmp_path: Path
) -> None:
    copy = connect(tmp_path / "copy.db", isolation_level=None)
    connect().backup(copy)
    with pytest.raises(CrossDatabaseError):
        enqueue(engine, copy, "k")
    assert copy.execute("select count(*) from dever_job").fetchone() == (0,)


@pytest.mark.req("R3.5")
def test_a_link_to_the_file_leads_to_the_same_database(
    engine: SQLiteEngine, connect: Connect, tmp_path: Path
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(engine.path)
    enqueue(engine, connect(link, isolation_level=None), "k")
    assert [row.key for row in engine.jobs()] == ["k"]
