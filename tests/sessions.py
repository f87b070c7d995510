"""Two and more PostgreSQL sessions whose order a test decides, without sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

Session = psycopg.Connection[Any]

PATIENCE = 20.0


class Blocked:
    """A call in another session that may be waiting for a lock."""

    def __init__(self, session: Session, observer: Session, call: Callable[[Session], Any]) -> None:
        self._pid = session.info.backend_pid
        self._observer = observer
        self._pool = ThreadPoolExecutor(1)
        self.future: Future[Any] = self._pool.submit(call, session)
        # The thread ends with its one call.
        self._pool.shutdown(wait=False)

    def is_waiting(self) -> bool:
        """True once it waits for a lock, False once it has ended: one of the two comes."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.future.done():
                return False
            row = self._observer.execute(
                "select wait_event_type from pg_catalog.pg_stat_activity where pid = %s",
                [self._pid],
            ).fetchone()
            if row is not None and row[0] == "Lock":
                return True
            time.sleep(0.001)
        raise AssertionError("neither ended nor waits for a lock")

    def result(self) -> Any:
        return self.future.result(PATIENCE)
