"""Declaring jobs: `Jobs`, the decorators, and `Job`, which is how a job is enqueued (R1, R3).

A declaration is checked at once as far as no annotation has to be resolved; the rest when the job
is first enqueued, registered or worked, before anything is stored.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast, final, overload

from . import enqueue
from .engine import Enqueued, Missed
from .enqueue import ABSENT, Entry
from .errors import DeclarationError, DeverError, InvalidName, InvalidSpec, ReservedName
from .record import module_name
from .signature import check_handler, payload_type, takes_input
from .wire import Codec, codec_for

P = TypeVar("P")

MAX_RETRY: Final = 100
MAX_TIMEOUT_MS: Final = 3_600_000

_NAME_BYTES: Final = 255
_RESERVED: Final = "__dever_"
_BLANK: Final = " \t\n\v\f\r"
MISSED: Final[tuple[Missed, ...]] = ("catch_up", "latest", "skip")

_PlainHandler: TypeAlias = Callable[[], Coroutine[Any, Any, None]] | Callable[[], None]
_Handler: TypeAlias = Callable[[P], Coroutine[Any, Any, None]] | Callable[[P], None]


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """When a declared cron job fires (UTC), and what happens to windows that were missed."""

    spec: str
    missed: Missed


@final
class Job(Generic[P]):
    """A declared job. Enqueue it; it is not a function any more (R1.5).

    Every enqueue names a business key of 1 to 1024 bytes: while a job with this key is unfinished
    no second one is inserted (`Enqueued.created` is False). `connection` is the caller's open
    connection or session (psycopg, sqlite3, SQLAlchemy, Django): the job is committed or rolled
    back with that transaction. The methods with an `a` are the same for async code.

    Raises InvalidPayload, InvalidKey, InvalidArgument, CrossDatabaseError, DatabaseUnavailable.
    """

    __slots__ = (
        "__weakref__",
        "_codec",
        "database",
        "handler",
        "is_async",
        "queue",
        "retry",
        "schedule",
        "takes_input",
        "target",
        "timeout_ms",
    )

    def __init__(
        self,
        jobs: Jobs,
        handler: FunctionType,
        target: str,
        retry: int,
        timeout_ms: int,
        schedule: CronSchedule | None,
    ) -> None:
        self.database = jobs.database
        self.queue = jobs.queue
        self.handler = handler
        """For the worker only; an application calls its App, never a handler."""
        self.is_async = inspect.iscoroutinefunction(handler)
        self.takes_input = takes_input(handler)
        self.target = target
        """The stable name: module and function, or what `name=` pins."""
        self.retry = retry
        """Starts in total, the first included."""
        self.timeout_ms = timeout_ms
        self.schedule = schedule
        self._codec: Codec[P] | None = None

    @property
    def codec(self) -> Codec[P]:
        """The job's payload on the wire. Raises DeclarationError where R1.3 or R2.1 refuse it."""
        if self._codec is None:
            payload = cast("type[P] | None", payload_type(self.handler))
            self._codec = codec_for(payload, self.target)
        return self._codec

    def arguments(self, text: str) -> tuple[Any, ...]:
        """The handler's arguments for a stored payload. Raises InvalidPayload (R2.3)."""
        payload = self.codec.decode(text)
        return (payload,) if self.takes_input else ()

    def contract(
        self,
        *,
        retry_base_ms: int = 1_000,
        retry_max_ms: int = 300_000,
        retry_jitter: float = 0.0,
    ) -> dict[str, Any]:
        """What `register` stores about this job, with the backoff of the program's settings."""
        return {
            "target": self.target,
            "fingerprint": self.codec.fingerprint,
            "queue": self.queue,
            "schema": self.codec.schema,
            "retry": self.retry,
            "timeout_ms": self.timeout_ms,
            "backoff_base_ms": retry_base_ms,
            "backoff_max_ms": retry_max_ms,
            "backoff_jitter": retry_jitter,
            "schedule": None
            if self.schedule is None
            else {"spec": self.schedule.spec, "missed": self.schedule.missed},
        }

    @overload
    def enqueue(self: Job[None], *, key: str, connection: object | None = None) -> Enqueued: ...
    @overload
    def enqueue(self, payload: P, *, key: str, connection: object | None = None) -> Enqueued: ...
    def enqueue(
        self, payload: Any = ABSENT, *, key: str, connection: object | None = None
    ) -> Enqueued:
        """Enqueue a job that is due at once (R3.3). A job without input takes no payload."""
        return enqueue.insert(self, [Entry(payload, key)], connection)[0]

    @overload
    def enqueue_at(
        self: Job[None], *, key: str, run_at: datetime, connection: object | None = None
    ) -> Enqueued: ...
    @overload
    def enqueue_at(
        self, payload: P, *, key: str, run_at: datetime, connection: object | None = None
    ) -> Enqueued: ...
    def enqueue_at(
        self,
        payload: Any = ABSENT,
        *,
        key: str,
        run_at: datetime,
        connection: object | None = None,
    ) -> Enqueued:
        """Enqueue a job that nobody can claim before `run_at`, an aware datetime (R3.3)."""
        return enqueue.insert(self, [Entry(payload, key, enqueue.instant(run_at))], connection)[0]

    @overload
    async def aenqueue(
        self: Job[None], *, key: str, connection: object | None = None
    ) -> Enqueued: ...
    @overload
    async def aenqueue(
        self, payload: P, *, key: str, connection: object | None = None
    ) -> Enqueued: ...
    async def aenqueue(
        self, payload: Any = ABSENT, *, key: str, connection: object | None = None
    ) -> Enqueued:
        """`enqueue` for async code."""
        return (await enqueue.ainsert(self, [Entry(payload, key)], connection))[0]

    @overload
    async def aenqueue_at(
        self: Job[None], *, key: str, run_at: datetime, connection: object | None = None
    ) -> Enqueued: ...
    @overload
    async def aenqueue_at(
        self, payload: P, *, key: str, run_at: datetime, connection: object | None = None
    ) -> Enqueued: ...
    async def aenqueue_at(
        self,
        payload: Any = ABSENT,
        *,
        key: str,
        run_at: datetime,
        connection: object | None = None,
    ) -> Enqueued:
        """`enqueue_at` for async code."""
        return (
            await enqueue.ainsert(self, [Entry(payload, key, enqueue.instant(run_at))], connection)
        )[0]

    @overload
    def enqueue_many(
        self: Job[None],
        entries: Iterable[str | tuple[str] | tuple[str, datetime | None]],
        *,
        connection: object | None = None,
    ) -> list[Enqueued]: ...
    @overload
    def enqueue_many(
        self,
        entries: Iterable[tuple[P, str] | tuple[P, str, datetime | None]],
        *,
        connection: object | None = None,
    ) -> list[Enqueued]: ...
    def enqueue_many(
        self, entries: Iterable[Any], *, connection: object | None = None
    ) -> list[Enqueued]:
        """Enqueue many jobs in one call and one transaction; one result per entry, in order (R3.7).

        An entry is `(payload, key)` or `(payload, key, run_at)`; of a job without input `key`,
        `(key,)` or `(key, run_at)`. One entry that is refused refuses the whole call.
        """
        return enqueue.insert(self, enqueue.entries_of(self, entries), connection)

    @overload
    async def aenqueue_many(
        self: Job[None],
        entries: Iterable[str | tuple[str] | tuple[str, datetime | None]],
        *,
        connection: object | None = None,
    ) -> list[Enqueued]: ...
    @overload
    async def aenqueue_many(
        self,
        entries: Iterable[tuple[P, str] | tuple[P, str, datetime | None]],
        *,
        connection: object | None = None,
    ) -> list[Enqueued]: ...
    async def aenqueue_many(
        self, entries: Iterable[Any], *, connection: object | None = None
    ) -> list[Enqueued]:
        """`enqueue_many` for async code."""
        return await enqueue.ainsert(self, enqueue.entries_of(self, entries), connection)

    if not TYPE_CHECKING:  # a type checker shall refuse the call

        def __call__(self, *args: object, **kwargs: object) -> None:
            name = self.handler.__name__
            payload = "payload, " if self.takes_input else ""
            raise DeclarationError(
                f"{name} is a declared job and cannot be called or handed on as a function",
                hint=f"use {name}.enqueue({payload}key=...), or await {name}.aenqueue(...)",
                code="DEV401",
            )

    def __repr__(self) -> str:
        return f"<Job {self.target}>"


