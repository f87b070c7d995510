"""Servers that refuse: read-only, out of connections, out of patience (R8.5)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from postgres_server import SETTINGS, Cluster, running_cluster
from worker_tasks import FINGERPRINT, enqueue, task, until

from dever_sql import database, job, postgres_async_pool, postgres_pool
from dever_sql.engine import JobRow
from dever_sql.errors import DatabaseUnavailable
from dever_sql.postgres import PostgresEngine
from dever_sql.settings import WORKER_CONNECTIONS
from dever_sql.worker import Worker, WorkerOptions

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def engine(pg_url: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(pg_url)
    yield engine
    engine.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(engine: PostgresEngine, *tasks: Any, **options: Any) -> Worker:
        options = {"poll_ms": 100, "shutdown_ms": 5_000, **options}
        worker = Worker(engine, tasks, WorkerOptions(**options))
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.abort()
        worker.wait(30)


@pytest.fixture
def program(engine: PostgresEngine) -> Iterator[None]:
    database.close_all()
    database.use_engine("default", engine)
    yield
    database.close_all()


@pytest.fixture(scope="module")
def small_server() -> Iterator[Cluster]:
    """A server of this module's own, whose settings the tests may change; 12 sessions."""
    settings = {**SETTINGS, "max_connections": "12", "superuser_reserved_connections": "0"}
    with running_cluster(settings) as cluster:
        yield cluster


@pytest.fixture
def own(small_server: Cluster) -> Iterator[PostgresEngine]:
    """An engine on a new database of the small server."""
    with closing(psycopg.connect(small_server.url("postgres"), autocommit=True)) as admin:
        admin.execute("drop database if exists own with (force)")
        admin.execute("create database own")
    engine = PostgresEngine(small_server.url("own"), connections=6)
    engine.install()
    yield engine
    engine.close()


def is_working(worker: Worker) -> bool:
    try:
        worker.wait(0)
    except TimeoutError:
        return True
    return False


def finished(engine: PostgresEngine, id: int) -> JobRow | None:
    row = engine.get_job(id)
    assert row is not None
    return row if row.state in ("succeeded", "dead") else None


async def nothing() -> None:
    pass


# --- read-only ----------------------------------------------------------------------------------


