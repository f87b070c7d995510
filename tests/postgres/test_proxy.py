"""Connections cut before and after a commit, and networks that swallow what is said (R8.5)."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proxy import CUT_AFTER, CUT_BEFORE, HOLD, PASS, SWALLOW, Proxy, once
from worker_tasks import FINGERPRINT, enqueue, task, until

from dever_sql import database, job
from dever_sql.engine import JobRow
from dever_sql.errors import DatabaseUnavailable
from dever_sql.postgres import PostgresEngine
from dever_sql.worker import Worker, WorkerOptions

CLAIM = r"dever\.\w*claim"
COMPLETE = r"dever\.(complete|\w*finish)\w*\("
BOTH = pytest.mark.parametrize("action", [CUT_BEFORE, CUT_AFTER])


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    proxy = Proxy(pg_url)
    yield proxy
    proxy.close()


@pytest.fixture
def engine(pg_url: str) -> Iterator[PostgresEngine]:
    """Straight to the server."""
    engine = PostgresEngine(pg_url)
    yield engine
    engine.close()


@pytest.fixture
def through(proxy: Proxy) -> Iterator[PostgresEngine]:
    """Through the proxy."""
    engine = PostgresEngine(proxy.url, connect_timeout=2)
    yield engine
    engine.close()


@pytest.fixture
def start(through: PostgresEngine) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(*tasks: Any, **options: Any) -> Worker:
        options = {"poll_ms": 100, "shutdown_ms": 5_000, **options}
        worker = Worker(through, tasks, WorkerOptions(**options))
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.abort()
        worker.wait(30)


class Effects:
    """Attempts of each job that began, by its key."""

    def __init__(self) -> None:
        self.attempts: dict[str, list[int]] = {}

    async def handler(self) -> None:
        current = job.current()
        self.attempts.setdefault(current.key, []).append(current.attempt)
        await asyncio.sleep(0.005)


def finished(engine: PostgresEngine, id: int) -> JobRow | None:
    row = engine.get_job(id)
    assert row is not None
    return row if row.state in ("succeeded", "dead") else None


# --- a worker's calls ---------------------------------------------------------------------------


@pytest.mark.req("R8.5", "R4.2")
@BOTH
def test_a_claim_cut_off_loses_no_job(
    engine: PostgresEngine, proxy: Proxy, start: Callable[..., Worker], action: str
) -> None:
    effects = Effects()
    each = task(effects.handler)
    proxy.rule, applied = once(CLAIM, action)
    [id] = enqueue(engine, each)
    worker = start(each, lease_ms=1_000)
    row = until(lambda: finished(engine, id), 20)
    assert applied.is_set()
    # What was committed has used an attempt, and its lease had to run out.
    wanted = 1 if action == CUT_BEFORE else 2
    assert (row.state, row.attempt) == ("succeeded", wanted)
    assert effects.attempts == {"k": [wanted]}
    worker.stop()
    assert worker.wait(20) == 0


@pytest.mark.req("R8.5", "R4.2")
@BOTH
def test_a_completion_cut_off_is_written_once_and_nothing_runs_twice(
    engine: PostgresEngine,
    proxy: Proxy,
    start: Callable[..., Worker],
    action: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    effects = Effects()
    each = task(effects.handler)
    proxy.rule, applied = once(COMPLETE, action)
    [id] = enqueue(engine, each)
    with caplog.at_level(logging.INFO, "dever"):
        worker = start(each)
        row = until(lambda: finished(engine, id), 20)
        worker.stop()
        assert worker.wait(20) == 0
    assert applied.is_set()
    assert (row.state, row.attempt) == ("succeeded", 1)
    assert effects.attempts == {"k": [1]}
    assert "lease lost, result not written" not in caplog.text


@pytest.mark.req("R8.5", "R4.8")
@BOTH
def test_a_renewal_cut_off_costs_no_lease(
    engine: PostgresEngine, proxy: Proxy, start: Callable[..., Worker], action: str
) -> None:
    ended = threading.Event()

    async def long() -> None:
        await asyncio.sleep(2.5)
        ended.set()

    each = task(long)
    proxy.rule, applied = once(r"dever\.renew", action)
    [id] = enqueue(engine, each)
    start(each, lease_ms=1_500)
    assert ended.wait(20)
    row = until(lambda: finished(engine, id), 20)
    assert applied.is_set()
    assert (row.state, row.attempt) == ("succeeded", 1)


@pytest.mark.req("R8.5")
@pytest.mark.parametrize("call", ["register", "leave"])
@BOTH
def test_a_worker_cut_off_at_its_first_and_last_word(
    engine: PostgresEngine, proxy: Proxy, start: Callable[..., Worker], action: str, call: str
) -> None:
    effects = Effects()
    each = task(effects.handler)
    [id] = enqueue(engine, each)
    proxy.rule, applied = once(rf"dever\.{call}", action)
    worker = start(each)
    until(lambda: finished(engine, id), 20)
    worker.stop()
    assert worker.wait(20) == 0
    assert applied.is_set()


@pytest.mark.req("R8.5", "R4.2", "R4.3")
def test_connections_cut_at_random_lose_nothing_and_repeat_no_success(
    engine: PostgresEngine, proxy: Proxy, start: Callable[..., Worker]
) -> None:
    effects = Effects()
    each = task(effects.handler, retry=100)
    engine.register(None, [each.contract], timedelta(minutes=1))
    luck = random.Random(7)
    cuts: Counter[str] = Counter()

    def rule(text: str) -> str:
        chance = luck.random()
        if chance > 0.08 or re.search(COMPLETE, text) is None is re.search(CLAIM, text):
            return PASS
        action = CUT_BEFORE if chance < 0.04 else CUT_AFTER
        cuts[action] += 1
        return action

    proxy.rule = rule
    start(each, workers=8, lease_ms=1_000)
    ids: list[int] = []
    for number in range(60):
        keys = [f"k{number}-{n}" for n in range(5)]
        rows = engine.enqueue_as(each.target, FINGERPRINT, keys, ["null"] * len(keys))
        ids += [row.id for row in rows]
        time.sleep(0.05)
    until(lambda: all(finished(engine, id) for id in ids), 60)
    proxy.rule = lambda _: PASS
    rows = {row.key: row for row in engine.jobs(limit=1_000)}
    assert len(rows) == len(ids) == 300
    for key, row in rows.items():
        assert row.state == "succeeded"
        # A success may be told twice, which changes nothing; it never starts another attempt.
        assert effects.attempts[key or ""][-1] == row.attempt
        assert len(set(effects.attempts[key or ""])) == len(effects.attempts[key or ""])
    assert min(cuts[CUT_BEFORE], cuts[CUT_AFTER]) >= 1, cuts


# --- a client's calls ---------------------------------------------------------------------------


@pytest.mark.req("R8.5", "R3.2")
@BOTH
def test_an_enqueue_cut_off_raises_and_may_be_repeated_with_its_key(
    engine: PostgresEngine, proxy: Proxy, through: PostgresEngine, action: str
) -> None:
    each = task(Effects().handler)
    through.register(None, [each.contract], timedelta(minutes=1))
    arguments = (each.target, FINGERPRINT, ["k"], ["null"])
    proxy.rule, applied = once(r"dever\.enqueue_as", action)
    with pytest.raises(DatabaseUnavailable) as raised:
        through.enqueue_as(*arguments)
    assert applied.is_set()
    assert raised.value.hint is not None
    [again] = through.enqueue_as(*arguments)
    assert again.created == (action == CUT_BEFORE)
    assert [row.id for row in engine.jobs()] == [again.id]


@pytest.fixture
def program(through: PostgresEngine) -> Iterator[None]:
    database.close_all()
    database.use_engine("default", through)
    yield
    database.close_all()


@pytest.mark.req("R8.5", "R3.4")
@BOTH
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_transaction_cut_off_at_its_commit_keeps_both_rows_or_neither(
    engine: PostgresEngine,
    proxy: Proxy,
    through: PostgresEngine,
    connect: Callable[..., psycopg.Connection[Any]],
    action: str,
    is_async: bool,
) -> None:
    each = task(Effects().handler)
    through.register(None, [each.contract], timedelta(minutes=1))
    admin = connect()
    admin.execute("create table business (n integer)")
    arguments = (each.target, FINGERPRINT, ["k"], ["null"])

    def place() -> None:
        with database.transaction() as tx:
            tx.execute("insert into business values (1)")
            through.enqueue_as(*arguments, connection=tx.dever_connection)

    async def aplace() -> None:
        async with database.transaction() as tx:
            await tx.execute("insert into business values (1)")
            await tx.connection.execute(
                "select dever.enqueue_as(%s, %s, %s, %s::jsonb[])", list(arguments)
            )

    proxy.rule, applied = once(r"(?i)^commit", action)
    with pytest.raises(psycopg.OperationalError):
        asyncio.run(aplace()) if is_async else place()
    assert applied.is_set()
    rows = admin.execute("select count(*) from business").fetchone()
    assert rows == (0 if action == CUT_BEFORE else 1,)
    assert len(engine.jobs()) == rows[0]
    place()  # the pool has noticed


# --- a network that swallows --------------------------------------------------------------------


@pytest.mark.req("R8.5")
def test_a_swallowed_listening_session_holds_up_no_job(
    engine: PostgresEngine, proxy: Proxy, start: Callable[..., Worker]
) -> None:
    """No reset comes, so the worker cannot know; it polls all the same."""
    effects = Effects()
    each = task(effects.handler)
    engine.register(None, [each.contract], timedelta(minutes=1))
    proxy.rule, swallowed = once(r"pg_try_advisory_lock_shared", SWALLOW)
    start(each, poll_ms=100)
    assert swallowed.wait(10)
    [id] = enqueue(engine, each)
    # The worker waits for the answer, for at most a second, once; then it polls.
    until(lambda: finished(engine, id), 4.5)
    for number in range(5):
        [id] = enqueue(engine, each, keys=[f"k{number}"])
        until(lambda id=id: finished(engine, id), 5)


@pytest.mark.req("R8.5")
def test_a_swallowed_claim_holds_up_no_renewal(
    engine: PostgresEngine,
    proxy: Proxy,
    start: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dever_sql.postgres_pool.CALL_TIMEOUT", 3.0)
    ended = threading.Event()

    async def long() -> None:
        proxy.rule = swallow
        await asyncio.sleep(2.5)
        ended.set()

    swallow, swallowed = once(CLAIM, SWALLOW)
    each = task(long)
    [id] = enqueue(engine, each)
    start(each, lease_ms=1_000)
    assert ended.wait(20)
    row = until(lambda: finished(engine, id), 20)
    assert swallowed.is_set()
    assert (row.state, row.attempt) == ("succeeded", 1)


# --- a signal while a claim commits -------------------------------------------------------------

PROGRAM = """
import sys, time
from datetime import timedelta
from dever_sql import serving, signals
from dever_sql.postgres import PostgresEngine
from dever_sql.worker import Worker, WorkerOptions
from worker_tasks import task

