"""Many tickers at once, and tickers that are killed: each window once, none missing (R6.4)."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from engines import START, Clock, Installed

from dever_sql.engine import Engine

MINUTE = timedelta(minutes=1)
TICKERS = 8
WINDOWS = 1_000
ROUND = 50


def at_once(work: list[Callable[[], None]]) -> None:
    """Run everything at one instant; raise what failed."""
    barrier = threading.Barrier(len(work))
    errors: list[BaseException] = []

    def run(one: Callable[[], None]) -> None:
        barrier.wait()
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.req("R6.4", "R7.5")
def test_eight_tickers_over_a_thousand_windows_make_a_thousand_rows(
    installed: Installed, engine: Engine, clock: Clock
) -> None:
    engine.schedule("s", "* * * * *", "q")
    seen: list[datetime] = []

    def tick() -> None:
        seen.extend(one.fire_at for one in engine.tick())

    for _ in range(WINDOWS // ROUND):
        clock.advance(ROUND * MINUTE)
        at_once([tick] * TICKERS)
        # A ticker that met a locked row has passed over it; nobody waits for anybody.
        tick()
    assert sorted(seen) == [START + n * MINUTE for n in range(1, WINDOWS + 1)]
    assert installed.raw.count("job") == WINDOWS
    (row,) = engine.schedules()
    assert (row.fired, row.skipped) == (WINDOWS, 0)


@pytest.mark.req("R6.4")
def test_storing_and_removing_between_ticks_doubles_no_window(
    installed: Installed, engine: Engine, clock: Clock
) -> None:
    seen: Counter[datetime] = Counter()
    lock = threading.Lock()

    def tick() -> None:
        fired = engine.tick()
        with lock:
            seen.update(one.fire_at for one in fired)

    def again() -> None:
        engine.unschedule("s")
        engine.schedule("s", "* * * * *", "q")

    engine.schedule("s", "* * * * *", "q")
    for _ in range(30):
        clock.advance(MINUTE)
        at_once([tick, tick, tick, again])
    assert max(seen.values(), default=0) <= 1
    assert installed.raw.count("job") == sum(seen.values())


@pytest.mark.req("R6.4")
def test_a_tick_that_is_killed_anywhere_loses_and_doubles_nothing(
    connect: Callable[..., psycopg.Connection[Any]],
) -> None:
    """K6: the backend is terminated at a random moment of the tick, 50 times."""
    rng = random.Random(6)
    admin, killer = connect("admin"), connect("killer")
    admin.execute("select dever.schedule('s' || n, '@every 1s', 'q') from generate_series(1, 20) n")
    killed = committed = 0
    lasts = 0.05
    for _ in range(50):
        # Forget the past, so that the next tick has 20 times about 50 windows to fire.
        admin.execute(
            "update dever.schedule"
            " set next_at = dever.clock() - interval '50 seconds', fired = 0, skipped = 0"
        )
        admin.execute("delete from dever.job")
        victim = connect("victim")
        timer = threading.Timer(
            rng.random() * 2 * lasts,
            killer.execute,
            ("select pg_terminate_backend(%s)", [victim.info.backend_pid]),
        )
        timer.start()
        try:
            victim.execute("select count(*) from dever.tick()")
        except psycopg.OperationalError:
            killed += 1
        timer.join()
        victim.close()
        (jobs, keys, fired, moved) = _one(
            admin,
            "select (select count(*) from dever.job), (select count(distinct key) from dever.job),"
            " sum(fired), count(*) filter (where last_at is not null and next_at > last_at"
            " and next_at > dever.clock() - interval '40 seconds') from dever.schedule",
        )
        assert jobs == keys == fired
        assert (jobs == 0 and moved == 0) or (jobs >= 20 * 50 and moved == 20)
        committed += jobs > 0
        # What was cut off is done by the next tick, all of it.
        started = time.perf_counter()
        admin.execute("select count(*) from dever.tick()")
        if jobs == 0:
            # The next kill shall come in the middle, whatever else the machine does.
            lasts = time.perf_counter() - started
        (late, skipped) = _one(
            admin, "select (select count(*) from dever.job), sum(skipped) from dever.schedule"
        )
        assert late >= 20 * 50
        assert skipped == 0
    assert killed > 5
    assert committed > 0


def _one(session: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    row = session.execute(query).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return tuple(row)
