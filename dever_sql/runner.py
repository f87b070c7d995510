"""Running claimed jobs: handlers, their deadlines, and what each came to.

Used by the worker from several threads; `changed` guards all of it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from .engine import Claimed, Engine
from .events import log_event
from .failure import LONGEST_REASON, describe, storable
from .finisher import Outcome
from .job import Dead, JobContext, Retry
from .run import HandlerThreads, Run, Task, call_async, call_sync

_GRACE: Final = 5.0
"""Seconds that an async handler has to clean up after its timeout before that is recorded."""


class Runner:
    """The handlers of one worker. `finish` takes each attempt's outcome, exactly one.

    `with_message`: whether the messages of exceptions are kept (R5.5).
    """

    def __init__(
        self,
        engine: Engine,
        worker: str,
        tasks: Sequence[Task],
        *,
        slots: int,
        lease: timedelta,
        with_message: bool,
        finish: Callable[[Outcome], None],
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._tasks = {(task.target, task.fingerprint): task for task in tasks}
        self._targets = {task.target for task in tasks}
        self._slots = slots
        self._lease = lease
        self._with_message = with_message
        self._finish = finish
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._threads = HandlerThreads("dever-handler")
        self.changed = threading.Condition()
        """Notified when slots became free."""
        self.slots_wanted = 1
        """How many free slots are worth a notification."""
        self.started = 0
        """Handlers started so far."""
        self._running: dict[int, Run] = {}
        """By token: handlers that are going on, a slot each."""
        self._held: dict[int, Run] = {}
        """By token: leases to renew, from the claim until the outcome is written."""

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run async handlers on this loop."""
        self._loop = loop

    @property
    def running(self) -> int:
        """Slots that are taken."""
        return len(self._running)

    @property
    def free(self) -> int:
        """Slots that are free."""
        return self._slots - len(self._running)

    def held(self) -> list[Run]:
        """What the worker holds a lease of."""
        with self.changed:
            return list(self._held.values())

    def wanted(self) -> list[Run]:
        """Running handlers whose result is still wanted."""
        with self.changed:
            return [run for run in self._running.values() if not run.recorded and not run.lost]

    def settle(self, run: Run) -> None:
        """The run's outcome is written: its lease needs no renewal any more."""
        with self.changed:
            self._held.pop(run.claimed.token, None)

    # --- running ----------------------------------------------------------------------------

    def launch(self, claimed: Sequence[Claimed], lease_end: float) -> None:
        """Start claimed jobs, whose leases cannot run out before `lease_end` (monotonic)."""
        now = time.monotonic()
        instant = datetime.now(UTC)
        runs: list[Run] = []
        for row in claimed:
            run = self._prepare(row, now, instant, lease_end)
            if run is not None:
                runs.append(run)
        with self.changed:
            self.started += len(runs)
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
        with self.changed:
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
        try:
            outcome = self._outcome_of(run, error)
        except BaseException:  # the exception is the handler's own object: it may do anything
            outcome = Outcome(run, "retry", "handler_failed", "an exception that cannot be read")
        with self.changed:
            if run.ended:
                return
            run.ended = True
            # Before the slot is free: a worker without running jobs and unwritten outcomes may end.
            if not run.lost:
                self._record(outcome)
            self._running.pop(run.claimed.token, None)
            if self.free >= self.slots_wanted:
                self.changed.notify_all()

    def _outcome_of(self, run: Run, error: BaseException | None) -> Outcome:
        if run.context.completed:
            return Outcome(run, "settle", "handler_failed", self._describe(run, error))
        # Past its deadline, whether or not the timer came to say so: a handler may block the loop.
        if run.timed_out or (not run.cut_off and time.monotonic() >= run.deadline):
            return Outcome(run, "retry", "handler_timeout", self._describe(run, error))
        if run.cut_off:
            return Outcome(run, "release", "interrupted")
        if error is None:
            return Outcome(run, "complete")
        # By the type alone: isinstance would ask the object too, which may raise.
        if issubclass(type(error), Dead):
            return Outcome(run, "bury", storable(cast(Dead, error).reason, LONGEST_REASON))
        delay = cast(Retry, error).delay if issubclass(type(error), Retry) else None
        return Outcome(run, "retry", "handler_failed", self._describe(run, error), delay)

    def _record(self, outcome: Outcome) -> None:
        """Hand an outcome on to be written; the first one counts."""
        with self.changed:
            if outcome.run.recorded:
                return
            outcome.run.recorded = True
            self._finish(outcome)

    def _describe(self, run: Run, error: BaseException | None) -> str | None:
        if error is None:
            return None
        return describe(error, payload=run.claimed.payload if self._with_message else None)

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
        with self.changed:
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
                    if not run.context.completed:
                        self._record(Outcome(run, "retry", "handler_timeout"))
                    continue
            if look > now:
                next_look = look if next_look is None else min(look, next_look)
        if next_look is not None:
            self._set_timer(next_look)

    def _cancel(self, run: Run) -> None:
        """Tell the handler that its result is not wanted. From any thread."""
        run.context.cancel()
        loop = self._loop
        if run.task.is_async and loop is not None:
            loop.call_soon_threadsafe(self._cancel_future, run)

    def _cancel_future(self, run: Run) -> None:
        if run.future is None or run.ended:
            return
        run.future.cancel()
        if not run.begun:  # it will never begin, so nobody else says that it is over
            self._ended(run, asyncio.CancelledError())

    def lose(self, run: Run) -> None:
        """The lease is gone: cancel the handler and write nothing (R8.5)."""
        with self.changed:
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
            worker=self._worker,
            duration=run.duration,
            outcome="lost",
        )
        self._cancel(run)

    # --- ending at a shutdown -----------------------------------------------------------------

    def cut_off(self) -> int:
        """Cancel every handler whose result is still wanted; how many there were."""
        with self.changed:
            runs = self.wanted()
            for run in runs:
                run.cut_off = True
        for run in runs:
            self._cancel(run)
        return len(runs)

    def release_stuck(self) -> None:
        """Release the jobs of handlers that do not end; the process will."""
        for run in self.wanted():
            if not run.context.completed:
                self._record(Outcome(run, "release", "interrupted"))


def _no_handler(*_: Any) -> None:
    raise AssertionError("a job that cannot be run was started")


def _no_arguments(_: str) -> Sequence[Any]:
    return ()
