"""Waking workers: at once when one sleeps, not at all when none does, and never needed."""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg
import pytest
from postgres_server import Cluster
from samples import declaration, register
from worker_tasks import task, until

from dever_sql.postgres import PostgresEngine
from dever_sql.postgres_pool import Pool
from dever_sql.postgres_sleeper import PostgresSleeper
from dever_sql.worker import Worker, WorkerOptions

Connect: TypeAlias = Callable[..., psycopg.Connection[Any]]

TARGET = "test.wakeup"
LOCK = "1145394770, 1"
"""The class of Dever's advisory locks and the queue `default`."""


@pytest.fixture
def engine(pg_url: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(pg_url)
    register(engine, declaration(TARGET, {"kind": "json"}))
    yield engine
    engine.close()


class CountingSleeper(PostgresSleeper):
    """The sleep of a worker; counts the notifications that its session receives."""

    received = 0

    def _is_mine(self, queue_id: bytes) -> bool:
        self.received += 1
        return super()._is_mine(queue_id)


class Sleepers:
    """As many sleeps as there are idle workers, who look and find nothing whenever one ends."""

    def __init__(self, url: str, count: int) -> None:
        self._pool = Pool(url, size=1, connect_timeout=30.0)
        self._stopping = threading.Event()
        self.each = [CountingSleeper(self._pool, [1]) for _ in range(count)]
        self._threads = [threading.Thread(target=self._sleep, args=(each,)) for each in self.each]
        for thread in self._threads:
            thread.start()

    def total(self) -> int:
        return sum(each.received for each in self.each)

    def stop(self) -> None:
        self._stopping.set()
        for each in self.each:
            each.wake()
        for thread in self._threads:
            thread.join()
        self._pool.close()

    def _sleep(self, sleeper: CountingSleeper) -> None:
        while not self._stopping.is_set():
            sleeper.wait(60.0)
        sleeper.close()


@pytest.fixture
def sleepers(pg_url: str, connect: Connect) -> Iterator[Callable[[int], Sleepers]]:
    made: list[Sleepers] = []

    def make(count: int) -> Sleepers:
        made.append(Sleepers(pg_url, count))
        session = connect("observer")
        until(lambda: locks_held(session) == count, 60)
        return made[-1]

    yield make
    for each in made:
        each.stop()


def enqueue_one_by_one(cluster: Cluster, url: str, count: int, tag: str) -> float:
    """In a process of its own, one commit each; jobs a second."""
    assert cluster.bindir is not None
    statements = "".join(
        f"select dever.enqueue('{TARGET}', '{tag}-{number}', '1');\n" for number in range(count)
    )
    started = time.perf_counter()
    psql = [cluster.bindir / "psql", "-X", "-q", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", url]
    subprocess.run(psql, input=statements, text=True, check=True)
    return count / (time.perf_counter() - started)


@pytest.mark.req("R4.7")
def test_200_sleepers_get_one_notification_each_for_10000_jobs_in_one_transaction(
    engine: PostgresEngine, connect: Connect, sleepers: Callable[[int], Sleepers]
):
    asleep = sleepers(200)
    session = connect()
    with session.transaction():
        for part in range(10):
            session.execute(
                "select dever.enqueue_many(%s,"
                " array(select %s || g from generate_series(1, 1000) as g),"
                " array_fill('1'::jsonb, array[1000]))",
                [TARGET, f"{part}-"],
            )
    # Once more asleep: whatever was sent has arrived.
    until(lambda: all(each.received for each in asleep.each) and locks_held(session) == 200, 30)
    assert {each.received for each in asleep.each} == {1}


@pytest.mark.req("R4.7")
def test_nobody_asleep_means_no_notification(
    engine: PostgresEngine, connect: Connect, pg_cluster: Cluster, pg_url: str
):
    awake = connect("awake")
    awake.execute("listen dever")
    enqueue_one_by_one(pg_cluster, pg_url, 200, "k")
    awake.execute("select 1")
    assert list(awake.notifies(timeout=0.2)) == []


@pytest.mark.req("R4.7")
def test_many_commits_with_200_sleepers_are_no_storm(
    engine: PostgresEngine,
    connect: Connect,
    pg_cluster: Cluster,
    pg_url: str,
    sleepers: Callable[[int], Sleepers],
):
    """Whoever is woken for nothing again and again wants to be woken less often, and the server
    wakes nobody who is awake. The rate is printed and not asserted: what is left of it on a small
    machine is what the sleepers themselves need."""
    commits = 4_000
    alone = enqueue_one_by_one(pg_cluster, pg_url, commits // 4, "alone")
    asleep = sleepers(200)
    beside = enqueue_one_by_one(pg_cluster, pg_url, commits, "beside")
    session = connect("settled")
    until(lambda: locks_held(session) == 200, 30)
    each = asleep.total() / 200
    print(
        f"{commits} commits: {each:.0f} notifications for each of 200 sleepers;"
        f" {beside / alone:.0%} of the rate without them"
    )
    assert 1 <= each <= commits / 20


@pytest.mark.req("R4.7")
def test_a_notification_for_the_queues_of_others_does_not_end_the_sleep(
    pg_url: str, connect: Connect
):
    pool, session = Pool(pg_url, size=1, connect_timeout=30.0), connect()
    sleeper = CountingSleeper(pool, [1])
    assert sleeper.wait(60.0), "it listens from now on"
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(sleeper.wait(60.0)))
    thread.start()
    session.execute("select pg_notify('dever', '2')")
    until(lambda: sleeper.received == 1, 30)
    session.execute("select pg_notify('dever', '1')")
    thread.join()
    sleeper.close()
    pool.close()
    assert (woken, sleeper.received) == ([True], 2)


@pytest.mark.req("R4.7")
def test_messages_and_later_jobs(engine: PostgresEngine, connect: Connect):
    """A job that is due later wakes nobody: there is nothing to do yet."""
    listener, session = connect("listener"), connect()
    listener.execute("listen dever")
    listener.execute(f"select pg_try_advisory_lock_shared({LOCK})")
    session.execute("select dever.enqueue(%s, 'k', '1', now() + interval '1 hour')", [TARGET])
    listener.execute("select 1")
    assert list(listener.notifies(timeout=0.2)) == []
    session.execute("select dever.send('default', '1')")
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1


@pytest.mark.req("R4.7")
def test_the_lock_is_never_left_behind(engine: PostgresEngine, connect: Connect):
    """An enqueuer that kept its side of the lock would make every other one notify for nothing."""
    session = connect(autocommit=False)
    session.execute("select dever.enqueue(%s, 'k', '1')", [TARGET])
    session.rollback()
    with suppress(psycopg.Error):
        session.execute("select dever.enqueue(%s, '', '1')", [TARGET])
    session.rollback()
    held = connect().execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone()
    assert held == (0,)


class Sleeping:
    """A worker with one job that notes when it starts."""

    def __init__(self, engine: PostgresEngine, poll_ms: int) -> None:
        self.engine = engine
        self.started: dict[str, float] = {}
        self.task = task(self._handler, target="test.noted", decode=lambda text: [text])
        self.worker = Worker(engine, [self.task], WorkerOptions(workers=2, poll_ms=poll_ms))
        engine.register(None, [self.task.contract], timedelta(minutes=1))
        self.worker.start()

    async def _handler(self, name: str) -> None:
        self.started[name] = time.monotonic()

    def pick_up(self, name: str) -> float:
        """Seconds from the commit of a job to its start."""
        self.engine.enqueue_as("test.noted", self.task.fingerprint, [name], [f'"{name}"'])
        committed = time.monotonic()
        until(lambda: f'"{name}"' in self.started, 30)
        return self.started[f'"{name}"'] - committed

    def stop(self) -> None:
        self.worker.stop()
        self.worker.wait(20)


def locks_held(session: psycopg.Connection[Any]) -> int:
    row = session.execute(
        "select count(*) from pg_locks where locktype = 'advisory' and granted"
    ).fetchone()
    assert row is not None
    return row[0]


def lock_is_held(session: psycopg.Connection[Any]) -> bool:
    return locks_held(session) > 0


@pytest.mark.req("R4.7", "R4.5")
def test_a_sleeping_worker_starts_a_job_within_milliseconds_of_its_commit(
    engine: PostgresEngine, connect: Connect
):
    session = connect()
    sleeping = Sleeping(engine, poll_ms=60_000)
    took: list[float] = []
    for number in range(15):
        until(lambda: lock_is_held(session))
        took.append(sleeping.pick_up(f"k{number}"))
    sleeping.stop()
    assert statistics.median(took) < 0.1, took
    assert max(took) < 5, took


@pytest.mark.req("R8.5")
def test_a_killed_listening_session_costs_at_most_the_poll_interval(
    engine: PostgresEngine, connect: Connect
):
    session = connect()
    sleeping = Sleeping(engine, poll_ms=500)
    until(lambda: lock_is_held(session))
    for number in range(3):
        session.execute(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'"
        )
        assert sleeping.pick_up(f"k{number}") < 0.5 + 1.0
    until(lambda: lock_is_held(session), 30)
    sleeping.stop()


@pytest.mark.req("R8.5", "R4.7")
def test_lost_notifications_cost_at_most_the_poll_interval(
    engine: PostgresEngine, connect: Connect
):
    """The worker sleeps, the commits notify, and nothing arrives where it listens."""
    session = connect()
    sleeping = Sleeping(engine, poll_ms=500)
    until(lambda: lock_is_held(session))
    definition = session.execute(
        "select pg_get_functiondef('dever.wake(bigint)'::regprocedure)"
    ).fetchone()
    assert definition is not None
    assert "pg_notify('dever'" in definition[0]
    session.execute(definition[0].replace("pg_notify('dever'", "pg_notify('elsewhere'"))
    for number in range(5):
        until(lambda: lock_is_held(session))
        assert sleeping.pick_up(f"k{number}") < 0.5 + 1.0
    sleeping.stop()


@pytest.mark.req("R8.5")
def test_a_frozen_listener_keeps_nobody_from_waking(engine: PostgresEngine, connect: Connect):
    """It holds its lock and reads nothing: enqueuers notify for it, others are woken as ever."""
    frozen = connect("frozen")
    frozen.execute("listen dever")
    frozen.execute(f"select pg_try_advisory_lock_shared({LOCK})")
    sleeping = Sleeping(engine, poll_ms=60_000)
    took = []
    for number in range(5):
        time.sleep(0.3)
        took.append(sleeping.pick_up(f"k{number}"))
    sleeping.stop()
    assert statistics.median(took) < 0.5, took


@pytest.mark.req("R4.7")
def test_an_idle_worker_asks_little(engine: PostgresEngine, connect: Connect, pg_cluster: Cluster):
    """Statements counted in the server's log."""
    if pg_cluster.log is None:
        pytest.skip("the log of an outside server is out of reach")
    session = connect()
    database = session.info.dbname
    session.execute(f"alter database {database} set log_min_duration_statement = 0")
    own = PostgresEngine(pg_cluster.url(database))
    sleeping = Sleeping(own, poll_ms=1_000)
    until(lambda: lock_is_held(session))
    time.sleep(2)  # the first looks come at shorter intervals
    before, seconds = pg_cluster.log.stat().st_size, 10.0
    time.sleep(seconds)
    with pg_cluster.log.open(errors="replace") as log:
        log.seek(before)
        asked = Counter(
            found.group(1)
            for line in log
            if f" {database} " in line
            and (found := re.search(r"ms  (?:statement|execute [^:]*): (.*?)\(", line))
        )
    sleeping.stop()
    own.close()
    per_minute = asked.total() * 60 / seconds
    print(f"{per_minute:.0f} statements a minute: {dict(asked)}")
    # A look and a tick of the schedules a second, sweeps, signs of life.
    assert per_minute <= 60 + 60 + 60, asked
