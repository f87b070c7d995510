"""The protocol both engines implement, and the rows they answer with.

A verb here is the function of the same name in the database; nothing is decided in between. All
calls are synchronous and safe from any thread. Instants are aware UTC datetimes, payloads JSON
text. Errors are `DeverError`s; trouble with the connection is `DatabaseUnavailable`, which may be
tried again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

JobState: TypeAlias = Literal[
    "scheduled", "ready", "running", "blocked", "succeeded", "dead", "cancelled"
]
RetryOutcome: TypeAlias = Literal["retried", "dead", "lost", "busy"]
Missed: TypeAlias = Literal["catch_up", "latest", "skip"]


class Statement(NamedTuple):
    """One statement of an engine. Parameters are named: `%(name)s` on PostgreSQL, `:name` on
    SQLite."""

    text: str
    parameters: Mapping[str, Any]


Steps: TypeAlias = Generator[Statement, list[tuple[Any, ...]], Any]
"""A piece of work as the statements it consists of: yields a statement, is sent its rows, returns
its result. So the same work runs on the engine's own connection and on a caller's, sync or async
(`connection.run` and `connection.arun`)."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What an enqueue left: the job's id, and whether this call created it (R3.1)."""

    id: int
    created: bool


@dataclass(frozen=True, slots=True)
class Registered:
    """A contract as the database knows it; `contract_id` is what `claim` asks for."""

    target: str
    fingerprint: str
    contract_id: int


class Claimed(NamedTuple):
    """A claimed job or message. `target` and `fingerprint` are None for a message."""

    id: int
    token: int
    target: str | None
    key: str | None
    attempt: int
    max_attempts: int
    fingerprint: str | None
    payload: str
    run_at: datetime
    lease_until: datetime


class Verdict(NamedTuple):
    """`ok` False: the claim was lost, nothing changed. None: the row is busy, ask again."""

    id: int
    ok: bool | None


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """What became of a failed attempt."""

    id: int
    outcome: RetryOutcome


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operator's call did to one job, in the words of that call."""

    id: int
    outcome: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job or message as everybody sees it: the view `dever.jobs`."""

    id: int
    queue: str
    target: str | None
    key: str | None
    state: JobState
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    lease_until: datetime | None
    worker: str | None
    token: int
    fingerprint: str | None
    expires_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    error: str | None
    payload: str | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue, its counts (exact up to 10,000 each, then `exact` is False) and its settings."""

    queue: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    blocked: int
    dead: int
    exact: bool
    oldest_ready_seconds: float | None
    visibility: timedelta
    max_attempts: int
    backoff_base: timedelta
    backoff_max: timedelta
    keep_succeeded: timedelta
    keep_dead: timedelta
    keep_cancelled: timedelta
    block_after: timedelta


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A registered worker; live while `alive_until` is in the future. `jobs`: what it runs now."""

    worker: str
    host: str | None
    pid: int | None
    version: str | None
    started_at: datetime
    alive_until: datetime
    jobs: int


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule, declared or stored by name."""

    name: str
    spec: str
    queue: str
    target: str | None
    payload: str | None
    next_at: datetime | None
    last_at: datetime | None
    fired: int
    skipped: int
    missed: Missed
    paused: bool
    status: str


@dataclass(frozen=True, slots=True)
class LockRow:
    """A named lock that somebody holds."""

    name: str
    owner: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Fired:
    """One occurrence that `tick` created."""

    schedule: str
    fire_at: datetime
    job_id: int


