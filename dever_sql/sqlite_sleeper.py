"""Sleeping until something was committed to an SQLite file.

This process's own commits set an event; those of other processes change `pragma data_version` on an
idle connection, which is asked every few milliseconds. Neither holds anything open.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Final

from .sqlite_errors import own_error
from .sqlite_file import MEMORY, SqliteFile

_LOOKS: Final = (0.005, 0.05)
"""Shortest and longest pause between two looks at other processes' commits, in seconds; it grows
while nothing happens."""
_GROWTH: Final = 1.2


class SqliteSleeper:
    """One worker's sleep. Used from one thread; `wake` from any.

    The first `wait` returns at once: a commit may have slipped in between the worker's last look
    and the first one here.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._woken = threading.Event()
        self._woken.set()
        self._watcher: sqlite3.Connection | None = None
        self._seen: int | None = None
        file.add_waker(self._woken.set)

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        pause = _LOOKS[0]
        while True:
            if self._changed() or self._woken.is_set():
                self._woken.clear()
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._woken.wait(min(left, pause))
            pause = min(pause * _GROWTH, _LOOKS[1])

    def awake(self) -> None:
        """Nobody looks whether it sleeps, so there is nothing to take back."""

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._file.remove_waker(self._woken.set)
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _changed(self) -> bool:
        if self._file.path == MEMORY:
            return False
        if self._watcher is None:
            self._watcher = self._file.watcher()
        try:
            version = self._watcher.execute("pragma data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise own_error(error, self._file.path) from None
        changed = self._seen is not None and version != self._seen
        self._seen = version
        return changed