class Declaration:
    """What `@jobs.job(...)` and `@jobs.cron(...)` put on a function."""

    __slots__ = ("_declare",)

    def __init__(self, declare: Callable[[object], Job[Any]]) -> None:
        self._declare = declare

    @overload
    def __call__(self, handler: _PlainHandler, /) -> Job[None]: ...
    @overload
    def __call__(self, handler: _Handler[P], /) -> Job[P]: ...
    def __call__(self, handler: object, /) -> Job[Any]:
        return self._declare(handler)


class CronDeclaration:
    """What `@jobs.cron(...)` puts on a function."""

    __slots__ = ("_declare",)

    def __init__(self, declare: Callable[[object], Job[Any]]) -> None:
        self._declare = declare

    def __call__(self, handler: _PlainHandler, /) -> Job[None]:
        return self._declare(handler)


@final
class Jobs:
    """The jobs of one job source: `jobs = Jobs(database="default")`, bound to one database (R1.2).

    `queue` is the line of work they all sit in. Raises InvalidName, ReservedName (R7.1).
    """

    def __init__(self, database: str = "default", queue: str = "default") -> None:
        _check_name("the database", database, DeclarationError, DeclarationError)
        _check_name("the queue", queue, InvalidName, ReservedName)
        self.database = database
        self.queue = queue

    def __repr__(self) -> str:
        return f"Jobs(database={self.database!r}, queue={self.queue!r})"

    if TYPE_CHECKING:

        def job(self, *, retry: int, timeout: int, name: str | None = None) -> Declaration:
            """Declare a job on a `def` or `async def` (R1.3, R1.4).

            `retry`: starts in total, the first included, 1 to 100. `timeout`: milliseconds per
            attempt, 1 to 3,600,000. `name` pins the target, which otherwise is module and
            function. Raises DeclarationError.
            """
            ...

        def cron(
            self,
            spec: str,
            *,
            retry: int,
            timeout: int,
            missed: Missed = "catch_up",
            name: str | None = None,
        ) -> CronDeclaration:
            """Declare a job without input that fires by a five-field UTC cron spec (R6.3).

            `missed`: what happens to windows nobody was there for (R6.6): `catch_up`, `latest` or
            `skip`. Raises InvalidSpec for a spec that is refused, DeclarationError otherwise.
            """
            ...

    else:  # the same, with a DeclarationError for what is missing or misplaced

        def job(self, *misplaced, retry=None, timeout=None, name=None):
            if misplaced:
                raise DeclarationError(
                    "@jobs.job stands without its settings", hint=_HOW, code="DEV310"
                )
            return Declaration(lambda handler: self._declare(handler, retry, timeout, name, None))

        def cron(self, spec, *misplaced, retry=None, timeout=None, missed="catch_up", name=None):
            if misplaced or inspect.isfunction(spec):
                raise DeclarationError(
                    "@jobs.cron stands without its settings", hint=_HOW_CRON, code="DEV310"
                )
            schedule = _checked_schedule(spec, missed)
            return CronDeclaration(
                lambda handler: self._declare(handler, retry, timeout, name, schedule)
            )

    def _declare(
        self,
        handler: object,
        retry: object,
        timeout: object,
        name: object,
        schedule: CronSchedule | None,
    ) -> Job[Any]:
        if isinstance(handler, Job):
            raise DeclarationError(
                f"{cast('Job[Any]', handler).target} is a job already",
                hint="one function, one declaration; call the App from each of two jobs",
                code="DEV310",
            )
        function = check_handler(handler)
        if schedule is not None and takes_input(function):
            raise DeclarationError(
                f"cron job {function.__name__} takes a parameter",
                hint="a cron job takes no input",
                code="DEV308",
            )
        subject = f"job {function.__name__}"
        job = Job[Any](
            self,
            function,
            _target(function, name),
            _checked_int(subject, "retry", retry, MAX_RETRY),
            _checked_int(subject, "timeout", timeout, MAX_TIMEOUT_MS),
            schedule,
        )
        _add(self, job)
        return job


