"""Telling the database what became of attempts: in batches, on a thread of its own.

An outcome that was handed over is kept until the database has answered, through any outage; its
lease is renewed until then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from .engine import Engine
from .errors import DatabaseUnavailable
from .events import log_event, logger
from .outage import Backoff, Outage
from .run import Run

Kind = Literal["complete", "retry", "bury", "block", "release", "settle"]

_BATCH: Final = 64
_LINGER: Final = 0.003
"""Seconds that a small batch waits for company."""
_LARGEST_BATCH: Final = 1_000
_BUSY_PAUSE: Final = 0.05


@dataclass(slots=True)
class Outcome:
    """What is to be written about a run.

    `settle`: the handler completed the job in a transaction of its own. If the job is still there
    with this token, that transaction did not commit and the attempt failed.
    """

    run: Run
    kind: Kind
    reason: str | None = None
    error: str | None = None
    delay: timedelta | None = None
    repeated: bool = False
    """Sent before without an answer: it may have been done then."""


class Finisher:
    """Writes outcomes, on its own thread. `settled` is called there once one is written; `failed`
    when the thread ends by a fault of ours, for a worker without it would run jobs for nothing."""

    def __init__(
        self,
        engine: Engine,
        worker: str,
        outage: Outage,
        settled: Callable[[Run], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._outage = outage
        self._settled = settled
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: deque[Outcome] = deque()
        self._later: list[tuple[float, Outcome]] = []
        """Busy ones, and when to ask again."""
        self._open = 0
        self._hurry = False
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="dever-finish", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, outcome: Outcome) -> None:
        with self._changed:
            self._waiting.append(outcome)
            self._open += 1
            waiting = len(self._waiting)
            if waiting == 1 or waiting == _BATCH:
                self._changed.notify_all()

    @property
    def backlog(self) -> int:
        """Outcomes that are not yet written."""
        return self._open

    def flush(self, timeout: float) -> bool:
        """Wait until everything handed over is written; False when time is up first."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            while self._open:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            self._hurry = False
            return self._open == 0

    def close(self) -> None:
        """Stop the thread. What is not written is left to the leases."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _serve(self) -> None:
        try:
            self._write_all()
        except BaseException as error:
            self._failed(error)

    def _write_all(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            by_kind: dict[Kind, list[Outcome]] = {}
            for outcome in batch:
                by_kind.setdefault(outcome.kind, []).append(outcome)
            for kind, outcomes in by_kind.items():
                self._write(kind, outcomes)

    def _next_batch(self) -> list[Outcome] | None:
        with self._changed:
            while not self._closed:
                self._take_up_later()
                if self._waiting:
                    break
                now = time.monotonic()
                self._changed.wait(min((when - now for when, _ in self._later), default=None))
            if self._closed:
                return None
            if len(self._waiting) < _BATCH and not self._hurry:
                self._changed.wait(_LINGER)
            count = min(len(self._waiting), _LARGEST_BATCH)
            return [self._waiting.popleft() for _ in range(count)]

    def _take_up_later(self) -> None:
        now = time.monotonic()
        if self._later and any(when <= now for when, _ in self._later):
            self._waiting.extend(outcome for when, outcome in self._later if when <= now)
            self._later = [item for item in self._later if item[0] > now]

    def _write(self, kind: Kind, outcomes: list[Outcome]) -> None:
        backoff = Backoff()
        while not self._closed:
            try:
                verdicts = self._send(kind, outcomes)
            except DatabaseUnavailable as error:
                self._outage.trouble(error, f"{kind} jobs")
                for outcome in outcomes:
                    outcome.repeated = True
                self._pause(backoff.next())
            except Exception as error:
                if len(outcomes) > 1:  # one bad row must not fail its batch
                    for outcome in outcomes:
                        self._write(kind, [outcome])
                else:
                    self._give_up(outcomes[0], error)
                return
            else:
                self._outage.over()
                self._answer(kind, outcomes, verdicts)
                return

    def _send(self, kind: Kind, outcomes: list[Outcome]) -> dict[int, Any]:
        """The database's word per job id: a bool, None for busy, or what a retry came to."""
        engine = self._engine
        ids = [outcome.run.claimed.id for outcome in outcomes]
        tokens = [outcome.run.claimed.token for outcome in outcomes]
        if kind == "complete":
            return {verdict.id: verdict.ok for verdict in engine.complete(ids, tokens)}
        if kind == "release":
            return {verdict.id: verdict.ok for verdict in engine.release(ids, tokens)}
        reasons = [outcome.reason for outcome in outcomes]
        errors = [outcome.error for outcome in outcomes]
        if kind == "bury":
            return {v.id: v.ok for v in engine.bury(ids, tokens, reasons, errors)}
        if kind == "block":
            return {v.id: v.ok for v in engine.block(ids, tokens, reasons, errors)}
        delays = [outcome.delay for outcome in outcomes]
        return {v.id: v.outcome for v in engine.retry(ids, tokens, reasons, errors, delays)}

    def _answer(self, kind: Kind, outcomes: list[Outcome], verdicts: dict[int, Any]) -> None:
        busy: list[Outcome] = []
        for outcome in outcomes:
            verdict = verdicts.get(outcome.run.claimed.id, False)
            if verdict is None or verdict == "busy":
                busy.append(outcome)
                continue
            self._tell(kind, outcome, verdict)
            self._settled(outcome.run)
        with self._changed:
            self._open -= len(outcomes) - len(busy)
            self._changed.notify_all()
        if busy:
            # Another transaction holds the row; nobody else can take the job meanwhile.
            when = time.monotonic() + _BUSY_PAUSE
            with self._changed:
                self._later += [(when, outcome) for outcome in busy]

    def _give_up(self, outcome: Outcome, error: Exception) -> None:
        """The database refuses this one for good: its lease runs out and it is tried again.

        A retry whose delay is to blame goes by the usual backoff instead.
        """
        fields = self._fields(outcome)
        fields["error"] = getattr(error, "message", type(error).__name__)
        if outcome.delay is not None:
            log_event("error", "delay of the retry refused, the usual one counts", **fields)
            outcome.delay = None
            self._write(outcome.kind, [outcome])
            return
        log_event("error", "outcome refused, the lease will run out", **fields)
        self._settled(outcome.run)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _tell(self, kind: Kind, outcome: Outcome, verdict: Any) -> None:
        if kind == "complete" and verdict is True and not logger.isEnabledFor(logging.INFO):
            return  # the hot path
        fields = self._fields(outcome)
        if verdict is False or (verdict == "lost" and kind != "settle"):
            if outcome.repeated:
                log_event("info", "outcome was written before, or the lease lost", **fields)
            else:
                fields["outcome"] = "lost"
                log_event("warning", "lease lost, result not written", **fields)
        elif kind == "complete":
            fields["outcome"] = "succeeded"
            log_event("info", "job succeeded", **fields)
        elif kind == "settle" and verdict == "lost":
            fields["outcome"] = "succeeded"
            log_event("info", "job completed in its own transaction", **fields)
        elif kind == "release" and outcome.run.claimed.attempt < outcome.run.claimed.max_attempts:
            fields["outcome"] = "released"
            log_event("info", "job released", **fields)
        elif kind == "block":
            fields["outcome"] = "blocked"
            log_event("warning", "job blocked", **fields)
        elif kind in ("bury", "release") or verdict == "dead":
            fields["outcome"] = "dead"
            log_event("error", "job dead", **fields)
        else:
            fields["outcome"] = "retried"
            if outcome.delay is not None:
                log_event("info", "job asked for a retry", **fields)
            else:
                log_event("warning", "job failed, will be retried", **fields)

    def _fields(self, outcome: Outcome) -> dict[str, Any]:
        claimed = outcome.run.claimed
        return {
            "id": claimed.id,
            "target": claimed.target,
            "attempt": claimed.attempt,
            "max_attempts": claimed.max_attempts,
            "worker": self._worker,
            "duration": outcome.run.duration,
            "reason": outcome.reason,
            "error": outcome.error,
        }

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return
                self._changed.wait(remaining)
