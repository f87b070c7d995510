"""The worker: claims what it has free slots for, runs it, and hands the outcomes on.

Claiming, running, finishing, renewing and sweeping overlap, each on its own thread:

    control (this file)   registers, claims, sleeps; at the end drains, cuts off, releases
    loop                  runs async handlers and times everything out (runner)
    finisher, renewer, housekeeper

`def` handlers have daemon threads. What decides about a job is in the database.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

from .engine import Engine, Sleeper
from .errors import DatabaseUnavailable, DeverError
from .events import log_event
from .failure import describe
from .finisher import Finisher
from .housekeeper import Housekeeper
from .outage import Backoff, Outage
from .renewer import ALIVE, Renewer
from .run import Task
from .runner import Runner

_SHORT_LEASE_MS: Final = 5_000
_FIRST_PAUSE: Final = 0.005
"""Seconds of the first pause after an empty look; they double up to the poll interval."""
_JOIN_SECONDS: Final = 2.0
"""What a cancelled handler has to clean up at a shutdown."""
_FLUSH_SECONDS: Final = 5.0
_SLOT_SHARE: Final = 2
_SLOT_WAIT: Final = 0.002
"""While there is more work than slots, a claim waits this long for half of the slots."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works. Durations in milliseconds; see R8.3 for the ranges in settings.

    `workers`: how many jobs run at once. `queues`: None for all queues of the jobs.
    """

    workers: int = 4
    poll_ms: int = 250
    lease_ms: int = 60_000
    retry_base_ms: int = 1_000
    retry_max_ms: int = 300_000
    retry_jitter: float = 0.0
    error_detail: Literal["type", "message"] = "type"
    queues: Sequence[str] | None = None
    shutdown_ms: int = 30_000
    name: str | None = None


def worker_name() -> str:
    """A name nobody else has: host, process and a random part."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}"


