"""Leases, shutdown, and completing inside a transaction of the handler's own."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from worker_tasks import enqueue, task, until, work

from dever_sql import database, job
from dever_sql.engine import Engine, JobRow
from dever_sql.errors import InvalidArgument, LeaseLost
from dever_sql.sqlite import SQLiteEngine
from dever_sql.worker import Worker, WorkerOptions

Running = Callable[..., Worker]


def row_of(engine: Engine, id: int) -> JobRow:
    row = engine.get_job(id)
    assert row is not None
    return row


@pytest.fixture
def started(live: Engine) -> Any:
    """Starts workers in the background; all are stopped at the end."""
    workers: list[Worker] = []

    def start(*tasks: Any, **options: Any) -> Worker:
        worker = Worker(
            live, tasks, WorkerOptions(**{"poll_ms": 50, "shutdown_ms": 200, **options})
        )
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.abort()
        worker.wait(20)


@pytest.mark.req("R4.8")
def test_a_handler_that_blocks_the_loop_keeps_its_lease(live: Engine) -> None:
    runs: list[int] = []

    async def handler() -> None:
        runs.append(job.current().attempt)
        time.sleep(2.2)

    each = task(handler)
    [id] = enqueue(live, each)
    work(live, each, lease_ms=600)
    assert (row_of(live, id).state, runs) == ("succeeded", [1])


@pytest.mark.req("R4.8")
def test_a_handler_that_keeps_the_interpreter_busy_keeps_its_lease(live: Engine) -> None:
    def handler() -> None:
        end = time.monotonic() + 2.2
        while time.monotonic() < end:
            sum(range(1000))

    each = task(handler)
    [id] = enqueue(live, each)
    work(live, each, lease_ms=800)
    assert (row_of(live, id).state, row_of(live, id).attempt) == ("succeeded", 1)


@pytest.mark.req("R4.8")
def test_a_short_lease_prints_a_warning(live: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def handler() -> None:
        pass

    with caplog.at_level(logging.WARNING, "dever"):
        work(live, task(handler), lease_ms=4_999)
    assert "lease is shorter than 5 s" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "dever"):
        work(live, task(handler), lease_ms=5_000)
    assert caplog.text == ""


@pytest.mark.req("R8.5", "R4.4")
@pytest.mark.parametrize("kind", ["async", "def"])
def test_a_lost_lease_cancels_the_handler_and_writes_nothing(
    live: Engine, started: Running, kind: str
) -> None:
    begun, over = threading.Event(), threading.Event()

    async def as_async() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            over.set()

    def as_def() -> None:
        begun.set()
        context = job.current()
        while not context.cancelled:
            time.sleep(0.005)
        over.set()

    each = task(as_async if kind == "async" else as_def)
    [id] = enqueue(live, each)
    started(each, lease_ms=600)
    assert begun.wait(10)
    assert [each.outcome for each in live.cancel([id])] == ["cancelled"]
    assert over.wait(10)
    assert row_of(live, id).state == "cancelled"


@pytest.mark.req("R8.4")
def test_a_drain_lets_running_jobs_end_and_claims_nothing_more(
    live: Engine, started: Running
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handler() -> None:
        begun.set()
        go_on.wait(20)

    each = task(handler)
    first, second = enqueue(live, each, keys=["a", "b"])
    worker = started(each, workers=1, shutdown_ms=20_000)
    assert begun.wait(10)
    worker.stop()
    time.sleep(0.2)
    go_on.set()
    assert worker.wait(20) == 0
    assert row_of(live, first).state == "succeeded"
    assert (row_of(live, second).state, row_of(live, second).attempt) == ("ready", 0)
    assert live.workers() == []


@pytest.mark.req("R8.4", "R4.3")
@pytest.mark.parametrize("kind", ["async", "def", "blocked loop"])
def test_what_is_cut_off_is_released_with_its_attempt_used(
    live: Engine, started: Running, kind: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def as_async() -> None:
        begun.set()
        await asyncio.sleep(60)

    def as_def() -> None:
        begun.set()
        go_on.wait(20)

    async def blocking() -> None:
        begun.set()
        go_on.wait(20)

    each = task({"async": as_async, "def": as_def, "blocked loop": blocking}[kind])
    [id] = enqueue(live, each)
    worker = started(each, shutdown_ms=100)
    assert begun.wait(10)
    worker.stop()
    assert worker.wait(20) == 1
    go_on.set()
    row = row_of(live, id)
    assert (row.state, row.attempt) == ("ready", 1)


@pytest.mark.req("R8.4")
def test_a_cut_off_on_the_last_attempt_is_dead_and_said_to_be(
    live: Engine, started: Running, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    async def handler() -> None:
        begun.set()
        await asyncio.sleep(60)

    each = task(handler, retry=1)
    [id] = enqueue(live, each)
    worker = started(each, shutdown_ms=100)
    assert begun.wait(10)
    worker.stop()
    worker.wait(20)
    row = row_of(live, id)
    assert (row.state, row.reason) == ("dead", "interrupted")
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("job dead") for line in said), said


@pytest.mark.req("R4.5")
def test_a_sleeping_worker_is_woken_by_an_enqueue(live: Engine, started: Running) -> None:
    ran = threading.Event()

    async def handler() -> None:
        ran.set()

    each = task(handler)
    live.register(None, [each.contract], timedelta(minutes=1))
    started(each, poll_ms=60_000)
    time.sleep(1.0)
    for number in range(5):
        ran.clear()
        before = time.monotonic()
        live.enqueue_as(each.target, each.fingerprint, [f"k{number}"], ["null"])
        assert ran.wait(10)
        assert time.monotonic() - before < 1.0
        time.sleep(0.2)


@pytest.mark.req("R8.5")
def test_a_worker_that_was_forgotten_registers_again(live: Engine, started: Running) -> None:
    ran = threading.Event()

    async def handler() -> None:
        ran.set()

    each = task(handler)
    worker = started(each)
    until(lambda: live.workers())
    live.leave(worker.name)
    until(lambda: [row.worker for row in live.workers()] == [worker.name], 12)
    enqueue(live, each)
    assert ran.wait(10)


# --- completing in a transaction of one's own ---------------------------------------------------


def open_connection(engine: Engine, url: str) -> Any:
    if isinstance(engine, SQLiteEngine):
        connection = sqlite3.connect(engine.path, isolation_level=None, timeout=10)
    else:
        connection = psycopg.connect(url, autocommit=True)
    connection.execute("create table if not exists effect (n integer)")
    return connection


@pytest.fixture
def connection(live: Engine, request: pytest.FixtureRequest) -> Any:
    url = "" if isinstance(live, SQLiteEngine) else request.getfixturevalue("pg_url")
    with closing(open_connection(live, url)):
        yield lambda: open_connection(live, url)


@pytest.mark.req("R5.8")
def test_effects_and_completion_are_one_commit(live: Engine, connection: Any) -> None:
    def handler() -> None:
        with closing(connection()) as own:
            own.execute("begin")
            own.execute("insert into effect values (1)")
            job.current().complete(own)
            own.execute("commit")

    each = task(handler)
    [id] = enqueue(live, each)
    work(live, each)
    assert row_of(live, id).state == "succeeded"
    with closing(connection()) as own:
        assert own.execute("select count(*) from effect").fetchone()[0] == 1


@pytest.mark.req("R5.8")
@pytest.mark.parametrize("raises", [False, True])
def test_an_attempt_whose_transaction_did_not_commit_has_failed(
    live: Engine, connection: Any, raises: bool
) -> None:
    def handler() -> None:
        with closing(connection()) as own:
            own.execute("begin")
            own.execute("insert into effect values (1)")
            job.current().complete(own)
            own.execute("rollback")
        if raises:
            raise ValueError("x")

    each = task(handler)
    [id] = enqueue(live, each)
    work(live, each)
    row = row_of(live, id)
    assert (row.state, row.reason, row.attempt) == ("scheduled", "handler_failed", 1)
    with closing(connection()) as own:
        assert own.execute("select count(*) from effect").fetchone()[0] == 0


@pytest.mark.req("R5.8")
def test_a_committed_completion_stands_whatever_the_handler_does_then(
    live: Engine, connection: Any
) -> None:
    def handler() -> None:
        with closing(connection()) as own:
            own.execute("begin")
            job.current().complete(own)
            own.execute("commit")
        raise ValueError("too late")

    each = task(handler)
    [id] = enqueue(live, each)
    work(live, each)
    assert row_of(live, id).state == "succeeded"


@pytest.mark.req("R5.8")
def test_complete_needs_an_open_transaction(live: Engine, connection: Any) -> None:
    refused: list[str] = []

    def handler() -> None:
        with closing(connection()) as own:
            try:
                job.current().complete(own)
            except InvalidArgument as error:
                refused.append(error.message)

    each = task(handler)
    enqueue(live, each)
    work(live, each)
    assert refused == ["no transaction is open on this connection"]


@pytest.mark.req("R5.8", "R4.4")
def test_complete_after_the_lease_was_lost_raises(live: Engine, connection: Any) -> None:
    refused: list[str] = []

    def handler() -> None:
        live.cancel([job.current().id])
        with closing(connection()) as own:
            own.execute("begin")
            own.execute("insert into effect values (1)")
            try:
                job.current().complete(own)
            except LeaseLost as error:
                refused.append(error.message)
            own.execute("rollback")

    each = task(handler)
    [id] = enqueue(live, each)
    work(live, each)
    assert len(refused) == 1
    assert row_of(live, id).state == "cancelled"


# --- transaction() on SQLite, which keeps everybody else from writing ----------------------------


@pytest.fixture
def sqlite_program(live: Engine) -> Any:
    if live.kind != "sqlite":
        pytest.skip("SQLite only")
    database.close_all()
    database.use_engine("default", live)
    yield live
    database.close_all()


@pytest.mark.req("R4.8")
def test_a_transaction_begins_with_a_renewal_of_the_own_lease(sqlite_program: Engine) -> None:
    def handler() -> None:
        time.sleep(0.3)
        before = row_of(sqlite_program, job.current().id).lease_until
        with database.transaction() as tx:
            tx.execute("create table own (n)")
        after = row_of(sqlite_program, job.current().id).lease_until
        assert before is not None
        assert after is not None
        assert after >= before + timedelta(milliseconds=250)

    each = task(handler)
    [id] = enqueue(sqlite_program, each)
    work(sqlite_program, each, lease_ms=60_000)
    assert row_of(sqlite_program, id).state == "succeeded"


@pytest.mark.req("R4.8")
def test_a_transaction_may_last_a_third_of_the_lease(sqlite_program: Engine) -> None:
    def handler() -> None:
        with database.transaction() as tx:
            tx.execute("create table own (n)")
            time.sleep(0.4)
            tx.execute("insert into own values (1)")

    each = task(handler)
    [id] = enqueue(sqlite_program, each)
    work(sqlite_program, each, lease_ms=1_000, error_detail="message")
    row = row_of(sqlite_program, id)
    assert row.reason == "handler_failed"
    assert "rolled back" in (row.error or "")


@pytest.mark.req("R4.4")
def test_a_transaction_of_a_job_that_was_lost_does_not_begin(sqlite_program: Engine) -> None:
    refused: list[str] = []

    def handler() -> None:
        sqlite_program.cancel([job.current().id])
        try:
            with database.transaction():
                pass
        except LeaseLost as error:
            refused.append(error.message)

    each = task(handler)
    enqueue(sqlite_program, each)
    work(sqlite_program, each)
    assert len(refused) == 1
