"""Jobs that join the caller's transaction, on every kind of connection (R3.4, R3.5)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from worker_tasks import FINGERPRINT, task

from dever_sql import connection as caller
from dever_sql import database
from dever_sql.database import transaction
from dever_sql.declare import Jobs
from dever_sql.engine import Engine
from dever_sql.errors import CrossDatabaseError, InvalidArgument, InvalidKey
from dever_sql.sqlite import SQLiteEngine


async def handler() -> None:
    pass


JOB = task(handler)


@pytest.fixture
def ready(live: Engine) -> Engine:
    live.register(None, [JOB.contract], timedelta(minutes=1))
    return live


@pytest.fixture
def pg(ready: Engine, request: pytest.FixtureRequest) -> str:
    if ready.kind != "postgresql":
        pytest.skip("PostgreSQL only")
    return request.getfixturevalue("pg_url")


@pytest.fixture
def lite(ready: Engine) -> str:
    if not isinstance(ready, SQLiteEngine):
        pytest.skip("SQLite only")
    return ready.path


def enqueue(engine: Engine, connection: object, key: str = "k") -> Any:
    return engine.enqueue_as(JOB.target, FINGERPRINT, [key], ["null"], connection=connection)[0]


async def aenqueue(engine: Engine, connection: object, key: str = "k") -> Any:
    steps = engine.enqueue_as_steps(JOB.target, FINGERPRINT, [key], ["null"])
    return (await caller.arun(engine, connection, steps))[0]


def keys(engine: Engine) -> list[str | None]:
    return sorted(str(row.key) for row in engine.jobs())


# --- the drivers themselves ---------------------------------------------------------------------


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("autocommit", [True, False])
def test_psycopg(ready: Engine, pg: str, autocommit: bool) -> None:
    with psycopg.connect(pg, autocommit=autocommit, row_factory=dict_row) as connection:
        with suppress(ZeroDivisionError), connection.transaction():
            assert enqueue(ready, connection).created
            raise ZeroDivisionError
        assert keys(ready) == []
        with connection.transaction():
            first, second = enqueue(ready, connection), enqueue(ready, connection)
            assert (first.created, second.created) == (True, False)
            assert first.id == second.id
        assert connection.row_factory is dict_row
    assert keys(ready) == ["k"]


@pytest.mark.req("R3.4")
def test_psycopg_async(ready: Engine, pg: str) -> None:
    async def scenario() -> None:
        async with await psycopg.AsyncConnection.connect(pg, row_factory=dict_row) as connection:
            assert (await aenqueue(ready, connection)).created
            await connection.rollback()
            assert (await aenqueue(ready, connection)).created
            await connection.commit()

    asyncio.run(scenario())
    assert keys(ready) == ["k"]


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("isolation_level", ["", None, "IMMEDIATE"])
def test_sqlite3(ready: Engine, lite: str, isolation_level: Any) -> None:
    with closing(sqlite3.connect(lite, isolation_level=isolation_level)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("create table own (n)")
        if isolation_level is None:
            connection.execute("begin")
        connection.execute("insert into own values (1)")
        assert enqueue(ready, connection).created
        assert connection.in_transaction
        connection.rollback()
        assert keys(ready) == []
        if isolation_level is None:
            connection.execute("begin")
        first, second = enqueue(ready, connection), enqueue(ready, connection)
        assert (first.created, second.created, first.id) == (True, False, second.id)
        connection.commit()
        assert connection.row_factory is sqlite3.Row
    assert keys(ready) == ["k"]


@pytest.mark.req("R3.2")
def test_a_refusal_leaves_the_callers_transaction_usable(
    ready: Engine, request: pytest.FixtureRequest
) -> None:
    if isinstance(ready, SQLiteEngine):
        connection: Any = sqlite3.connect(ready.path)
    else:
        connection = psycopg.connect(request.getfixturevalue("pg_url"))
    with closing(connection):
        connection.execute("create table own (n integer)")
        connection.execute("insert into own values (1)")
        with pytest.raises(InvalidKey):
            enqueue(ready, connection, "a\0b")
        assert connection.execute("select count(*) from own").fetchone()[0] == 1


# --- SQLAlchemy and Django ----------------------------------------------------------------------


def sqlalchemy_url(engine: Engine, request: pytest.FixtureRequest, asynchronous: bool) -> str:
    if isinstance(engine, SQLiteEngine):
        return f"sqlite{'+aiosqlite' if asynchronous else ''}:///{engine.path}"
    url = request.getfixturevalue("pg_url")
    return url.replace("postgresql://", "postgresql+psycopg://")


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("kind", ["core", "orm"])
def test_sqlalchemy(ready: Engine, request: pytest.FixtureRequest, kind: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")
    bind = sqlalchemy.create_engine(sqlalchemy_url(ready, request, False))
    for commit in (False, True):
        with bind.connect() if kind == "core" else orm.Session(bind) as connection:
            assert enqueue(ready, connection).created
            connection.commit() if commit else connection.rollback()
        assert keys(ready) == (["k"] if commit else [])
    bind.dispose()


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("kind", ["core", "orm"])
def test_sqlalchemy_async(ready: Engine, request: pytest.FixtureRequest, kind: str) -> None:
    asynchronous = pytest.importorskip("sqlalchemy.ext.asyncio")
    if ready.kind == "sqlite":
        pytest.importorskip("aiosqlite")
    pytest.importorskip("greenlet")

    async def scenario() -> None:
        bind = asynchronous.create_async_engine(sqlalchemy_url(ready, request, True))
        for commit in (False, True):
            opened = bind.connect() if kind == "core" else asynchronous.AsyncSession(bind)
            async with opened as connection:
                assert (await aenqueue(ready, connection)).created
                await (connection.commit() if commit else connection.rollback())
                with pytest.raises(InvalidArgument, match="async"):
                    enqueue(ready, connection)
        await bind.dispose()

    asyncio.run(scenario())
    assert keys(ready) == ["k"]


@pytest.mark.req("R3.4")
def test_sqlalchemy_with_asyncpg(ready: Engine, pg: str) -> None:
    asynchronous = pytest.importorskip("sqlalchemy.ext.asyncio")
    pytest.importorskip("asyncpg")

    async def scenario() -> None:
        bind = asynchronous.create_async_engine(pg.replace("postgresql:", "postgresql+asyncpg:"))
        async with bind.connect() as connection:
            assert (await aenqueue(ready, connection)).created
            with pytest.raises(InvalidKey):
                await aenqueue(ready, connection, "")
        async with bind.begin() as connection:
            assert (await aenqueue(ready, connection)).created
        await bind.dispose()

    asyncio.run(scenario())
    assert keys(ready) == ["k"]


@pytest.mark.req("R3.4")
def test_django(ready: Engine, request: pytest.FixtureRequest) -> None:
    backends = pytest.importorskip("django.db.utils")
    conf = pytest.importorskip("django.conf")
    if not conf.settings.configured:
        conf.settings.configure(DATABASES={})
        pytest.importorskip("django").setup()
    if isinstance(ready, SQLiteEngine):
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": ready.path}
    else:
        info = psycopg.conninfo.conninfo_to_dict(request.getfixturevalue("pg_url"))
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": info["dbname"],
            "HOST": info["host"],
            "PORT": info["port"],
            "USER": info["user"],
        }
    connection = backends.ConnectionHandler({"default": settings})["default"]
    with closing(connection):
        for commit in (False, True):
            connection.set_autocommit(False)
            assert enqueue(ready, connection).created
            connection.commit() if commit else connection.rollback()
            connection.set_autocommit(True)
            assert keys(ready) == (["k"] if commit else [])


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.req("R3.4")
def test_what_is_no_connection_is_refused(ready: Engine) -> None:
    with pytest.raises(InvalidArgument, match=r"a builtins\.int, which is not supported"):
        enqueue(ready, 7)


@pytest.mark.req("R3.4")
def test_async_calls_refuse_sync_connections_and_the_reverse(ready: Engine, pg: str) -> None:
    async def scenario() -> None:
        async with await psycopg.AsyncConnection.connect(pg) as connection:
            with pytest.raises(InvalidArgument) as refused:
                enqueue(ready, connection)
            assert "aenqueue" in str(refused.value)
        with psycopg.connect(pg) as sync:
            with pytest.raises(InvalidArgument) as refused:
                await aenqueue(ready, sync)
            assert "without the a" in str(refused.value)

    asyncio.run(scenario())


@pytest.mark.req("R3.5")
def test_another_installation_is_refused_before_anything_is_written(
    ready: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    other = SQLiteEngine(tmp_path / "other.db", synchronous="normal")
    other.install()
    with closing(other), closing(sqlite3.connect(other.path)) as connection:
        with pytest.raises(CrossDatabaseError):
            enqueue(ready, connection)
        assert not connection.in_transaction
    with (
        closing(sqlite3.connect(tmp_path / "empty.db")) as connection,
        pytest.raises(CrossDatabaseError),
    ):
        enqueue(ready, connection)
    if ready.kind == "postgresql":
        url = request.getfixturevalue("pg_empty_url")
        with psycopg.connect(url) as connection:
            connection.execute("create table own (n integer)")
            with pytest.raises(CrossDatabaseError):
                enqueue(ready, connection)
            connection.execute("insert into own values (1)")
    assert keys(ready) == []


# --- transaction() ------------------------------------------------------------------------------

jobs = Jobs(database="default")


@jobs.job(retry=3, timeout=1_000, name="connections.plain")
async def plain() -> None:
    pass


@pytest.fixture
def program(ready: Engine) -> Iterator[Engine]:
    database.close_all()
    database.use_engine("default", ready)
    yield ready
    database.close_all()


@pytest.mark.req("R3.4")
def test_transaction_commits_rows_and_jobs_together(program: Engine) -> None:
    with transaction("default") as tx:
        assert tx.execute("create table own (n integer)") == []
    with suppress(ZeroDivisionError), transaction("default") as tx:
        tx.execute("insert into own values (1)")
        plain.enqueue(key="a")
        raise ZeroDivisionError
    assert keys(program) == []
    with transaction("default") as tx:
        assert tx.execute("select n from own") == []
        tx.execute("insert into own values (2)")
        assert plain.enqueue(key="b").created
        assert tx.execute("select n from own") == [(2,)]
    assert keys(program) == ["b"]


@pytest.mark.req("R3.4")
def test_async_transaction(program: Engine) -> None:
    async def scenario() -> None:
        async with transaction("default") as tx:
            await tx.execute("create table own (n integer)")
        with suppress(ZeroDivisionError):
            async with transaction("default") as tx:
                await tx.execute("insert into own values (1)")
                await plain.aenqueue(key="a")
                raise ZeroDivisionError
        async with transaction("default") as tx:
            assert await tx.execute("select n from own") == []
            assert (await plain.aenqueue(key="b")).created
            with pytest.raises(InvalidArgument, match="async"):
                plain.enqueue(key="c")

    asyncio.run(scenario())
    assert keys(program) == ["b"]


@pytest.mark.req("R3.5")
def test_a_transaction_on_another_database_refuses_the_job(program: Engine, tmp_path: Path) -> None:
    other = SQLiteEngine(tmp_path / "other.db", synchronous="normal")
    other.install()
    database.use_engine("other", other)
    with transaction("other"), pytest.raises(CrossDatabaseError):
        plain.enqueue(key="a")
    assert keys(program) == []
