"""The runner of schedules and its lock (R7.5)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from engines import START, Clock, Installed, Raw

from dever_sql.async_store import AsyncStore
from dever_sql.engine import Engine
from dever_sql.errors import LeadershipLost
from dever_sql.scheduler import run_schedules
from dever_sql.store import Store

SECOND = timedelta(seconds=1)
PATIENCE = 10.0


class Runner:
    """`run_schedules` on a thread, and what came of it."""

    def __init__(self, engine: Engine) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._engine = engine
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            run_schedules(self._engine, self.stop)
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def running(engine: Engine) -> Iterator[Runner]:
    runner = Runner(engine)
    try:
        until(lambda: bool(engine.locks()) or runner.error is not None)
        yield runner
    finally:
        runner.stop.set()
        runner.join()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


@pytest.mark.req("R7.5")
def test_a_runner_fires_what_is_due_and_ends_cleanly(engine: Engine, clock: Clock) -> None:
    engine.schedule("s", "@every 3s", "q")
    with running(engine) as runner:
        (lock,) = engine.locks()
        assert (lock.name, lock.expires_at) == ("__dever_scheduler", START + 10 * SECOND)
        for n in range(1, 4):
            # The first time perhaps between a renewal and its tick, so two steps fit into a lease.
            clock.advance(3)
            until(lambda n=n: len(engine.jobs()) == n)
    assert runner.error is None
    assert engine.locks() == []


@pytest.mark.req("R7.5")
def test_a_schedule_that_is_added_while_the_runner_sleeps_fires_in_time(
    engine: Engine, clock: Clock
) -> None:
    engine.schedule("far", "@every 30d", "q")
    with running(engine):
        engine.schedule("near", "@every 1s", "q")
        clock.advance(1)
        started = time.monotonic()
        until(lambda: len(engine.jobs()) == 1)
        assert time.monotonic() - started < 2


@pytest.mark.req("R7.5")
def test_a_second_runner_is_refused_before_it_fires_anything(engine: Engine, clock: Clock) -> None:
    assert engine.scheduler_acquire("another", 10 * SECOND) is not None
    engine.schedule("s", "@every 1s", "q")
    clock.advance(5)
    with pytest.raises(LeadershipLost):
        run_schedules(engine, threading.Event())
    assert engine.jobs() == []
    assert engine.locks()[0].owner == "another"


@pytest.mark.req("R7.5")
def test_a_runner_that_was_frozen_past_its_lease_fires_nothing(
    engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.schedule("s", "@every 10s", "q")
    asleep = threading.Event()
    next_tick_at = engine.next_tick_at

    def seen_asleep() -> datetime | None:
        asleep.set()
        return next_tick_at()

    monkeypatch.setattr(engine, "next_tick_at", seen_asleep)
    with running(engine) as runner:
        assert asleep.wait(PATIENCE)
        clock.advance(10)
        runner.join()
    assert isinstance(runner.error, LeadershipLost)
    assert engine.jobs() == []


@pytest.mark.req("R7.5")
def test_a_runner_notices_in_its_sleep_that_the_lock_is_gone(engine: Engine, raw: Raw) -> None:
    with running(engine) as runner:
        raw.execute("delete from {lock} where name = '__dever_scheduler'")
        started = time.monotonic()
        runner.join()
        assert time.monotonic() - started < 4
    assert isinstance(runner.error, LeadershipLost)


@pytest.mark.req("R7.5")
def test_the_lock_is_renewed_in_a_long_sleep(engine: Engine, clock: Clock) -> None:
    with running(engine) as runner:
        for _ in range(2):
            clock.advance(7)
            until(lambda: engine.locks()[0].expires_at == clock.now + 10 * SECOND)
    assert runner.error is None


@pytest.mark.req("R7.5")
def test_leaders_take_turns(engine: Engine, clock: Clock) -> None:
    owners: set[str] = set()
    for _ in range(3):
        with running(engine):
            owners.add(engine.locks()[0].owner)
    assert len(owners) == 3


@pytest.mark.req("R7.5")
def test_even_with_the_lock_broken_a_window_fires_once(
    engine: Engine, clock: Clock, raw: Raw
) -> None:
    engine.schedule("s", "@every 1s", "q")
    with running(engine):
        raw.execute("delete from {lock} where name = '__dever_scheduler'")
        with running(engine):
            for _ in range(5):
                clock.advance(1)
                engine.tick()
    assert len({row.key for row in engine.jobs()}) == len(engine.jobs())


@pytest.mark.req("R7.5")
def test_the_same_from_a_store(installed: Installed, clock: Clock) -> None:
    with Store.open(installed.url) as store:
        store.schedule("s", "@every 5s", "q", {"n": 1})
        stop = threading.Event()
        thread = threading.Thread(target=store.run_schedules, args=(stop,))
        thread.start()
        until(lambda: bool(store.engine.locks()))
        clock.advance(5)
        until(lambda: len(store.jobs(queue="q")) == 1)
        stop.set()
        thread.join(PATIENCE)
        (message,) = store.queue("q").claim(1, worker="w")
        assert message.payload == {"n": 1}


@pytest.mark.req("R7.5")
@pytest.mark.asyncio
async def test_the_same_from_an_async_store(installed: Installed, clock: Clock) -> None:
    async with await AsyncStore.open(installed.url) as store:
        await store.schedule("s", "@every 5s", "q")
        stop = asyncio.Event()
        task = asyncio.create_task(store.run_schedules(stop))
        while not store.engine.locks():
            await asyncio.sleep(0.01)
        with pytest.raises(LeadershipLost):
            await store.run_schedules(stop)
        clock.advance(5)
        while not await store.jobs(queue="q"):
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.wait_for(task, PATIENCE)
        assert store.engine.locks() == []
