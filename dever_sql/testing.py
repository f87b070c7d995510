"""The testing kit behind the pytest fixture `dever` (R8.6).

A test that asks for `dever` has databases of its own, made from nothing in a temporary directory,
one SQLite file for each logical database. No settings are read and no server is contacted. Time
stands still until the test moves it, and jobs run when the test says so, by the real worker.

    def test_a_placed_order_sends_its_receipt(dever):
        sent = []
        dever.fake(app, "send_mail", sent.append)
        app.place(Order(7))
        assert [job.key for job in dever.enqueued()] == ["receipt:7"]
        dever.drain()
        assert sent == ["receipt 7"]
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, TypeVar, overload
from unittest import mock

from . import database
from .declare import Job, all_jobs
from .engine import Engine, JobRow, JobState
from .errors import DeclarationError, DeverError, InvalidArgument
from .job import Dead, Retry, current, running
from .run import Task
from .serving import tasks_of
from .testing_database import TestedDatabase, TestedPostgres, TestedSqlite
from .transaction import Transaction
from .worker import Worker, WorkerOptions

__all__ = ["Kit", "Ran", "Waiting", "all_jobs", "kit"]

_PROGRAM: Final = "dever_testing"
"""The worker that stands for the program: while it is live its schedules fire."""
_FOR_EVER: Final = timedelta(days=36_000)
_MOST_WINDOWS: Final = 10_000
_PAGE: Final = 500
_OPTIONS: Final = WorkerOptions(workers=1, poll_ms=10)
_Fake = TypeVar("_Fake")


@dataclass(frozen=True, slots=True)
class Waiting:
    """An unfinished job. `payload` is the record its handler would get, None without input."""

    id: int
    target: str
    key: str | None
    payload: Any
    run_at: datetime
    state: JobState


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that `drain` ran, and what became of the job.

    `state` is the job's state afterwards: `succeeded`, `dead`, or `scheduled` for a retry that is
    not due yet. `error` is what the handler raised, with its traceback.
    """

    id: int
    target: str
    key: str | None
    payload: Any
    attempt: int
    state: JobState
    error: BaseException | None


