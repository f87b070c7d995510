"""Runners and lock holders that are frozen and killed, each a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from dever_sql.errors import DatabaseUnavailable
from dever_sql.store import Store

RUNNER = """
import sys, threading, time
from dever_sql.errors import DatabaseUnavailable, LeadershipLost
from dever_sql.store import Store

store = Store.open(sys.argv[1])
while True:
    try:
        store.run_schedules(threading.Event())
    except (DatabaseUnavailable, LeadershipLost):
        time.sleep(0.2)
"""

HOLDER = """
import sys
from datetime import timedelta
from dever_sql.store import Store

lease = Store.open(sys.argv[1]).lock("report").acquire(timedelta(seconds=1))
print(lease.token, flush=True)
sys.stdin.readline()
print(lease.renew(), lease.release(), flush=True)
"""

SECOND = timedelta(seconds=1)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("pg_url"))


@contextmanager
def process(program: str, url: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", program, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def until(condition: Callable[[], bool], patience: float = 30.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def freeze(victim: subprocess.Popen[str], store: Store) -> None:
    """Stop the process, but not within a write transaction: on SQLite nobody could go on."""
    while True:
        victim.send_signal(signal.SIGSTOP)
        try:
            store.lock("probe").acquire(timedelta(microseconds=1))
        except DatabaseUnavailable:
            victim.send_signal(signal.SIGCONT)
            time.sleep(0.1)
        else:
            return


def leader(store: Store) -> int | None:
    """The process id in the owner of the scheduler's lock."""
    try:
        found = [lock.owner for lock in store.engine.locks() if lock.name == "__dever_scheduler"]
    except DatabaseUnavailable:
        return None
    return int(found[0].split(":")[1]) if found else None


@pytest.mark.req("R7.5", "R6.4", "R6.6")
def test_leaders_that_are_frozen_and_killed_leave_each_window_once(url: str) -> None:
    with Store.open(url) as store:
        stored = store.schedule("s", "@every 1s", "q")
        first = stored.next_at
        assert first is not None
        with (
            process(RUNNER, url) as one,
            process(RUNNER, url) as two,
            process(RUNNER, url) as three,
        ):
            by_pid = {runner.pid: runner for runner in (one, two, three)}
            until(lambda: len(store.jobs(queue="q")) >= 2)

            frozen = by_pid[leader(store) or 0]
            freeze(frozen, store)
            until(lambda: leader(store) not in (None, frozen.pid))
            frozen.send_signal(signal.SIGCONT)
            seen = len(store.jobs(queue="q", limit=1_000))
            until(lambda: len(store.jobs(queue="q", limit=1_000)) >= seen + 2)

            killed = by_pid[leader(store) or 0]
            assert killed is not frozen
            killed.kill()
            until(lambda: leader(store) not in (None, killed.pid))
            seen = len(store.jobs(queue="q", limit=1_000))
            until(lambda: len(store.jobs(queue="q", limit=1_000)) >= seen + 2)
        (row,) = store.schedules()
        keys = sorted(job.key or "" for job in store.jobs(queue="q", limit=1_000))
        windows = [int(key.rpartition(":")[2]) for key in keys]
        start = round(first.timestamp() * 1_000_000)
        assert windows == [start + n * 1_000_000 for n in range(len(windows))]
        assert (row.fired, row.skipped) == (len(windows), 0)


@pytest.mark.req("R7.7")
def test_a_holder_that_was_frozen_past_its_ttl_can_do_nothing(url: str) -> None:
    with Store.open(url) as store, process(HOLDER, url) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        old = int(holder.stdout.readline())
        assert store.lock("report").acquire(SECOND) is None
        freeze(holder, store)
        until(lambda: store.engine.locks() == [])
        new = store.lock("report").acquire(30 * SECOND)
        assert new is not None
        assert new.token > old
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "False False\n"
        (lock,) = store.engine.locks()
        assert lock.token == new.token
        assert new.release() is True