class Worker:
    """Runs `tasks` from `engine` until it is stopped. Nothing starts before `start` or `run`.

    One use only: after the end make a new one.
    """

    def __init__(
        self, engine: Engine, tasks: Sequence[Task], options: WorkerOptions | None = None
    ) -> None:
        self.options = options or WorkerOptions()
        self.name = self.options.name or worker_name()
        self._engine = engine
        self._contracts = [task.contract for task in tasks]
        self._queues = list(self.options.queues or dict.fromkeys(task.queue for task in tasks))
        self._lease = timedelta(milliseconds=self.options.lease_ms)
        self._poll = self.options.poll_ms / 1000
        self._contract_ids: list[int] = []
        self._registered = False
        self._turn = 0

        self._runner = Runner(
            engine,
            self.name,
            tasks,
            slots=self.options.workers,
            lease=self._lease,
            with_message=self.options.error_detail == "message",
            finish=lambda outcome: self._finisher.put(outcome),
        )
        self._changed = self._runner.changed
        """Guards what follows too; notified when slots became free or the worker is stopped."""
        self._stopping = False
        self._aborted = False

        self._until_idle = False
        self._limit: int | None = None
        self._failure: BaseException | None = None
        self._part_failure: BaseException | None = None
        self._done = threading.Event()
        self._exit_code = 0
        self._own_loop: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sleeper: Sleeper | None = None
        self._outage = Outage(self.name)
        self._finisher = Finisher(
            engine, self.name, self._outage, self._runner.settle, self._part_failed
        )
        self._renewer = Renewer(
            engine,
            self.name,
            self._lease,
            self._outage,
            held=self._runner.held,
            lost=self._runner.lose,
            forgotten=self._forget,
        )
        self._housekeeper = Housekeeper(engine, self.name, self._outage)

    # --- starting and stopping --------------------------------------------------------------

    def run(self, *, until_idle: bool = False, limit: int | None = None) -> int:
        """Work until stopped; 0 after a clean drain, 1 when work was cut off (R8.4).

        `until_idle`: stop by itself once nothing is due any more; `limit`: or once that many jobs
        were started. Raises what makes the start impossible, such as InstallError.
        """
        self.start(until_idle=until_idle, limit=limit)
        return self.wait()

    async def arun(self) -> int:
        """`run` on the running loop: async handlers share it with the rest of the program."""
        self.start(loop=asyncio.get_running_loop())
        try:
            while not self._done.is_set():
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.stop()
            while not self._done.is_set():
                await asyncio.sleep(0.02)
            raise
        return self.wait()

    def drain(self, limit: int | None = None) -> int:
        """Run what is due, and what that leads to, then stop; the number of jobs started.

        For tests and `dever worker --until-idle`: what is due later is left alone.
        """
        self.run(until_idle=True, limit=limit)
        return self._runner.started

    def start(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        until_idle: bool = False,
        limit: int | None = None,
    ) -> None:
        """Begin to work in the background. `loop`: where async handlers run, else an own one."""
        if self.options.lease_ms < _SHORT_LEASE_MS:
            log_event(
                "warning",
                "the lease is shorter than 5 s: a busy interpreter may lose it",
                worker=self.name,
                lease_ms=self.options.lease_ms,
            )
        self._until_idle = until_idle
        self._limit = limit
        if loop is None:
            loop = asyncio.new_event_loop()
            self._own_loop = threading.Thread(
                target=_run_loop, args=(loop,), name="dever-loop", daemon=True
            )
            self._own_loop.start()
        self._loop = loop
        self._runner.use_loop(loop)
        threading.Thread(target=self._control, name="dever-worker", daemon=True).start()

    def stop(self) -> None:
        """Claim nothing more, drain, and end. Safe from any thread and from a signal handler."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._sleeper is not None:
            self._sleeper.wake()

    def abort(self) -> None:
        """Like `stop`, without waiting for running handlers."""
        with self._changed:
            self._aborted = True
        self.stop()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code. Raises what made the start impossible."""
        if not self._done.wait(timeout):
            raise TimeoutError("the worker is still working")
        if self._failure is not None:
            raise self._failure
        return self._exit_code

    def _part_failed(self, error: BaseException) -> None:
        """A thread of the worker ended by a fault: so must the worker, its leases run out."""
        self._part_failure = error
        self.stop()

    # --- the control thread -----------------------------------------------------------------

    def _control(self) -> None:
        try:
            if self._begin():
                self._work()
                if self._part_failure is not None:
                    raise self._part_failure
                self._shut_down()
        except BaseException as error:
            self._failure = error
            self._exit_code = 1
            log_event(
                "error",
                "worker failed",
                worker=self.name,
                error=error.message if isinstance(error, DeverError) else describe(error),
            )
        finally:
            self._finisher.close()
            self._renewer.close()
            self._housekeeper.close()
            if self._sleeper is not None:
                self._sleeper.close()
            self._end_loop()
            self._done.set()

    def _begin(self) -> bool:
        """Register; False when stopped before that worked."""
        self._finisher.start()
        backoff = Backoff()
        while not self._stopping:
            try:
                self._register()
                break
            except DatabaseUnavailable as error:
                self._outage.trouble(error, "register the worker")
                self._pause(backoff.next())
        else:
            return False
        self._outage.over()
        self._renewer.start()
        if not self._until_idle:
            self._housekeeper.start()
        log_event(
            "info",
            "worker started",
            worker=self.name,
            slots=self.options.workers,
            queues=",".join(self._queues),
            jobs=len(self._contracts),
        )
        return True

    def _register(self) -> None:
        about = {"host": socket.gethostname(), "pid": os.getpid(), "version": _version()}
        known = self._engine.register(self.name, self._contracts, ALIVE, about)
        self._contract_ids = sorted(row.contract_id for row in known)
        self._registered = True

    def _work(self) -> None:
        backoff = Backoff()
        pause = _FIRST_PAUSE
        pressed = False
        while True:
            free = self._wait_for_slots(pressed)
            if free == 0:
                return
            try:
                if not self._registered:
                    self._register()
                quiet = self._is_quiet()
                found = self._claim(free)
                self._outage.over()
                backoff.reset()
                pressed = found >= free
                if found:
                    pause = _FIRST_PAUSE
                    if self._sleeper is not None:
                        self._sleeper.awake()
                elif self._until_idle:
                    if not quiet:
                        self._quieten()
                    elif self._housekeeper.tick() + self._housekeeper.sweep() == 0:
                        return
                elif self._sleep(pause):
                    pause = _FIRST_PAUSE
                else:
                    pause = min(pause * 2, self._poll)
            except DeverError as error:
                # Also one that is not about the connection: rights or a schema may come back,
                # and the leases held meanwhile must not be let go.
                self._outage.trouble(error, "claim jobs")
                self._pause(backoff.next())

    def _wait_for_slots(self, pressed: bool) -> int:
        """Free slots, as soon as there is one; 0 when it is time to stop."""
        with self._changed:
            while True:
                if self._stopping:
                    return 0
                free = self._runner.free
                if self._limit is not None:
                    free = min(free, self._limit - self._runner.started)
                    if self._runner.started >= self._limit:
                        return 0
                if free > 0:
                    break
                self._changed.wait()
            # More work than slots: one claim for several slots is cheaper than one for each.
            wanted = self.options.workers // _SLOT_SHARE
            if pressed and free < wanted and self._limit is None:
                self._runner.slots_wanted = wanted
                self._changed.wait(_SLOT_WAIT)
                self._runner.slots_wanted = 1
                free = self._runner.free
            return 0 if self._stopping else free

    def _claim(self, free: int) -> int:
        """Claim up to `free` jobs and start them; the queues take turns at going first."""
        found = 0
        count = len(self._queues)
        self._turn += 1
        for offset in range(count):
            if self._stopping:
                break
            queue = self._queues[(self._turn + offset) % count]
            asked = time.monotonic()
            claimed = self._engine.claim(
                queue, self.name, free - found, self._lease, self._contract_ids
            )
            if claimed:
                found += len(claimed)
                self._runner.launch(claimed, asked + self.options.lease_ms / 1000)
                if found >= free:
                    break
        return found

    def _sleep(self, pause: float) -> bool:
        if self._sleeper is None:
            sleeper = self._engine.sleeper(self._queues)
            with self._changed:
                self._sleeper = sleeper
        if self._stopping:
            return True
        return self._sleeper.wait(pause)

    def _is_quiet(self) -> bool:
        """Whether nothing runs and nothing is unwritten: then a look that finds nothing means
        that nothing is due."""
        return not self._runner.running and self._finisher.backlog == 0

    def _quieten(self) -> None:
        """Wait a moment for what runs, or for what is unwritten."""
        with self._changed:
            if self._runner.running:
                self._changed.wait(0.05)
                return
        self._finisher.flush(_FLUSH_SECONDS)

    # --- the end ----------------------------------------------------------------------------

    def _shut_down(self) -> None:
        deadline = time.monotonic() + self.options.shutdown_ms / 1000
        log_event("info", "worker stopping", worker=self.name, running=self._runner.running)
        self._wait_while(lambda: bool(self._runner.wanted()) and not self._aborted, deadline)
        cut_off = self._runner.cut_off()
        self._wait_while(lambda: bool(self._runner.running), time.monotonic() + _JOIN_SECONDS)
        self._runner.release_stuck()
        flushed = self._finisher.flush(_FLUSH_SECONDS)
        self._exit_code = 1 if cut_off or not flushed else 0
        try:
            self._engine.leave(self.name)
        except DeverError as error:
            self._outage.trouble(error, "leave")
        log_event(
            "info",
            "worker stopped",
            worker=self.name,
            started=self._runner.started,
            cut_off=cut_off,
            unwritten=self._finisher.backlog,
        )

    def _wait_while(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until the condition is false or the deadline has come."""
        with self._changed:
            while condition() and (remaining := deadline - time.monotonic()) > 0:
                self._changed.wait(min(remaining, 0.5))

    def _forget(self) -> None:
        self._registered = False

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self._stopping:
                self._changed.wait_for(lambda: self._stopping, seconds)

    def _end_loop(self) -> None:
        loop, thread = self._loop, self._own_loop
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=_JOIN_SECONDS)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.wait(pending, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _version() -> str:
    try:
        return version("dever-sql")
    except PackageNotFoundError:
        return f"source, Python {sys.version_info.major}.{sys.version_info.minor}"


__all__ = ["Task", "Worker", "WorkerOptions", "worker_name"]