# --- the jobs of the program ---------------------------------------------------------------------

_declared_lock = threading.Lock()
_declared: dict[str, tuple[Jobs, Job[Any]]] = {}


def all_jobs() -> list[Job[Any]]:
    """Every job that was declared in this process so far, by target."""
    with _declared_lock:
        return [job for _, (_, job) in sorted(_declared.items(), key=lambda item: item[0])]


def _add(jobs: Jobs, job: Job[Any]) -> None:
    with _declared_lock:
        known = _declared.get(job.target)
        if known is not None and not _is_reload(known, jobs, job):
            where = known[1].handler.__code__
            raise DeclarationError(
                f"the target {job.target} is declared already, at "
                f"{where.co_filename}:{where.co_firstlineno}",
                hint="rename one of the functions, or pin another target with name=",
                code="DEV309",
            )
        _declared[job.target] = (jobs, job)


def _is_reload(known: tuple[Jobs, Job[Any]], jobs: Jobs, job: Job[Any]) -> bool:
    """Whether a module was executed again, and not a name given twice."""
    before, after = known[1].handler, job.handler
    same_place = (
        module_name(before.__module__) == module_name(after.__module__)
        and before.__qualname__ == after.__qualname__
        and before.__code__.co_filename == after.__code__.co_filename
    )
    return same_place and (known[0] is not jobs or before.__code__ is after.__code__)


