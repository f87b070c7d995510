"""Queues, schedules, locks and outboxes of a database, without any declared job (R7)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

from .database import engine_for, open_engine
from .engine import Engine, JobRow, JobState, Missed, Outcome, QueueRow, ScheduleRow
from .errors import InstallError
from .lock import Lock
from .outbox import Outbox
from .queue import Queue
from .scheduler import run_schedules
from .wire import encode_json


class Store:
    """An open database. Safe from any thread; `close` it, or use it in a with block.

    Names of queues, schedules, locks and outboxes are 1 to 255 bytes, not blank, and do not begin
    with `__dever_`: InvalidName or ReservedName otherwise, before anything is stored (R7.1).
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> Store:
        """Open `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://...`.

        An SQLite file gets the engine's tables when it has none. A PostgreSQL database must have
        them (`dever sql install URL`), otherwise InstallError.
        """
        engine = open_engine(url)
        try:
            # Never upgrades: programs of the version before may be at work on the same file.
            if engine.version() is None:
                if engine.kind != "sqlite":
                    raise InstallError(
                        "Dever SQL is not installed in that database",
                        hint="run: dever sql install URL",
                    )
                engine.install()
        except BaseException:
            engine.close()
            raise
        return cls(engine)

    @classmethod
    def of(cls, database: str = "default") -> Store:
        """The store of the program's logical database, on the connections that its jobs use.

        It is cheap to make and needs no closing. Raises SettingsError for an unknown name.
        """
        return cls(engine_for(database))

    def __repr__(self) -> str:
        return f"Store({self.engine!r})"

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    def queue(self, name: str) -> Queue:
        """A handle; the queue itself comes to be with its first message."""
        return Queue(self.engine, name)

    def outbox(self, name: str) -> Outbox:
        return Outbox(self.engine, name)

    def lock(self, name: str) -> Lock:
        return Lock(self.engine, name)

    def schedule(
        self,
        name: str,
        spec: str,
        queue: str,
        payload: object = None,
        *,
        missed: Missed = "catch_up",
        expires: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> ScheduleRow:
        """Store a schedule under its name and return it (R7.4).

        `spec` is five-field UTC cron or `@every <n><s|m|h|d>`; InvalidSpec says what is wrong. At
        each boundary a message with `payload` goes to `queue`, with the queue's defaults and these
        options over them. The same instants stored again keep their phase; others start at the
        first boundary after now. `missed`: catch_up (at most 64, oldest first), latest, skip.
        """
        return self.engine.schedule(
            name, spec, queue, encode_json(payload), missed, expires, max_attempts
        )

    def unschedule(self, name: str) -> bool:
        """Remove a schedule (a declared one only when orphaned); False: there was none."""
        return self.engine.unschedule(name)

    def pause_schedule(self, name: str) -> bool:
        """Stop a schedule; windows that pass meanwhile are skipped. False: there is none."""
        return self.engine.pause_schedule(name)

    def resume_schedule(self, name: str) -> bool:
        """Start a paused schedule at its next window. False: there is none."""
        return self.engine.resume_schedule(name)

    def rewind_schedule(self, name: str) -> bool:
        """Repair a cursor that is ahead because the clock was set back; False: it is not."""
        return self.engine.rewind_schedule(name)

    def schedules(self) -> list[ScheduleRow]:
        """All schedules, declared ones included."""
        return self.engine.schedules()

    def run_schedules(self, stop: threading.Event) -> None:
        """Fire schedules until `stop` is set; LeadershipLost when another runner does (R7.5)."""
        run_schedules(self.engine, stop)

    def configure_queue(
        self,
        queue: str,
        *,
        visibility: timedelta | None = None,
        max_attempts: int | None = None,
        backoff_base: timedelta | None = None,
        backoff_max: timedelta | None = None,
        keep_succeeded: timedelta | None = None,
        keep_dead: timedelta | None = None,
        keep_cancelled: timedelta | None = None,
        block_after: timedelta | None = None,
    ) -> QueueRow:
        """Set the defaults of a queue for messages sent from now on; None leaves a value."""
        return self.engine.configure_queue(
            queue,
            visibility=visibility,
            max_attempts=max_attempts,
            backoff_base=backoff_base,
            backoff_max=backoff_max,
            keep_succeeded=keep_succeeded,
            keep_dead=keep_dead,
            keep_cancelled=keep_cancelled,
            block_after=block_after,
        )

    def get_job(self, id: int) -> JobRow | None:
        """A job or message, finished or not; None: there is none, or it has been pruned."""
        return self.engine.get_job(id)

    def jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        target: str | None = None,
        key: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> list[JobRow]:
        """Jobs and messages, newest first; `before` an id for the next page."""
        return self.engine.jobs(
            state=state, queue=queue, target=target, key=key, limit=limit, before=before
        )

    def cancel(self, ids: Sequence[int]) -> list[Outcome]:
        """cancelled (a running one loses its lease), finished or not_found for each."""
        return self.engine.cancel(ids)

    def redrive(self, ids: Sequence[int]) -> list[Outcome]:
        """Dead and blocked ones back to pending: pending, key_in_use or not_found for each."""
        return self.engine.redrive(ids)

    def drop_jobs(self, ids: Sequence[int]) -> list[Outcome]:
        """Delete dead and blocked ones: dropped or not_found for each."""
        return self.engine.drop_jobs(ids)