def handler():
    print("ran", flush=True)

worker = Worker(
    PostgresEngine(sys.argv[1]),
    [task(handler, target="app.job.handler")],
    WorkerOptions(lease_ms=60_000, poll_ms=50, shutdown_ms=5_000),
)
with signals.signals_stop(worker.stop, at_latest=7.0):
    sys.exit(worker.run())
"""


@pytest.fixture
def process(proxy: Proxy) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, proxy.url],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=Path(__file__).parents[2],
    )
    yield process
    process.kill()
    process.communicate()


def nothing() -> None:
    """The contract of the program's only job."""


@pytest.mark.req("R8.4", "R8.5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_claim_commits_leaves_no_job_claimed(
    engine: PostgresEngine,
    proxy: Proxy,
    process: subprocess.Popen[str],
    number: signal.Signals,
) -> None:
    each = task(nothing, target="app.job.handler")
    [id] = enqueue(engine, each)
    proxy.rule, held = once(CLAIM, HOLD)
    assert held.wait(20)
    until(lambda: engine.jobs()[0].state == "running")
    process.send_signal(number)
    time.sleep(0.2)  # the signal arrives before the answer; were it otherwise, no harm
    proxy.release.set()
    assert process.wait(20) == 0
    row = engine.get_job(id)
    assert row is not None
    assert (row.state, row.attempt) == ("succeeded", 1)
    assert engine.workers() == []


@pytest.mark.req("R8.4", "R8.5")
def test_a_signal_while_a_claim_is_not_answered_ends_in_time(
    proxy: Proxy, process: subprocess.Popen[str]
) -> None:
    proxy.rule, held = once(CLAIM, SWALLOW)
    assert held.wait(20)
    process.send_signal(signal.SIGTERM)
    # Nobody knows what the claim has come to: the exit code does not say that all is well.
    assert process.wait(30) == 1