class Sleeper(Protocol):
    """Waits for work. One per sleeping worker, used from one thread."""

    def wait(self, timeout: float) -> bool:
        """Sleep until work may be there or `timeout` seconds have passed; True when woken.

        True is a hint to look, never a promise; a missed wake-up costs at most the caller's poll
        interval.
        """
        ...

    def awake(self) -> None:
        """Work was found: until the next `wait` nobody needs to send a wake-up."""
        ...

    def wake(self) -> None:
        """End a `wait` that is going on in another thread, or the next one."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """One installation of Dever SQL in one database."""

    kind: Literal["postgresql", "sqlite"]

    # The installation
    def version(self) -> str | None:
        """The installed version, or None when Dever SQL is not installed there."""
        ...

    def protocol(self) -> tuple[int, int]: ...
    def installation_id(self) -> str: ...
    def clock(self) -> datetime: ...

    def install(self) -> str:
        """Install or do nothing, atomically and safe against other installers; the version.

        Raises SchemaVersion when a newer, unknown version is installed (R4.1).
        """
        ...

    def close(self) -> None: ...

    # Clients. `payload` is JSON text.
    def enqueue(
        self, job: str, key: str, payload: str | None = None, run_at: datetime | None = None
    ) -> Enqueued: ...
    def enqueue_many(
        self,
        job: str,
        keys: Sequence[str],
        payloads: Sequence[str] | None = None,
        run_ats: Sequence[datetime | None] | None = None,
    ) -> list[Enqueued]:
        """One result per key, in the order of the keys."""
        ...

    def enqueue_as(
        self,
        job: str,
        fingerprint: str,
        keys: Sequence[str],
        payloads: Sequence[str] | None = None,
        run_ats: Sequence[datetime | None] | None = None,
        connection: object | None = None,
    ) -> list[Enqueued]:
        """Like `enqueue_many` for payloads encoded against that schema, not validated again.

        `connection`: the caller's open connection or session, whose transaction it joins (R3.4).
        """
        ...

    def enqueue_as_steps(
        self,
        job: str,
        fingerprint: str,
        keys: Sequence[str],
        payloads: Sequence[str] | None = None,
        run_ats: Sequence[datetime | None] | None = None,
    ) -> Steps: ...

    def send(
        self,
        queue: str,
        payload: str,
        key: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        expires: timedelta | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int: ...
    def send_steps(
        self,
        queue: str,
        payload: str,
        key: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        expires: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> Steps: ...
    def send_many(self, queue: str, payloads: Sequence[str]) -> list[int]: ...
    def outbox_enqueue(
        self,
        outbox: str,
        payload: str,
        key: str | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int: ...
    def outbox_enqueue_steps(
        self, outbox: str, payload: str, key: str | None = None, max_attempts: int | None = None
    ) -> Steps: ...

    # A caller's connection
    def installation_steps(self, in_transaction: bool) -> Steps:
        """Returns the identity of the installation on that connection, None when there is none.

        Must not fail there: a failed statement would end the caller's transaction.
        """
        ...

    def complete_steps(self, ids: Sequence[int], tokens: Sequence[int]) -> Steps: ...

    def translate(self, error: Exception, statement: Statement) -> Exception:
        """The DeverError for what a caller's driver raised, or the exception itself when it is
        not about what we sent."""
        ...

    # Workers
    def register(
        self,
        worker: str | None,
        contracts: Sequence[Mapping[str, Any]],
        alive: timedelta,
        about: Mapping[str, Any] = ...,
    ) -> list[Registered]: ...
    def register_steps(
        self,
        worker: str | None,
        contracts: Sequence[Mapping[str, Any]],
        alive: timedelta,
        about: Mapping[str, Any] = ...,
    ) -> Steps:
        """`register` for a caller's SQLite transaction, which alone may write at that time."""
        ...

    def alive(self, worker: str, alive: timedelta) -> bool: ...
    def leave(self, worker: str) -> bool: ...
    def claim(
        self,
        queue: str,
        worker: str,
        n: int,
        lease: timedelta | None = None,
        contracts: Sequence[int] | None = None,
    ) -> list[Claimed]: ...
    def renew(
        self, ids: Sequence[int], tokens: Sequence[int], lease: timedelta | None
    ) -> list[Verdict]: ...
    def complete(self, ids: Sequence[int], tokens: Sequence[int]) -> list[Verdict]: ...
    def retry(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
        delays: Sequence[timedelta | None] | None = None,
    ) -> list[RetryVerdict]: ...
    def bury(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
    ) -> list[Verdict]: ...
    def block(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
    ) -> list[Verdict]: ...
    def release(self, ids: Sequence[int], tokens: Sequence[int]) -> list[Verdict]: ...
    def sweep(self, n: int = 1000) -> dict[str, int]: ...
    def tick(self, n: int = 100) -> list[Fired]: ...
    def next_tick_at(self) -> datetime | None:
        """When the next tick has something to do; None: never, as things are."""
        ...

    def sleeper(self, queues: Sequence[str]) -> Sleeper: ...

    # Locks
    def lock_acquire(self, name: str, owner: str, ttl: timedelta) -> int | None:
        """A fencing token, or None while anyone holds the lock."""
        ...

    def scheduler_acquire(self, owner: str, ttl: timedelta) -> int | None:
        """Like `lock_acquire` for `__dever_scheduler`, whose name that one refuses (R7.5)."""
        ...

    def lock_renew(self, name: str, owner: str, token: int, ttl: timedelta) -> bool: ...
    def lock_release(self, name: str, owner: str, token: int) -> bool: ...

    # Operators
    def schedule(
        self,
        name: str,
        spec: str,
        queue: str,
        payload: str = "null",
        missed: Missed = "catch_up",
        expires: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> ScheduleRow: ...
    def unschedule(self, name: str) -> bool: ...
    def pause_schedule(self, name: str) -> bool: ...
    def resume_schedule(self, name: str) -> bool: ...
    def rewind_schedule(self, name: str) -> bool: ...
    def cron_next(self, spec: str, after: datetime) -> datetime: ...
    def cron_preview(self, spec: str, after: datetime, n: int) -> list[datetime]: ...
    def configure_queue(
        self,
        queue: str,
        visibility: timedelta | None = None,
        max_attempts: int | None = None,
        backoff_base: timedelta | None = None,
        backoff_max: timedelta | None = None,
        keep_succeeded: timedelta | None = None,
        keep_dead: timedelta | None = None,
        keep_cancelled: timedelta | None = None,
        block_after: timedelta | None = None,
    ) -> QueueRow: ...
    def pause_queue(self, queue: str) -> bool: ...
    def resume_queue(self, queue: str) -> bool: ...
    def cancel(self, ids: Sequence[int]) -> list[Outcome]: ...
    def redrive(self, ids: Sequence[int]) -> list[Outcome]: ...
    def drop_jobs(self, ids: Sequence[int]) -> list[Outcome]: ...

    # Observers
    def get_job(self, id: int) -> JobRow | None: ...
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
        """Newest first (by id); `before`: only ids below it, for the next page."""
        ...

    def queues(self) -> list[QueueRow]: ...
    def workers(self) -> list[WorkerRow]: ...
    def schedules(self) -> list[ScheduleRow]: ...
    def locks(self) -> list[LockRow]: ...
