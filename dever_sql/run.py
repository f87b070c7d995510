"""One attempt at one job: its state, and how its handler is called."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .engine import Claimed
from .job import JobContext, running


@dataclass(frozen=True, slots=True)
class Task:
    """A job that this process can run."""

    target: str
    fingerprint: str
    queue: str
    contract: Mapping[str, Any]
    """The element of `register`'s `contracts`."""
    timeout: float
    """Seconds."""
    handler: Callable[..., Any]
    is_async: bool
    decode: Callable[[str], Sequence[Any]]
    """The handler's arguments from the payload text; raises DeverError when it does not fit."""


class Run:
    """An attempt. The flags say why it was ended from outside; the worker's lock guards them."""

    __slots__ = (
        "arguments",
        "began_at",
        "begun",
        "claimed",
        "context",
        "cut_off",
        "deadline",
        "ended",
        "ended_at",
        "future",
        "lease_end",
        "lost",
        "recorded",
        "task",
        "timed_out",
    )

    def __init__(
        self,
        claimed: Claimed,
        task: Task,
        context: JobContext,
        arguments: Sequence[Any],
        deadline: float,
        lease_end: float,
    ) -> None:
        self.claimed = claimed
        self.task = task
        self.context = context
        self.arguments = arguments
        self.deadline = deadline
        """When it times out, by the monotonic clock."""
        self.lease_end = lease_end
        """Before this the lease cannot have run out, by the monotonic clock."""
        self.future: asyncio.Task[None] | None = None
        self.begun = False
        self.began_at = 0.0
        self.ended_at: float | None = None
        self.ended = False
        """The handler is over and its slot free."""
        self.recorded = False
        """An outcome was handed on; what the handler does now changes nothing."""
        self.timed_out = False
        self.lost = False
        self.cut_off = False

    @property
    def duration(self) -> float | None:
        """Seconds that the handler has run so far, or did; None when it did not begin."""
        if not self.begun:
            return None
        return round((self.ended_at or time.monotonic()) - self.began_at, 6)


Ended = Callable[[Run, BaseException | None], None]


async def call_async(run: Run, ended: Ended) -> None:
    """Run an async handler to its end, whatever it raises."""
    run.began_at = time.monotonic()
    run.begun = True
    running.set(run.context)
    error: BaseException | None = None
    try:
        await run.task.handler(*run.arguments)
    # SystemExit and KeyboardInterrupt too: a handler's exception is its attempt's failure and
    # would otherwise end the loop.
    except BaseException as caught:
        error = caught
    run.ended_at = time.monotonic()
    ended(run, error)


def call_sync(run: Run, ended: Ended) -> None:
    """Run a `def` handler to its end, whatever it raises."""
    run.began_at = time.monotonic()
    run.begun = True
    token = running.set(run.context)
    error: BaseException | None = None
    try:
        run.task.handler(*run.arguments)
    except BaseException as caught:
        error = caught
    finally:
        running.reset(token)
    run.ended_at = time.monotonic()
    ended(run, error)


_IDLE_SECONDS: Final = 5.0


class HandlerThreads:
    """Daemon threads for `def` handlers, so that one that never ends cannot hold up the exit.

    As many as run at once, which the worker's slots bound; idle ones end after a while.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._waiting.put(work)
                return
        threading.Thread(target=self._serve, args=(work,), name=self._name, daemon=True).start()

    def _serve(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            work()
            work = None
            with self._lock:
                self._idle += 1
            try:
                work = self._waiting.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    # Somebody may have counted on this thread in the last moment.
                    if self._idle > 0:
                        self._idle -= 1
                        return
                work = self._waiting.get()
