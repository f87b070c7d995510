"""The work nobody waits for: sweeping and firing schedules, at a relaxed pace."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from .engine import Engine
from .errors import DeverError
from .events import log_event
from .outage import Backoff, Outage

_SWEEP_EVERY: Final = (1.0, 4.0)
_SWEEP_ROWS: Final = 1_000
_TICK_EVERY: Final = 1.0
_TICK_ROWS: Final = 100


class Housekeeper:
    """Calls `sweep` and `tick` on its own thread. Any number of workers may do so at once."""

    def __init__(self, engine: Engine, worker: str, outage: Outage) -> None:
        self._engine = engine
        self._worker = worker
        self._outage = outage
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dever-sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def sweep(self) -> int:
        """Sweep once; the number of rows dealt with."""
        done = self._engine.sweep(_SWEEP_ROWS)
        if done:
            log_event("info", "swept", worker=self._worker, **done)
        return sum(done.values())

    def tick(self) -> int:
        """Fire what is due; the number of occurrences created."""
        fired = self._engine.tick(_TICK_ROWS)
        for occurrence in fired:
            log_event(
                "info",
                "schedule fired",
                worker=self._worker,
                schedule=occurrence.schedule,
                fire_at=occurrence.fire_at.isoformat(),
                id=occurrence.job_id,
            )
        return len(fired)

    def _serve(self) -> None:
        backoff = Backoff()
        now = time.monotonic()
        next_sweep = now + random.uniform(0.0, _SWEEP_EVERY[0])
        next_tick = now
        while not self._ended.wait(max(0.0, min(next_sweep, next_tick) - time.monotonic())):
            try:
                if time.monotonic() >= next_tick:
                    full = self.tick() >= _TICK_ROWS
                    next_tick = time.monotonic() + (0.0 if full else _TICK_EVERY)
                if time.monotonic() >= next_sweep:
                    full = self.sweep() >= _SWEEP_ROWS
                    next_sweep = time.monotonic() + (0.0 if full else random.uniform(*_SWEEP_EVERY))
                backoff.reset()
            except Exception as error:
                if not isinstance(error, DeverError):
                    log_event("error", "sweep failed", error=type(error).__name__)
                self._outage.trouble(error, "sweep and fire schedules")
                self._ended.wait(backoff.next())
