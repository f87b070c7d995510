"""What a handler may use: `current()`, `Retry` and `Dead`; and `serve()`, which starts a worker.

from dever_sql import job

if response.status == 429:
    raise job.Retry(delay=timedelta(minutes=5))
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final

from . import connection as caller
from .engine import Claimed, Engine, Verdict
from .errors import DeverError, InvalidArgument, LeaseLost
from .events import logger

_BUSY_TRIES: Final = 200
_BUSY_PAUSE: Final = 0.01


_LONGEST_DELAY: Final = timedelta(days=36_500)


class Retry(Exception):
    """Raise it to have the job tried again after `delay`, or after the usual backoff (R5.8).

    It counts as a failed attempt: after the last one the job is dead.
    """

    def __init__(self, delay: timedelta | None = None) -> None:
        if delay is not None and not isinstance(delay, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument("the delay of Retry must be a timedelta")
        if delay is not None and abs(delay) > _LONGEST_DELAY:
            raise InvalidArgument("the delay of Retry is longer than 36,500 days")
        super().__init__("retry" if delay is None else f"retry in {delay}")
        self.delay = delay


class Dead(Exception):
    """Raise it to give the job up for good, with a reason of your own (R5.8)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields = dict(self.extra or {})
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        # Where the fields are kept apart, the words are wanted without them.
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "dever": fields, "dever_words": msg}
        return f"{msg} {shown}", kwargs


class JobContext:
    """The job that a handler runs. Its attributes never change during the attempt, except
    `cancelled`.

    `deadline` is the instant (UTC, by this machine's clock) at which the attempt times out.
    """

    __slots__ = (
        "_cancelled",
        "_completed",
        "_engine",
        "_lease",
        "attempt",
        "deadline",
        "id",
        "key",
        "max_attempts",
        "target",
        "token",
    )

    def __init__(
        self, claimed: Claimed, engine: Engine, deadline: datetime, lease: timedelta
    ) -> None:
        self.id = claimed.id
        self.key = claimed.key
        self.target = claimed.target
        self.attempt = claimed.attempt
        self.max_attempts = claimed.max_attempts
        self.token = claimed.token
        self.deadline = deadline
        self._engine = engine
        self._lease = lease
        self._cancelled = False
        self._completed = False

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer wanted: timed out, lease lost, or shutting down.

        A `def` handler cannot be stopped from outside; a long one looks here now and then.
        """
        return self._cancelled

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the job's id, target and attempt to each line."""
        return _JobLogger(logger, {"id": self.id, "target": self.target, "attempt": self.attempt})

    @property
    def completed(self) -> bool:
        """Whether the handler completed the job in a transaction of its own."""
        return self._completed

    def cancel(self) -> None:
        """For the worker: the result is no longer wanted."""
        self._cancelled = True

    def lease_in(self, engine: Engine) -> timedelta | None:
        """The length of this job's lease when it was claimed from that engine, else None."""
        return self._lease if engine is self._engine else None

    def complete(self, connection: object) -> None:
        """Complete this job inside the caller's open transaction (R5.8).

        The handler's writes and the completion are then one commit: the worker never completes the
        job itself any more, and if the transaction does not commit the attempt has failed.
        Raises LeaseLost when the job is no longer ours, InvalidArgument without an open
        transaction, CrossDatabaseError on another database's connection.
        """
        caller.require_transaction(connection)
        for _ in range(_BUSY_TRIES):
            steps = self._engine.complete_steps([self.id], [self.token])
            if self._is_settled(caller.run(self._engine, connection, steps)):
                return
            time.sleep(_BUSY_PAUSE)
        raise self._stuck()

    async def acomplete(self, connection: object) -> None:
        """`complete` for an async connection or session."""
        caller.require_transaction(connection)
        for _ in range(_BUSY_TRIES):
            steps = self._engine.complete_steps([self.id], [self.token])
            if self._is_settled(await caller.arun(self._engine, connection, steps)):
                return
            await asyncio.sleep(_BUSY_PAUSE)
        raise self._stuck()

    def _is_settled(self, verdicts: list[Verdict]) -> bool:
        """False while a renewal of this job holds the row, which lasts for moments."""
        ok = verdicts[0].ok if verdicts else False
        if ok is False:
            raise LeaseLost(
                f"job {self.id} is no longer ours to complete",
                hint="let the transaction roll back; another attempt has taken over",
            )
        self._completed = self._completed or ok is True
        return ok is True

    def _stuck(self) -> DeverError:
        return DeverError(
            f"another transaction holds the row of job {self.id}",
            hint="let the transaction roll back; the attempt is tried again",
        )


running: Final[ContextVar[JobContext | None]] = ContextVar("dever_job", default=None)


def current() -> JobContext:
    """The job that this code runs for. Raises DeverError outside a handler."""
    context = running.get()
    if context is None:
        raise DeverError("no job is running here", hint="call job.current() inside a job's handler")
    return context


def serve() -> None:
    """Run a worker for the program's jobs until a signal ends it (R8.1).

    Uses `config/setting.json` of the working directory, or, for a one-file script, the documented
    defaults. Returns after a clean drain; exits with code 1 when work was cut off (R8.4).
    """
    from .serving import serve_program

    code = serve_program()
    if code != 0:
        raise SystemExit(code)
