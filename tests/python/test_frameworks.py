"""Jobs in the transactions of the frameworks themselves, on both databases (R3.4).

For each: a commit keeps the row and the job, a rollback drops both, a savepoint that is rolled back
drops its job alone, and a duplicate key leaves the transaction usable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import aiosqlite
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections, transaction
from sqlalchemy import orm, text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from dever_sql import database
from dever_sql.declare import Jobs
from dever_sql.engine import Engine
from dever_sql.errors import CrossDatabaseError
from dever_sql.sqlite import SQLiteEngine

jobs = Jobs(database="default")


@jobs.job(retry=3, timeout=1_000, name="frameworks.send")
async def send() -> None:
    pass


INSERT = "insert into own (n) values (1)"


@pytest.fixture
def program(live: Engine) -> Iterator[Engine]:
    database.close_all()
    database.use_engine("default", live)
    with database.transaction() as tx:
        tx.execute("create table own (n integer)")
    yield live
    database.close_all()


@pytest.fixture
def url(program: Engine, request: pytest.FixtureRequest) -> str:
    if isinstance(program, SQLiteEngine):
        return f"sqlite:///{program.path}"
    address = request.getfixturevalue("pg_url")
    return address.replace("postgresql://", "postgresql+psycopg://")


def stored(program: Engine) -> tuple[int, list[str]]:
    """How many rows, and the keys of the jobs."""
    with database.transaction() as tx:
        [(count,)] = tx.execute("select count(*) from own")
    return count, sorted(str(row.key) for row in program.jobs())


def work(connection: Any, execute: Any) -> None:
    """A row, a job, and the same job again: the transaction is still usable."""
    execute(INSERT)
    first = send.enqueue(key="a", connection=connection)
    again = send.enqueue(key="a", connection=connection)
    assert (first.created, again.created, first.id) == (True, False, again.id)
    execute(INSERT)


async def awork(connection: Any, execute: Any) -> None:
    await execute(INSERT)
    first = await send.aenqueue(key="a", connection=connection)
    again = await send.aenqueue(key="a", connection=connection)
    assert (first.created, again.created, first.id) == (True, False, again.id)
    await execute(INSERT)


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("kind", ["core", "orm"])
def test_sqlalchemy(program: Engine, url: str, kind: str) -> None:
    engine = sqlalchemy.create_engine(url)
    _begin_at_begin(engine)

    def opened() -> Any:
        return engine.connect() if kind == "core" else orm.Session(engine)

    with opened() as session:
        work(session, lambda sql: session.execute(text(sql)))
        session.rollback()
    assert stored(program) == (0, [])
    with opened() as session, session.begin():
        work(session, lambda sql: session.execute(text(sql)))
        with suppress(ZeroDivisionError), session.begin_nested():
            session.execute(text(INSERT))
            send.enqueue(key="b", connection=session)
            raise ZeroDivisionError
    assert stored(program) == (2, ["a"])
    engine.dispose()


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("kind", ["core", "orm"])
def test_sqlalchemy_async(program: Engine, url: str, kind: str) -> None:
    async def scenario() -> None:
        address = url.replace("sqlite:", "sqlite+aiosqlite:")
        engine = sqlalchemy_asyncio.create_async_engine(address)
        _begin_at_begin(engine.sync_engine)

        def opened() -> Any:
            if kind == "core":
                return engine.connect()
            return sqlalchemy_asyncio.AsyncSession(engine)

        async with opened() as session:
            await awork(session, lambda sql: session.execute(text(sql)))
            await session.rollback()
        assert stored(program) == (0, [])
        async with opened() as session, session.begin():
            await awork(session, lambda sql: session.execute(text(sql)))
            with suppress(ZeroDivisionError):
                async with session.begin_nested():
                    await session.execute(text(INSERT))
                    await send.aenqueue(key="b", connection=session)
                    raise ZeroDivisionError
        await engine.dispose()

    asyncio.run(scenario())
    assert stored(program) == (2, ["a"])


def _begin_at_begin(engine: Any) -> None:
    """SQLAlchemy's own recipe for savepoints on the old sqlite3 driver mode."""
    if engine.dialect.name != "sqlite":
        return

    def connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("begin immediate")

    sqlalchemy.event.listen(engine, "connect", connect)
    sqlalchemy.event.listen(engine, "begin", begin)


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("isolation_level", [None, "", "IMMEDIATE"])
def test_aiosqlite(program: Engine, isolation_level: Any) -> None:
    if not isinstance(program, SQLiteEngine):
        pytest.skip("SQLite only")
    path = program.path

    async def scenario() -> None:
        async with aiosqlite.connect(path, isolation_level=isolation_level) as connection:
            connection.row_factory = sqlite3.Row
            for commit in (False, True):
                if isolation_level is None:
                    await connection.execute("begin")
                await awork(connection, connection.execute)
                if commit:
                    await connection.execute("savepoint s")
                    await send.aenqueue(key="b", connection=connection)
                    await connection.execute("rollback to s")
                await (connection.commit() if commit else connection.rollback())
                assert stored(program) == ((2, ["a"]) if commit else (0, []))
            assert connection.row_factory is sqlite3.Row

    asyncio.run(scenario())


@pytest.mark.req("R3.5")
def test_aiosqlite_on_another_database_is_refused(program: Engine, tmp_path: Any) -> None:
    async def scenario() -> None:
        async with aiosqlite.connect(tmp_path / "other.db") as connection:
            with pytest.raises(CrossDatabaseError):
                await send.aenqueue(key="a", connection=connection)
            assert not connection.in_transaction

    asyncio.run(scenario())
    assert program.jobs() == []


@pytest.mark.req("R3.4")
def test_django_atomic(program: Engine, request: pytest.FixtureRequest) -> None:
    settings: dict[str, Any]
    if isinstance(program, SQLiteEngine):
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": program.path}
    else:
        info = psycopg.conninfo.conninfo_to_dict(request.getfixturevalue("pg_url"))
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": info["dbname"],
            "HOST": info["host"],
            "PORT": info["port"],
            "USER": info["user"],
        }
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    alias = f"live_{program.kind}"
    connections.databases[alias] = {
        **connections.configure_settings({"default": settings})["default"]
    }
    with closing(connections[alias]) as connection:

        def execute(sql: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(sql)

        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            work(connection, execute)
            raise ZeroDivisionError
        assert stored(program) == (0, [])
        with transaction.atomic(using=alias):
            work(connection, execute)
            with suppress(ZeroDivisionError), transaction.atomic(using=alias):
                execute(INSERT)
                send.enqueue(key="b", connection=connection)
                raise ZeroDivisionError
        assert stored(program) == (2, ["a"])
    del connections[alias]
    del connections.databases[alias]
