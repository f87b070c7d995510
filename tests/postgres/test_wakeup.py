"""Waking workers: at once when one sleeps, not at all when none does, and never needed."""

from __future__ import annotations

import re
import select
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


class Sleepers:
    """Sessions that behave as sleeping workers do: each listens, holds the shared lock, lets go of
    it when it is notified, and after some work sleeps again."""

    def __init__(self, connect: Connect, count: int, work: float) -> None:
        self.received: Counter[int] = Counter()
        self._work = work
        self._sessions = [connect(f"sleeper {number}") for number in range(count)]
        self._files = {session.fileno(): session for session in self._sessions}
        self._asleep_again: dict[int, float] = {}
        self._unanswered: set[int] = set()
        self._stopping = threading.Event()
        for session in self._sessions:
            session.execute("listen dever")
            session.execute(f"select pg_try_advisory_lock_shared({LOCK})")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def settle(self) -> None:
        """Wait until nothing more arrives."""
        before = -1
        while self.received.total() != before:
            before = self.received.total()
            time.sleep(0.3)

    def _serve(self) -> None:
        poll = select.poll()
        for file in self._files:
            poll.register(file, select.POLLIN)
        while not self._stopping.is_set():
            now = time.monotonic()
            for file, end in list(self._asleep_again.items()):
                if end <= now and file not in self._unanswered:
                    del self._asleep_again[file]
                    self._send(file, "pg_try_advisory_lock_shared")
            for file, _ in poll.poll(20):
                pgconn = self._files[file].pgconn
                pgconn.consume_input()
                while file in self._unanswered and not pgconn.is_busy():
                    if pgconn.get_result() is None:
                        self._unanswered.discard(file)
                found = 0
                while pgconn.notifies() is not None:
                    found += 1
                self.received[file] += found
                if found and file not in self._asleep_again and file not in self._unanswered:
                    self._send(file, "pg_advisory_unlock_shared")
                    self._asleep_again[file] = time.monotonic() + self._work

    def _send(self, file: int, function: str) -> None:
        """Without waiting for the answer: 200 sleepers answer at the same time."""
        pgconn = self._files[file].pgconn
        pgconn.send_query(f"select pg_catalog.{function}({LOCK})".encode())
        pgconn.flush()
        self._unanswered.add(file)


@pytest.fixture
def sleepers(connect: Connect) -> Iterator[Callable[..., Sleepers]]:
    made: list[Sleepers] = []

    def make(count: int, work: float = 0.5) -> Sleepers:
        made.append(Sleepers(connect, count, work))
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
    engine: PostgresEngine, connect: Connect, sleepers: Callable[..., Sleepers]
):
    asleep = sleepers(200, work=60.0)
    session = connect()
    with session.transaction():
        for part in range(10):
            session.execute(
                "select dever.enqueue_many(%s,"
                " array(select %s || g from generate_series(1, 1000) as g),"
                " array_fill('1'::jsonb, array[1000]))",
                [TARGET, f"{part}-"],
            )
    until(lambda: len(asleep.received) == 200)
    asleep.settle()
    assert set(asleep.received.values()) == {1}


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
    engine: PostgresEngine, pg_cluster: Cluster, pg_url: str, sleepers: Callable[..., Sleepers]
):
    """Once woken a worker is no reason for a notification: it looks by itself. The rate is printed
    and not asserted: what the sleepers cost on a small machine is mostly their own."""
    commits = 4_000
    alone = enqueue_one_by_one(pg_cluster, pg_url, commits // 4, "alone")
    asleep = sleepers(200)
    beside = enqueue_one_by_one(pg_cluster, pg_url, commits, "beside")
    asleep.settle()
    each = asleep.received.total() / 200
    print(
        f"{commits} commits: {each:.0f} notifications for each of 200 sleepers;"
        f" {beside / alone:.0%} of the rate without them"
    )
    # At most one a commit, and none while all are awake.
    assert 1 <= each < commits


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


def lock_is_held(session: psycopg.Connection[Any]) -> bool:
    row = session.execute(
        "select count(*) from pg_locks where locktype = 'advisory' and granted"
    ).fetchone()
    return row is not None and row[0] > 0


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
