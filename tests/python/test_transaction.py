"""`transaction()`: blocks inside blocks, failures, cancellation, lost connections (R3.4, R3.5)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dever_sql import database
from dever_sql.database import transaction
from dever_sql.declare import Jobs
from dever_sql.engine import Engine
from dever_sql.errors import CrossDatabaseError, DatabaseUnavailable, DeverError, InvalidArgument
from dever_sql.postgres import PostgresEngine
from dever_sql.sqlite import SQLiteEngine

jobs = Jobs(database="default")


@jobs.job(retry=3, timeout=1_000, name="transaction.plain")
async def plain() -> None:
    pass


@pytest.fixture
def program(live: Engine) -> Iterator[Engine]:
    database.close_all()
    database.use_engine("default", live)
    with transaction() as tx:
        tx.execute("create table own (n integer)")
    yield live
    database.close_all()


def stored(program: Engine) -> tuple[list[int], list[str]]:
    """The rows and the keys of the jobs that are there."""
    with transaction() as tx:
        rows = [n for (n,) in tx.execute("select n from own order by n")]
    return rows, sorted(str(row.key) for row in program.jobs())


@pytest.mark.req("R3.4")
def test_a_block_inside_a_block_joins_it(program: Engine) -> None:
    with transaction() as outer:
        outer.execute("insert into own values (1)")
        with transaction() as inner, transaction() as innermost:
            assert inner.connection is outer.connection
            innermost.execute("insert into own values (2)")
            plain.enqueue(key="a")
        assert outer.execute("select count(*) from own") == [(2,)]
        plain.enqueue(key="b")
    assert stored(program) == ([1, 2], ["a", "b"])


@pytest.mark.req("R3.4")
def test_an_inner_failure_rolls_all_back_and_is_not_hidden(program: Engine) -> None:
    with suppress(ZeroDivisionError), transaction() as tx:
        tx.execute("insert into own values (1)")
        with transaction():
            plain.enqueue(key="a")
            raise ZeroDivisionError
    assert stored(program) == ([], [])

    def catches_it() -> None:
        with transaction() as tx:
            tx.execute("insert into own values (1)")
            with suppress(ZeroDivisionError), transaction(), transaction():
                raise ZeroDivisionError

    with pytest.raises(DeverError, match="a block inside this transaction failed"):
        catches_it()
    assert stored(program) == ([], [])


@pytest.mark.req("R3.4")
def test_async_blocks_join_too(program: Engine) -> None:
    async def scenario() -> None:
        async with transaction() as outer:
            await outer.execute("insert into own values (1)")
            async with transaction() as inner:
                assert inner.connection is outer.connection
                await plain.aenqueue(key="a")
            with pytest.raises(InvalidArgument, match="`async with`"), transaction():
                pass

    async def catches_it() -> None:
        async with transaction():
            with suppress(ZeroDivisionError):
                async with transaction() as inner:
                    await inner.execute("insert into own values (2)")
                    raise ZeroDivisionError

    asyncio.run(scenario())
    with pytest.raises(DeverError, match="a block inside"):
        asyncio.run(catches_it())
    assert stored(program) == ([1], ["a"])


@pytest.mark.req("R3.5")
def test_a_block_on_another_database_is_its_own(program: Engine, tmp_path: Path) -> None:
    other = SQLiteEngine(tmp_path / "other.db", synchronous="normal")
    other.install()
    database.use_engine("other", other)
    with transaction() as tx:
        tx.execute("insert into own values (1)")
        with transaction("other") as inner:
            inner.execute("create table own (n integer)")
            with pytest.raises(CrossDatabaseError):
                plain.enqueue(key="a")
            with transaction() as again:  # the outermost one
                assert again.connection is tx.connection
                plain.enqueue(key="b")
    assert stored(program) == ([1], ["b"])


@pytest.mark.req("R3.4")
def test_a_task_that_outlives_the_block_is_in_no_transaction(program: Engine) -> None:
    async def scenario() -> None:
        ended = asyncio.Event()

        async def later() -> None:
            await ended.wait()
            await plain.aenqueue(key="later")
            async with transaction() as tx:
                await tx.execute("insert into own values (3)")

        async with transaction():
            task = asyncio.create_task(later())
            await asyncio.sleep(0)
        ended.set()
        await task

    asyncio.run(scenario())
    assert stored(program) == ([3], ["later"])


@pytest.mark.req("R3.4")
def test_cancellation_rolls_back(program: Engine) -> None:
    async def scenario() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            async with transaction() as tx:
                await tx.execute("insert into own values (1)")
                await plain.aenqueue(key="a")
                begun.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert stored(program) == ([], [])


@pytest.mark.req("R3.4")
def test_cancellation_while_waiting_for_the_write_lock_leaves_it_free(program: Engine) -> None:
    if not isinstance(program, SQLiteEngine):
        pytest.skip("SQLite only")

    async def scenario() -> None:
        async def work() -> None:
            async with transaction():
                raise AssertionError("the lock was not free")

        with closing(sqlite3.connect(program.path, isolation_level=None)) as holder:
            holder.execute("begin immediate")
            task = asyncio.create_task(work())
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            holder.execute("rollback")
        await asyncio.sleep(0.3)  # the waiting thread gets the lock now, and gives it back

    asyncio.run(scenario())
    before = time.monotonic()
    assert stored(program) == ([], [])
    assert time.monotonic() - before < 5


def wrong(tx: Any) -> Any:
    return tx.execute("insert into nowhere values (1)")


@pytest.mark.req("R3.4")
def test_what_a_caught_error_has_undone_is_not_taken_for_stored(program: Engine) -> None:
    """PostgreSQL ends the transaction at the first error, and answers a commit with a rollback."""

    def block() -> None:
        with transaction() as tx:
            tx.execute("insert into own values (1)")
            plain.enqueue(key="a")
            with suppress(psycopg.Error, sqlite3.Error):
                wrong(tx)

    async def ablock() -> None:
        async with transaction() as tx:
            await tx.execute("insert into own values (1)")
            await plain.aenqueue(key="a")
            with suppress(psycopg.Error, sqlite3.Error):
                await wrong(tx)

    if program.kind == "sqlite":  # one failed statement ends nothing
        block()
        assert stored(program) == ([1], ["a"])
        return
    with pytest.raises(DeverError, match="a statement in this transaction failed"):
        block()
    with pytest.raises(DeverError, match="a statement in this transaction failed"):
        asyncio.run(ablock())
    assert stored(program) == ([], [])


@pytest.mark.req("R3.4", "R8.5")
def test_a_lost_connection_rolls_back_and_says_so(
    program: Engine, request: pytest.FixtureRequest
) -> None:
    if program.kind != "postgresql":
        pytest.skip("PostgreSQL only")

    def cut(pid: int) -> None:
        with psycopg.connect(request.getfixturevalue("pg_url"), autocommit=True) as other:
            other.execute("select pg_catalog.pg_terminate_backend(%s)", [pid])

    def block() -> None:
        with transaction() as tx:
            tx.execute("insert into own values (1)")
            plain.enqueue(key="a")
            cut(tx.connection.info.backend_pid)
            with suppress(psycopg.Error):
                tx.execute("select 1")

    async def ablock() -> None:
        async with transaction() as tx:
            await tx.execute("insert into own values (1)")
            cut(tx.connection.info.backend_pid)
            with suppress(psycopg.Error):
                await tx.execute("select 1")

    with pytest.raises(DatabaseUnavailable, match="connection was lost"):
        block()
    with pytest.raises(DatabaseUnavailable, match="connection was lost"):
        asyncio.run(ablock())
    assert stored(program) == ([], [])


@pytest.mark.req("R3.4")
def test_a_transaction_is_used_once_at_a_time(program: Engine) -> None:
    used = transaction("default")
    with used, pytest.raises(InvalidArgument, match="open already"), used:
        pass
    with pytest.raises(DeverError, match="not open"):
        used.execute("select 1")


@pytest.mark.req("R8.3")
def test_async_transactions_share_a_bounded_number_of_connections(
    program: Engine, request: pytest.FixtureRequest
) -> None:
    if program.kind != "postgresql":
        pytest.skip("PostgreSQL only")
    url = request.getfixturevalue("pg_url")
    engine = PostgresEngine(url, connections=6)
    database.use_engine("default", engine)
    pids: set[int] = set()

    async def one(key: int) -> None:
        async with transaction() as tx:
            pids.add(tx.connection.info.backend_pid)
            await tx.execute("insert into own values (%s)", [key])
            await plain.aenqueue(key=f"{key:02}")

    def cut() -> None:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(
                "select pg_catalog.pg_terminate_backend(pid, 5000)"
                " from pg_catalog.pg_stat_activity"
                " where application_name = 'dever' and pid <> pg_catalog.pg_backend_pid()"
            )

    async def many() -> None:
        await asyncio.gather(*(one(key) for key in range(20)))
        assert len(pids) <= 3
        await asyncio.to_thread(cut)
        await one(20)  # what lay idle is not used

    with closing(engine):
        asyncio.run(many())
        asyncio.run(one(21))  # another loop: its own connections
    database.use_engine("default", program)
    assert stored(program) == (list(range(22)), [f"{key:02}" for key in range(22)])