@pytest.mark.req("R8.5")
def test_a_server_that_becomes_read_only_is_an_outage_and_no_end(
    own: PostgresEngine,
    small_server: Cluster,
    start: Callable[..., Worker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    began, go = asyncio.Event(), threading.Event()

    async def long() -> None:
        began.set()
        await asyncio.to_thread(go.wait, 60)

    quick, held = task(nothing), task(long)
    ids = enqueue(own, quick, held)
    with (
        caplog.at_level(logging.INFO, "dever"),
        closing(psycopg.connect(small_server.url("postgres"), autocommit=True)) as admin,
    ):

        def read_only(word: str) -> None:
            admin.execute("set transaction_read_only = off")
            admin.execute(f"alter system set default_transaction_read_only = {word}")
            admin.execute("select pg_reload_conf()")

        worker = start(own, quick, held)
        until(lambda: finished(own, ids[0]) and began.is_set())
        read_only("on")
        try:
            until(lambda: "database unavailable" in caplog.text)
            go.set()  # its success cannot be written now
            with pytest.raises(DatabaseUnavailable, match="read-only"):
                enqueue(own, quick, keys=["later"])
            assert is_working(worker)
        finally:
            read_only("off")
        until(lambda: "database available again" in caplog.text, 20)
        [id] = until(lambda: patiently(lambda: enqueue(own, quick, keys=["later"])))
        for each in (ids[1], id):
            row = until(lambda each=each: finished(own, each), 20)
            assert (row.state, row.attempt) == ("succeeded", 1)
        worker.stop()
        assert worker.wait(20) == 0


def patiently(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DatabaseUnavailable:
        return None


# --- out of connections -------------------------------------------------------------------------


def another(server: Cluster) -> psycopg.Connection[Any] | None:
    """One session more, None when the server has none left."""
    try:
        return psycopg.connect(server.url("postgres"))
    except psycopg.OperationalError:
        return None


@pytest.mark.req("R8.5")
def test_a_server_without_a_free_session_delays_the_worker_only(
    own: PostgresEngine, small_server: Cluster, start: Callable[..., Worker]
) -> None:
    each = task(nothing)
    [first] = enqueue(own, each)
    worker = start(own, each)
    until(lambda: finished(own, first))
    with ExitStack() as taken, closing(psycopg.connect(small_server.url("own"))) as admin:
        admin.autocommit = True
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'dever'"
        )
        while session := another(small_server):
            taken.enter_context(closing(session))
        client = PostgresEngine(small_server.url("own"))
        with pytest.raises(DatabaseUnavailable, match="too many clients"):
            enqueue(client, each, keys=["later"])
        client.close()
        assert is_working(worker)
    [id] = until(lambda: patiently(lambda: enqueue(own, each, keys=["later"])))
    assert until(lambda: finished(own, id), 20).attempt == 1


@pytest.mark.req("R8.3", "R8.5")
def test_a_program_with_all_its_transactions_open_gets_a_clear_error_in_time(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "_LENDING_PATIENCE", 0.2)
    monkeypatch.setattr(postgres_async_pool, "_LENDING_PATIENCE", 0.2)
    each = task(nothing)

    async def exhaust() -> None:
        lent = [await engine.async_transactions.take() for _ in range(2)]
        with pytest.raises(DatabaseUnavailable, match=r"all 2 async connections.* in use"):
            await engine.async_transactions.take()
        for session in lent:
            await engine.async_transactions.give_back(session)
        await engine.async_transactions.give_back(await engine.async_transactions.take())

    with closing(PostgresEngine(pg_url, connections=4)) as engine, ExitStack() as open_blocks:
        enqueue(engine, each)
        for _ in range(2):
            open_blocks.enter_context(engine.lend())
        with pytest.raises(DatabaseUnavailable, match=r"all 2 connections.* in use") as raised:
            engine.lend().__enter__()
        assert "database.<name>.connections" in (raised.value.hint or "")
        # Calls outside a transaction, such as claims and renewals, are not held up.
        assert enqueue(engine, each, keys=["other"])
        asyncio.run(exhaust())


@pytest.mark.req("R8.3", "R8.5")
def test_the_fewest_connections_that_settings_allow_are_enough_and_kept_to(
    pg_url: str, connect: Connect, start: Callable[..., Worker]
) -> None:
    slots = 6
    most: list[int] = []
    admin = connect("admin")
    admin.execute("create table business (n integer)")

    def busy() -> None:
        with database.transaction() as tx:
            tx.execute("insert into business values (1)")
            engine.enqueue_as(
                quick.target,
                FINGERPRINT,
                [f"of {job.current().key}"],
                ["null"],
                connection=tx.dever_connection,
            )
            time.sleep(0.02)
        engine.jobs(limit=1)

    quick, each = task(nothing), task(busy)
    with closing(PostgresEngine(pg_url, connections=slots + WORKER_CONNECTIONS)) as engine:
        database.close_all()
        database.use_engine("default", engine)
        enqueue(engine, each, keys=[f"k{n}" for n in range(60)])
        engine.register(None, [quick.contract], timedelta(minutes=1))
        worker = start(engine, each, quick, workers=slots)

        def all_done() -> bool:
            row = admin.execute(
                "select count(*) from pg_stat_activity"
                " where application_name = 'dever' and datname = current_database()"
            ).fetchone()
            most.append(row[0] if row else 0)
            row = admin.execute(
                "select count(*) from dever.finished where outcome = 'succeeded' and attempt = 1"
            ).fetchone()
            return row == (120,)

        until(all_done, 60)
        worker.stop()
        assert worker.wait(20) == 0
        database.close_all()
    # A sleeping worker listens on one beside them.
    assert 1 < max(most) <= slots + WORKER_CONNECTIONS + 1


# --- out of patience ----------------------------------------------------------------------------


@pytest.fixture
def impatient(connect: Connect) -> psycopg.Connection[Any]:
    """Sessions opened from now on are ended after a second of a statement or of idling in a
    transaction; not this one, the administrator's."""
    admin = connect("admin")
    for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
        admin.execute(f"alter database {admin.info.dbname} set {setting} = '1s'")
    return admin


@pytest.mark.req("R4.2", "R8.5")
@pytest.mark.usefixtures("impatient")
def test_no_transaction_and_no_statement_is_open_while_a_handler_runs(
    engine: PostgresEngine, start: Callable[..., Worker]
) -> None:
    async def long() -> None:
        await asyncio.sleep(3.0)

    each = task(long)
    [id] = enqueue(engine, each)
    start(engine, each, lease_ms=6_000)
    row = until(lambda: finished(engine, id), 20)
    assert (row.state, row.attempt) == ("succeeded", 1)


@pytest.mark.req("R5.8", "R8.5")
@pytest.mark.usefixtures("impatient", "program")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handlers_transaction_ended_by_the_server_fails_the_attempt_alone(
    engine: PostgresEngine,
    impatient: psycopg.Connection[Any],
    start: Callable[..., Worker],
    is_async: bool,
) -> None:
    impatient.execute("create table business (attempt integer)")

    def idle() -> None:
        context = job.current()
        with database.transaction() as tx:
            tx.execute("insert into business values (%s)", [context.attempt])
            time.sleep(1.5 if context.attempt == 1 else 0)
            context.complete(tx.connection)

    async def aidle() -> None:
        context = job.current()
        async with database.transaction() as tx:
            await tx.execute("insert into business values (%s)", [context.attempt])
            await asyncio.sleep(1.5 if context.attempt == 1 else 0)
            await context.acomplete(tx.connection)

    each = task(aidle if is_async else idle, base_ms=50)
    [id] = enqueue(engine, each)
    worker = start(engine, each, lease_ms=6_000)
    row = until(lambda: finished(engine, id), 20)
    assert (row.state, row.attempt) == ("succeeded", 2)
    assert impatient.execute("select attempt from business").fetchall() == [(2,)]
    assert is_working(worker)


@pytest.mark.req("R4.2", "R8.5")
def test_statements_that_take_too_long_are_tried_again(
    engine: PostgresEngine,
    impatient: psycopg.Connection[Any],
    connect: Connect,
    start: Callable[..., Worker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    each = task(nothing)
    [id] = enqueue(engine, each)
    blocker = connect("blocker", autocommit=False)
    blocker.execute("set idle_in_transaction_session_timeout = 0")
    blocker.execute("lock table dever.job in access exclusive mode")
    with caplog.at_level(logging.WARNING, "dever"):
        worker = start(engine, each)
        until(lambda: "statement timeout" in caplog.text, 20)
        with pytest.raises(DatabaseUnavailable, match="statement timeout"):
            enqueue(engine, each, keys=["later"])
        assert is_working(worker)
    blocker.rollback()
    row = until(lambda: finished(engine, id), 20)
    assert (row.state, row.attempt) == ("succeeded", 1)
