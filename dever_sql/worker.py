"""The worker: claims what it has free slots for, runs it, and hands the outcomes on.

Claiming, running, finishing, renewing and sweeping overlap, each on its own thread:

    control (this file)   registers, claims, sleeps; at the end drains, cuts off, releases
    loop                  runs async handlers and times everything out
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
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from .engine import Claimed, Engine, Sleeper
from .errors import DatabaseUnavailable, DeverError
from .events import log_event
from .failure import LONGEST_REASON, describe, storable
from .finisher import Finisher, Outcome
from .housekeeper import Housekeeper
from .job import Dead, JobContext, Retry
from .outage import Backoff, Outage
from .renewer import ALIVE, Renewer
from .run import HandlerThreads, Run, Task, call_async, call_sync

_SHORT_LEASE_MS: Final = 5_000
_FIRST_PAUSE: Final = 0.005
"""Seconds of the first pause after an empty look; they double up to the poll interval."""
_JOIN_SECONDS: Final = 2.0
"""What a cancelled handler has to clean up at a shutdown."""
_GRACE: Final = 5.0
"""What an async handler has to clean up after its timeout before its attempt is recorded."""
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
        self._tasks = {(task.target, task.fingerprint): task for task in tasks}
        self._targets = {task.target for task in tasks}
        self._queues = list(self.options.queues or dict.fromkeys(task.queue for task in tasks))
        self._lease = timedelta(milliseconds=self.options.lease_ms)
        self._poll = self.options.poll_ms / 1000
        self._contract_ids: list[int] = []
        self._registered = False
        self._turn = 0

        self._changed = threading.Condition()
        """Guards everything below; notified when a slot becomes free or the worker is stopped."""
        self._running: dict[int, Run] = {}
        """By token: handlers that are going on, a slot each."""
        self._held: dict[int, Run] = {}
        """By token: leases to renew, from the claim until the outcome is written."""
        self._slots_wanted = 1
        """How many free slots are worth waking the control thread for."""
        self._stopping = False
        self._aborted = False
        self._started = 0
        self._cut_off = 0

        self._until_idle = False
        self._limit: int | None = None
        self._failure: BaseException | None = None
        self._done = threading.Event()
        self._exit_code = 0
        self._own_loop: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._threads = HandlerThreads("dever-handler")
        self._sleeper: Sleeper | None = None
        self._outage = Outage(self.name)
        self._finisher = Finisher(engine, self.name, self._outage, self._settle)
        self._renewer = Renewer(
            engine,
            self.name,
            self._lease,
            self._outage,
            held=self._held_runs,
            lost=self._lose,
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
        return self._started

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

    # --- the control thread -----------------------------------------------------------------

    def _control(self) -> None:
        try:
            if self._begin():
                self._work()
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
            jobs=len(self._tasks),
        )
        return True

    def _register(self) -> None:
        about = {"host": socket.gethostname(), "pid": os.getpid(), "version": _version()}
        contracts = [task.contract for task in self._tasks.values()]
        known = self._engine.register(self.name, contracts, ALIVE, about)
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
                free = self.options.workers - len(self._running)
                if self._limit is not None:
                    free = min(free, self._limit - self._started)
                    if self._started >= self._limit:
                        return 0
                if free > 0:
                    break
                self._changed.wait()
            # More work than slots: one claim for several slots is cheaper than one for each.
            wanted = self.options.workers // _SLOT_SHARE
            if pressed and free < wanted and self._limit is None:
                self._slots_wanted = wanted
                self._changed.wait(_SLOT_WAIT)
                self._slots_wanted = 1
                free = self.options.workers - len(self._running)
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
                self._launch(claimed, asked + self.options.lease_ms / 1000)
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
        return not self._running and self._finisher.backlog == 0

    def _quieten(self) -> None:
        """Wait a moment for what runs, or for what is unwritten."""
        with self._changed:
            if self._running:
                self._changed.wait(0.05)
                return
        self._finisher.flush(_FLUSH_SECONDS)

    # --- running ----------------------------------------------------------------------------

    def _launch(self, claimed: Sequence[Claimed], lease_end: float) -> None:
        now = time.monotonic()
        instant = datetime.now(UTC)
        runs: list[Run] = []
        for row in claimed:
            run = self._prepare(row, now, instant, lease_end)
            if run is not None:
                runs.append(run)
        with self._changed:
            self._started += len(runs)
            for run in runs:
                token = run.claimed.token
                self._held[token] = run
                self._running[token] = run
        if runs and self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_runs, runs)

    def _prepare(self, row: Claimed, now: float, instant: datetime, lease_end: float) -> Run | None:
        """The run for a claimed job; None when it must not run, which is recorded (R5.3)."""
        task = self._tasks.get((row.target or "", row.fingerprint or ""))
        if task is None:
            reason = "schema_mismatch" if row.target in self._targets else "unknown_target"
            self._refuse(row, lease_end, reason, None)
            return None
        if not 1 <= row.attempt <= row.max_attempts <= 100:
            self._refuse(row, lease_end, "invalid_policy", task)
            return None
        try:
            arguments = task.decode(row.payload)
        except Exception as error:
            self._refuse(row, lease_end, "invalid_payload", task, describe(error))
            return None
        deadline = instant + timedelta(seconds=task.timeout)
        context = JobContext(row, self._engine, deadline, self._lease)
        return Run(row, task, context, arguments, now + task.timeout, lease_end)

    def _refuse(
        self,
        row: Claimed,
        lease_end: float,
        reason: str,
        task: Task | None,
        error: str | None = None,
    ) -> None:
        task = task or Task(
            row.target or "", row.fingerprint or "", "", {}, 0.0, _no_handler, False, _no_arguments
        )
        context = JobContext(row, self._engine, datetime.now(UTC), self._lease)
        run = Run(row, task, context, (), 0.0, lease_end)
        run.ended = True
        with self._changed:
            self._held[row.token] = run
        self._record(Outcome(run, "block", reason, error))

    def _begin_runs(self, runs: Sequence[Run]) -> None:
        """On the loop."""
        loop = self._loop
        if loop is None:
            return
        for run in runs:
            if run.task.is_async:
                run.future = loop.create_task(call_async(run, self._ended))
            else:
                self._threads.submit(lambda run=run: call_sync(run, self._ended))
            if run.lost or run.cut_off:
                self._cancel(run)
        self._set_timer(min(run.deadline for run in runs))

    def _ended(self, run: Run, error: BaseException | None) -> None:
        """A handler is over: hand on what it came to and free its slot. From any thread."""
        run.arguments = ()
        outcome = self._outcome_of(run, error)
        with self._changed:
            if run.ended:
                return
            run.ended = True
            # Before the slot is free: a worker without running jobs and unwritten outcomes may end.
            if not run.lost:
                self._record(outcome)
            self._running.pop(run.claimed.token, None)
            if self.options.workers - len(self._running) >= self._slots_wanted:
                self._changed.notify_all()

    def _outcome_of(self, run: Run, error: BaseException | None) -> Outcome:
        if run.context._completed:  # pyright: ignore[reportPrivateUsage]
            return Outcome(run, "settle", "handler_failed", self._describe(run, error))
        if run.timed_out:
            return Outcome(run, "retry", "handler_timeout", self._describe(run, error))
        if run.cut_off:
            return Outcome(run, "release", "interrupted")
        if error is None:
            return Outcome(run, "complete")
        if isinstance(error, Dead):
            return Outcome(run, "bury", storable(error.reason, LONGEST_REASON))
        delay = error.delay if isinstance(error, Retry) else None
        return Outcome(run, "retry", "handler_failed", self._describe(run, error), delay)

    def _record(self, outcome: Outcome) -> None:
        """Hand an outcome on to be written; the first one counts."""
        with self._changed:
            if outcome.run.recorded:
                return
            outcome.run.recorded = True
            self._finisher.put(outcome)

    def _describe(self, run: Run, error: BaseException | None) -> str | None:
        if error is None:
            return None
        with_message = self.options.error_detail == "message"
        return describe(error, payload=run.claimed.payload if with_message else None)

    # --- ending runs from outside -----------------------------------------------------------

    def _set_timer(self, deadline: float) -> None:
        """One timer for all deadlines: the earliest one. On the loop, whose clock it uses."""
        loop = self._loop
        if loop is None:
            return
        when = loop.time() + (deadline - time.monotonic())
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._time_out)

    def _time_out(self) -> None:
        """On the loop: end what is past its deadline."""
        self._timer = None
        now = time.monotonic()
        next_look: float | None = None
        with self._changed:
            runs = list(self._running.values())
        for run in runs:
            look = run.deadline
            if run.deadline <= now and not run.recorded and not run.lost:
                if not run.timed_out:
                    run.timed_out = True
                    self._cancel(run)
                look = run.deadline + (_GRACE if run.task.is_async else 0.0)
                if look <= now:
                    # It does not end: its slot stays taken, its late result is refused.
                    if not run.context._completed:  # pyright: ignore[reportPrivateUsage]
                        self._record(Outcome(run, "retry", "handler_timeout"))
                    continue
            if look > now:
                next_look = look if next_look is None else min(look, next_look)
        if next_look is not None:
            self._set_timer(next_look)

    def _cancel(self, run: Run) -> None:
        """Tell the handler that its result is not wanted. From any thread."""
        run.context._cancelled = True  # pyright: ignore[reportPrivateUsage]
        loop = self._loop
        if run.task.is_async and loop is not None:
            loop.call_soon_threadsafe(self._cancel_future, run)

    def _cancel_future(self, run: Run) -> None:
        if run.future is None or run.ended:
            return
        run.future.cancel()
        if not run.begun:  # it will never begin, so nobody else says that it is over
            self._ended(run, asyncio.CancelledError())

    def _lose(self, run: Run) -> None:
        """The lease is gone: cancel the handler and write nothing (R8.5)."""
        with self._changed:
            if self._held.pop(run.claimed.token, None) is None:
                return
            waiting_for_answer = run.recorded
            run.lost = True
        if waiting_for_answer:
            return  # the database will say so itself
        log_event(
            "warning",
            "lease lost, handler cancelled",
            id=run.claimed.id,
            target=run.claimed.target,
            attempt=run.claimed.attempt,
            worker=self.name,
        )
        self._cancel(run)

    def _settle(self, run: Run) -> None:
        with self._changed:
            self._held.pop(run.claimed.token, None)

    def _held_runs(self) -> list[Run]:
        with self._changed:
            return list(self._held.values())

    def _forget(self) -> None:
        self._registered = False

    # --- the end ----------------------------------------------------------------------------

    def _shut_down(self) -> None:
        deadline = time.monotonic() + self.options.shutdown_ms / 1000
        log_event("info", "worker stopping", worker=self.name, running=len(self._running))
        with self._changed:
            self._wait_while(lambda: bool(self._wanted()) and not self._aborted, deadline)
            cut = self._wanted()
            for run in cut:
                run.cut_off = True
        for run in cut:
            self._cancel(run)
        with self._changed:
            self._wait_while(lambda: bool(self._running), time.monotonic() + _JOIN_SECONDS)
            stuck = self._wanted()
        for run in stuck:  # they do not end; the process will
            if not run.context._completed:  # pyright: ignore[reportPrivateUsage]
                self._record(Outcome(run, "release", "interrupted"))
        flushed = self._finisher.flush(_FLUSH_SECONDS)
        self._exit_code = 1 if cut or not flushed else 0
        try:
            self._engine.leave(self.name)
        except DeverError as error:
            self._outage.trouble(error, "leave")
        log_event(
            "info",
            "worker stopped",
            worker=self.name,
            started=self._started,
            cut_off=len(cut),
            unwritten=self._finisher.backlog,
        )

    def _wanted(self) -> list[Run]:
        """Running handlers whose result is still wanted."""
        return [run for run in self._running.values() if not run.recorded and not run.lost]

    def _wait_while(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait, with the lock held, until the condition is false or the deadline has come."""
        while condition():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            self._changed.wait(min(remaining, 0.5))

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


def _no_handler(*_: Any) -> None:
    raise AssertionError("a job that cannot be run was started")


def _no_arguments(_: str) -> Sequence[Any]:
    return ()


__all__ = ["Task", "Worker", "WorkerOptions", "worker_name"]