# --- what is checked at declaration ---------------------------------------------------------------

_HOW: Final = "write @jobs.job(retry=3, timeout=30_000) above the function"
_HOW_CRON: Final = 'write @jobs.cron("0 3 * * *", retry=3, timeout=30_000) above the function'


def _target(handler: FunctionType, name: object) -> str:
    if name is None:
        name = f"{module_name(handler.__module__)}.{handler.__qualname__}"
    return check_target(f"the target of job {handler.__name__}", name)


def check_target(subject: str, name: object) -> str:
    """A name that a job may have. Raises DeclarationError; `dever check` asks the same."""
    try:
        target = _check_name(subject, name, DeclarationError, DeclarationError)
        if ":" in target:
            raise DeclarationError(f"{subject} contains a colon", hint="use dots: shop.order.send")
    except DeclarationError as error:
        error.code = "DEV309"
        raise
    return target


def _check_name(
    subject: str, name: object, invalid: type[DeverError], reserved: type[DeverError]
) -> str:
    """The rule of R7.1 for what stands in a declaration, so that it fails where it is written."""
    if not isinstance(name, str):
        raise invalid(f"{subject} must be text, got {type(name).__name__}")
    hint = f"give a name of 1 to {_NAME_BYTES} bytes that is not only whitespace"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise invalid(f"{subject} holds a lone surrogate", hint=hint) from None
    if not name.strip(_BLANK):
        raise invalid(f"{subject} is empty", hint=hint)
    if size > _NAME_BYTES:
        raise invalid(f"{subject} is {size} bytes long", hint=hint)
    if "\0" in name:
        raise invalid(f"{subject} holds U+0000", hint=hint)
    if name.startswith(_RESERVED):
        raise reserved(
            f"{subject} is reserved", hint=f"names that start with {_RESERVED} belong to Dever SQL"
        )
    return name


def _checked_int(subject: str, what: str, value: object, limit: int) -> int:
    code = "DEV301" if what == "retry" else "DEV302"
    if value is None:
        raise DeclarationError(f"{subject} has no {what}", hint=_HOW, code=code)
    if type(value) is not int:
        kind = type(value).__name__
        raise DeclarationError(f"{what} of {subject} must be int, got {kind}", code=code)
    if not 1 <= value <= limit:
        unit = " ms" if what == "timeout" else ""
        raise DeclarationError(
            f"{what} of {subject} is {value}", hint=f"{what} is 1 to {limit:,}{unit}", code=code
        )
    return value


def _checked_schedule(spec: object, missed: object) -> CronSchedule:
    from .cron import parse  # croniter takes a while to load, and most programs have no cron

    if not isinstance(spec, str):
        raise DeclarationError(
            f"a cron spec must be text, got {type(spec).__name__}", code="DEV307"
        )
    try:
        parse(spec)
    except InvalidSpec as error:
        error.code = "DEV307"
        raise
    if missed not in MISSED:
        raise DeclarationError(
            "missed of a cron job is none of its policies",
            hint=f"one of {', '.join(MISSED)}",
            code="DEV312",
        )
    return CronSchedule(spec, missed)
