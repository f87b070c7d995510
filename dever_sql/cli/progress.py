"""One line on standard error about what is left, while a worker works until idle."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Final

from dever_sql.engine import Engine, QueueRow
from dever_sql.errors import DeverError

_DRAWN_SECONDS: Final = 0.2
_PLAIN_SECONDS: Final = 1.0


class Progress:
    """A context manager; afterwards `dead` is how many jobs became dead meanwhile.

    `watched`: databases, each with the queues that the worker serves there. What happens in others
    is not its work.
    """

    def __init__(self, watched: Sequence[tuple[Engine, Collection[str]]]) -> None:
        self.dead = 0
        self._watched = watched
        self._ended = threading.Event()
        self._drawn = sys.stderr.isatty()
        self._thread = threading.Thread(target=self._watch, name="dever-progress", daemon=True)
        self._dead_before = 0
        self._shown = ""

    def __enter__(self) -> Progress:
        self._dead_before = sum(queue.dead for queue in self._queues())
        self._show()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None:
            self._show()
        if self._drawn:
            print(file=sys.stderr)

    def _queues(self) -> list[QueueRow]:
        return [
            queue
            for engine, names in self._watched
            for queue in engine.queues()
            if queue.queue in names
        ]

    def _watch(self) -> None:
        while not self._ended.wait(_DRAWN_SECONDS if self._drawn else _PLAIN_SECONDS):
            try:
                self._show()
            except DeverError:
                continue  # the worker itself says what is wrong with the database

    def _show(self) -> None:
        queues = self._queues()
        self.dead = sum(queue.dead for queue in queues) - self._dead_before
        ready = sum(queue.ready for queue in queues)
        running = sum(queue.running for queue in queues)
        later = sum(queue.scheduled for queue in queues)
        line = f"{ready} ready, {running} running, {later} for later, {self.dead} dead"
        if line == self._shown:
            return
        self._shown = line
        if self._drawn:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