class Kit:
    """What the fixture `dever` gives. `jobs` tells the jobs of the program under test."""

    def __init__(
        self,
        directory: Path,
        jobs: Callable[[], Iterable[Job[Any]]],
        postgres: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._jobs = jobs
        self._postgres = dict(postgres or {})
        self._databases: dict[str, TestedDatabase] = {}
        self._declared: set[tuple[str, str]] = set()
        self._now = datetime.now(UTC).replace(microsecond=0)
        self._fakes = ExitStack()

    # --- time -------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What every database of this test takes for the time (UTC)."""
        return self._now

    def advance(self, duration: timedelta | float) -> datetime:
        """Move the clock forward by a duration, or by so many seconds; the new time.

        The schedules fire on the way, each window at its own instant, as in a program that is
        running; what they enqueued runs at the next `drain`.
        """
        step = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
        return self.advance_to(self._now + step)

    def advance_to(self, instant: datetime) -> datetime:
        """Move the clock forward to an aware instant. Raises InvalidArgument for an earlier one."""
        if instant.utcoffset() is None:
            raise InvalidArgument("the instant has no time zone", hint="use an aware datetime")
        if instant < self._now:
            raise InvalidArgument(
                "the clock of a test only moves forward", hint="give an instant after dever.now"
            )
        self._declare()
        for _ in range(_MOST_WINDOWS):
            engines = list(self._engines.values())
            due = [at for engine in engines if (at := engine.next_tick_at()) is not None]
            if not due or min(due) > instant:
                break
            self._set(max(min(due), self._now))
            if not sum(len(engine.tick()) for engine in engines):
                break
        self._set(instant)
        return self._now

    def _set(self, instant: datetime) -> None:
        self._now = instant.astimezone(UTC)
        for each in self._databases.values():
            each.set_clock(self._now)

    # --- the program's databases ------------------------------------------------------------

    def engine(self, name: str = "default") -> Engine:
        """The engine of a logical database, for whatever this kit has no word for."""
        return database.engine_for(name)

    def open(self, name: str) -> Engine:
        """Make a logical database; the program asks for it at its first use of the name."""
        url = self._postgres.get(name)
        path = self._directory / f"{len(self._databases)}.db"
        made: TestedDatabase = TestedSqlite(path) if url is None else TestedPostgres(url)
        self._databases[name] = made
        made.set_clock(self._now)
        return made.engine

    def close(self) -> None:
        """Undo the fakes, and end the use of the databases.

        Their engines are closed by whoever asked for them.
        """
        with self._fakes:
            for each in self._databases.values():
                each.close()

    @property
    def _engines(self) -> dict[str, Engine]:
        return {name: each.engine for name, each in self._databases.items()}

    def _declare(self) -> None:
        """Register the program's jobs, as a worker does when it starts."""
        by_database: dict[str, list[Task]] = {}
        for job, task in self._tasks():
            if job.schedule is not None or job.database in self._engines:
                by_database.setdefault(job.database, []).append(task)
        for name, tasks in by_database.items():
            known = {(name, task.target) for task in tasks}
            if not known <= self._declared:
                contracts = [task.contract for task in tasks]
                self.engine(name).register(_PROGRAM, contracts, _FOR_EVER)
                self._declared |= known

    def _tasks(self) -> Iterator[tuple[Job[Any], Task]]:
        for job in self._jobs():
            try:
                yield job, tasks_of([job], _OPTIONS)[0]
            except DeclarationError:
                continue  # a job that cannot be enqueued has nothing to run

    # --- looking ----------------------------------------------------------------------------

    def enqueued(self, job: Job[Any] | str | None = None) -> list[Waiting]:
        """The unfinished jobs, of one job or target or of all, in the order they are due."""
        target = job.target if isinstance(job, Job) else job
        known = {each.target: each for each in self._jobs()}
        waiting = [
            Waiting(row.id, row.target, row.key, _payload(known, row), row.run_at, row.state)
            for engine in self._engines.values()
            for row in _unfinished(engine, target)
            if row.target is not None
        ]
        return sorted(waiting, key=lambda each: (each.run_at, each.id))

    # --- Ports ------------------------------------------------------------------------------

    @overload
    def fake(self, target: str, replacement: _Fake, /) -> _Fake: ...
    @overload
    def fake(self, target: object, name: str, replacement: _Fake, /) -> _Fake: ...

    def fake(self, target: object, *named: Any) -> Any:
        """Put a replacement, such as a fake Port, where the program looks, until the test ends.

        `fake(app, "mail", replacement)` or `fake("shop.order.app.mail", replacement)`; gives the
        replacement. Raises InvalidArgument when there is no such name to replace.
        """
        *path, replacement = named
        if path:
            owner, name = target, path[0]
        else:
            owner_path, _, name = str(target).rpartition(".")
            owner = _named(owner_path)
        if not hasattr(owner, name):
            shown = getattr(owner, "__name__", type(owner).__name__)
            raise InvalidArgument(
                f"{shown} has no {name} to replace", hint="name what the program itself looks up"
            )
        self._fakes.enter_context(mock.patch.object(owner, name, replacement))
        return replacement

    # --- running ----------------------------------------------------------------------------

    def drain(self, limit: int | None = None, *, raises: bool = True) -> list[Ran]:
        """Run the jobs that are due, and those that they enqueue, one after the other; what ran.

        Schedules that are due fire first. `limit`: at most so many attempts. What is due later
        stays: `advance` makes it due. When everything ran, a job that failed raises its own
        exception here, with its traceback; several come as an ExceptionGroup. `raises=False`
        leaves them in the result. `job.Retry` and `job.Dead` are no failures.
        """
        drained = _Drain(self._begin(), limit)
        while drained.goes_on():
            for worker, left in self._workers(drained):
                worker.drain(left)
        return drained.result(raises=raises)

    async def adrain(self, limit: int | None = None, *, raises: bool = True) -> list[Ran]:
        """`drain` for async tests: async handlers run on the loop of the test."""
        drained = _Drain(self._begin(), limit)
        while drained.goes_on():
            for worker, left in self._workers(drained):
                worker.start(loop=asyncio.get_running_loop(), until_idle=True, limit=left)
                await asyncio.to_thread(worker.wait)
        return drained.result(raises=raises)

    def _begin(self) -> Callable[[], dict[str, Engine]]:
        if Transaction.current() is not None:
            raise InvalidArgument(
                "a transaction is open here, and jobs would wait for its end",
                hint="drain after the transaction",
            )
        self._declare()
        return lambda: self._engines

    def _workers(self, drained: _Drain) -> Iterator[tuple[Worker, int | None]]:
        """A worker for each database that is in use, one at a time."""
        for name, engine in list(self._engines.items()):
            tasks = [
                dataclasses.replace(task, handler=drained.watched(engine, task))
                for job, task in self._tasks()
                if job.database == name
            ]
            left = drained.left()
            if tasks and left != 0:
                yield Worker(engine, tasks, _OPTIONS), left


class _Drain:
    """What one `drain` ran."""

    def __init__(self, engines: Callable[[], dict[str, Engine]], limit: int | None) -> None:
        if limit is not None and limit < 0:
            raise InvalidArgument("limit is negative", hint="leave it out to run all that is due")
        self._limit = limit
        self._context = contextvars.copy_context()
        self._engines = engines
        self._blocked = self._blocked_ids()
        self._before: int | None = None
        self._attempts: list[tuple[Engine, Ran]] = []

    def goes_on(self) -> bool:
        """Whether another round is due: the last one ran something, and there may be more."""
        count = len(self._attempts)
        first = self._before is None
        # A worker goes on by itself until its database has nothing that is due; but jobs of one
        # database may have enqueued into another one.
        more = first or (count != self._before and len(self._engines()) > 1)
        self._before = count
        return more and self.left() != 0

    def left(self) -> int | None:
        return None if self._limit is None else self._limit - len(self._attempts)

    def watched(self, engine: Engine, task: Task) -> Callable[..., Any]:
        """The task's handler in the context of the test, with its outcome noted."""
        handler = task.handler

        def note(arguments: tuple[Any, ...], error: BaseException | None) -> None:
            job = current()
            payload = arguments[0] if arguments else None
            ran = Ran(job.id, task.target, job.key, payload, job.attempt, "running", error)
            self._attempts.append((engine, ran))

        @functools.wraps(handler)
        def run(*arguments: Any) -> None:
            try:
                self._own_context().run(handler, *arguments)
            except BaseException as error:
                note(arguments, error)
                raise
            note(arguments, None)

        @functools.wraps(handler)
        async def arun(*arguments: Any) -> None:
            loop = asyncio.get_running_loop()
            try:
                await loop.create_task(handler(*arguments), context=self._own_context())
            except BaseException as error:
                note(arguments, error)
                raise
            note(arguments, None)

        return arun if task.is_async else run

    def _own_context(self) -> contextvars.Context:
        context = self._context.copy()
        context.run(running.set, running.get())
        return context

    def result(self, *, raises: bool) -> list[Ran]:
        ran = [
            dataclasses.replace(attempt, state=_state(engine, attempt.id))
            for engine, attempt in self._attempts
        ]
        failures = [
            error
            for each in ran
            if (error := each.error) is not None and not isinstance(error, Retry | Dead)
        ]
        for each in ran:
            if each.error is not None and each.error in failures:
                each.error.add_note(f"job {each.target}, key {each.key!r}, attempt {each.attempt}")
        failures += [_blocked(row) for row in self._newly_blocked()]
        if raises and len(failures) == 1:
            raise failures[0]
        if raises and failures:
            raise BaseExceptionGroup(f"{len(failures)} jobs failed", failures)
        return ran

    def _blocked_ids(self) -> set[tuple[str, int]]:
        return {
            (name, row.id)
            for name, engine in self._engines().items()
            for row in engine.jobs(state="blocked", limit=_PAGE)
        }

    def _newly_blocked(self) -> list[JobRow]:
        return [
            row
            for name, engine in self._engines().items()
            for row in engine.jobs(state="blocked", limit=_PAGE)
            if (name, row.id) not in self._blocked
        ]


def _blocked(row: JobRow) -> DeverError:
    return DeverError(
        f"job {row.target}, key {row.key!r}, is blocked: {row.reason}",
        detail=row.error,
        hint="its payload or policy does not fit the job as it is declared now",
    )


def _state(engine: Engine, id: int) -> JobState:
    row = engine.get_job(id)
    return "succeeded" if row is None else row.state  # none is kept of it


def _unfinished(engine: Engine, target: str | None) -> Iterator[JobRow]:
    states: Sequence[JobState] = ("scheduled", "ready", "running", "blocked")
    for state in states:
        before: int | None = None
        while True:
            rows = engine.jobs(state=state, target=target, limit=_PAGE, before=before)
            yield from rows
            if len(rows) < _PAGE:
                break
            before = rows[-1].id


def _named(path: str) -> object:
    try:
        return resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"there is no {path or 'module'} to replace something in",
            hint="write the whole path: shop.order.app.mail",
        ) from error


def _payload(jobs: dict[str, Job[Any]], row: JobRow) -> Any:
    """The record; the JSON text where the job is not known as it was enqueued."""
    job = jobs.get(row.target or "")
    if job is None or row.payload is None:
        return row.payload
    try:
        arguments = job.arguments(row.payload)
    except DeverError:
        return row.payload
    return arguments[0] if arguments else None


# --- databases from nothing ----------------------------------------------------------------------


@contextmanager
def kit(
    jobs: Callable[[], Iterable[Job[Any]]] = all_jobs, postgres: Mapping[str, str] | None = None
) -> Generator[Kit]:
    """A `Kit` for the length of the block; what the fixture `dever` does.

    `postgres`: the URLs of logical databases that shall be on PostgreSQL. They must be for tests
    alone: everything in them is removed. All others are new SQLite files.
    """
    with tempfile.TemporaryDirectory(prefix="dever-") as directory:
        made = Kit(Path(directory), jobs, postgres)
        with database.engines_made_by(made.open), closing(made):
            yield made
