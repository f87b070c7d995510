"""The runner of schedules for programs without a worker (R7.5); a worker ticks by itself.

The lock saves work, it decides nothing: the tick is serialised in the database, so a window is
fired once whatever a runner believes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from .engine import Engine
from .errors import DatabaseUnavailable, LeadershipLost
from .events import log_event
from .lock import unique_owner

LEASE: Final = timedelta(seconds=10)
_LOCK: Final = "__dever_scheduler"
_RENEW_EVERY: Final = 2.0
_LOOK_EVERY: Final = 0.5
"""Seconds between looks at the next window, which somebody else may have added meanwhile."""
_SHORTEST_PAUSE: Final = 0.02
_TICK_ROWS: Final = 100


def run_schedules(engine: Engine, stop: threading.Event) -> None:
    """Fire schedules until `stop` is set, as the only runner on this database.

    Takes the lock `__dever_scheduler` (lease 10 s) under an owner unique to this call, renews it
    before every tick and at least every 2 s. Raises LeadershipLost, before any tick, when another
    runner holds the lock or it was lost; call it again to wait for a turn.
    """
    owner = unique_owner()
    token = engine.scheduler_acquire(owner, LEASE)
    if token is None:
        raise LeadershipLost(
            "another runner holds the lock of the schedules", hint="call run_schedules again later"
        )
    try:
        while not stop.is_set():
            _renew(engine, owner, token)
            fired = engine.tick(_TICK_ROWS)
            if not fired:
                # What is due may be in another's hands; it is not worth a busy loop.
                stop.wait(_SHORTEST_PAUSE)
            for occurrence in fired:
                log_event(
                    "info",
                    "schedule fired",
                    schedule=occurrence.schedule,
                    fire_at=occurrence.fire_at.isoformat(),
                    id=occurrence.job_id,
                )
            _sleep(engine, stop, lambda: _renew(engine, owner, token))
    finally:
        # Out of reach it runs out by itself, and the error on its way is the one to see.
        with suppress(DatabaseUnavailable):
            engine.lock_release(_LOCK, owner, token)


def _renew(engine: Engine, owner: str, token: int) -> None:
    if not engine.lock_renew(_LOCK, owner, token, LEASE):
        raise LeadershipLost(
            "the lock of the schedules was lost, nothing was fired since",
            hint="call run_schedules again to wait for a turn",
        )


def _sleep(engine: Engine, stop: threading.Event, renew: Callable[[], None]) -> None:
    """Sleep until a window is due, renewing meanwhile. Returns early on `stop`."""
    renewed = time.monotonic()
    while not stop.is_set():
        due_at = engine.next_tick_at()
        pause = _LOOK_EVERY
        if due_at is not None:
            pause = min(pause, (due_at - engine.clock()).total_seconds())
            if pause <= 0:
                return
        stop.wait(pause)
        if time.monotonic() - renewed >= _RENEW_EVERY - _LOOK_EVERY:
            renew()
            renewed = time.monotonic()
