"""Living through a database that is away: how long to wait, and how often to say so (R8.5)."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from .events import log_event

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 4.0
"""Trying is cheap, and work should go on within seconds of the database's return."""
_FIRST_SILENCE: Final = 1.0
_LONGEST_SILENCE: Final = 30.0


class Outage:
    """Shared by the threads of a worker, so that one outage is one story in the log.

    Lines come every second at first, then ever more rarely, down to one in 30 s.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._since: float | None = None
        self._silence = _FIRST_SILENCE
        self._say_after = 0.0

    def trouble(self, error: Exception, doing: str) -> None:
        """A call failed and will be made again."""
        now = time.monotonic()
        with self._lock:
            if self._since is None:
                self._since = now
                self._silence = _FIRST_SILENCE
                self._say_after = now
            if now < self._say_after:
                return
            self._say_after = now + self._silence
            self._silence = min(self._silence * 2, _LONGEST_SILENCE)
        log_event(
            "warning",
            "database unavailable, trying again",
            worker=self._worker,
            doing=doing,
            error=getattr(error, "message", type(error).__name__),
        )

    def over(self) -> None:
        """A call succeeded."""
        with self._lock:
            since, self._since = self._since, None
        if since is None:
            return
        seconds = time.monotonic() - since
        log_event(
            "info", "database available again", worker=self._worker, seconds=round(seconds, 1)
        )


class Backoff:
    """Growing pauses with jitter, for one thread, up to `longest` seconds."""

    def __init__(self, longest: float = _LONGEST_PAUSE) -> None:
        self._longest = longest
        self._pause = _FIRST_PAUSE

    def next(self) -> float:
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, self._longest)
        return pause

    def reset(self) -> None:
        self._pause = _FIRST_PAUSE
