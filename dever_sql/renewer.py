"""Keeping leases alive, on a thread of its own that no handler can hold up (R4.8).

One call renews everything the worker holds, every third of a lease; another says every few seconds
that the worker lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from .engine import Engine
from .errors import DeverError
from .events import log_event
from .outage import Backoff, Outage
from .run import Run

ALIVE: Final = timedelta(seconds=45)
"""How long a worker counts as live after its last word."""
_ALIVE_EVERY: Final = 5.0
_BUSY_PART: Final = 10
"""A row that another transaction held is asked for again after this part of a lease."""


class Renewer:
    """Renews the runs that `held` returns. `lost` is called for each whose lease is gone,
    `forgotten` when the database does not know the worker any more."""

    def __init__(
        self,
        engine: Engine,
        worker: str,
        lease: timedelta,
        outage: Outage,
        *,
        held: Callable[[], Sequence[Run]],
        lost: Callable[[Run], None],
        forgotten: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._lease = lease
        self._lease_seconds = lease.total_seconds()
        self._outage = outage
        self._held = held
        self._lost = lost
        self._forgotten = forgotten
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dever-renew", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _serve(self) -> None:
        # A lease must not run out while we wait for a database that is back already.
        backoff = Backoff(min(4.0, self._lease_seconds / _BUSY_PART))
        third = self._lease_seconds / 3
        next_renewal = time.monotonic() + third
        next_word = time.monotonic() + _ALIVE_EVERY
        while not self._ended.wait(max(0.0, min(next_renewal, next_word) - time.monotonic())):
            try:
                # Renewals come first: a late word costs nothing.
                if time.monotonic() >= next_renewal:
                    busy = self._renew(self._held())
                    pause = self._lease_seconds / _BUSY_PART if busy else third
                    next_renewal = time.monotonic() + pause
                if time.monotonic() >= next_word:
                    if not self._engine.alive(self._worker, ALIVE):
                        self._forgotten()
                    next_word = time.monotonic() + _ALIVE_EVERY
                backoff.reset()
                self._outage.over()
            except Exception as error:
                if not isinstance(error, DeverError):
                    log_event("error", "renewal failed", error=type(error).__name__)
                self._outage.trouble(error, "renew leases")
                self._lose_expired()
                self._ended.wait(backoff.next())

    def _renew(self, runs: Sequence[Run]) -> bool:
        """Whether a row was busy."""
        if not runs:
            return False
        asked = time.monotonic()
        verdicts = self._engine.renew(
            [run.claimed.id for run in runs], [run.claimed.token for run in runs], self._lease
        )
        by_id = {verdict.id: verdict.ok for verdict in verdicts}
        busy = False
        for run in runs:
            ok = by_id.get(run.claimed.id, False)
            if ok:
                run.lease_end = asked + self._lease_seconds
            elif ok is None:
                busy = True
            else:
                self._lost(run)
        return busy

    def _lose_expired(self) -> None:
        """Without an answer for a whole lease the job may be somebody else's by now."""
        now = time.monotonic()
        for run in self._held():
            if run.lease_end <= now:
                self._lost(run)
