"""What the worker makes of how a handler ends, on both engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from worker_tasks import enqueue, task, work

from dever_sql import job
from dever_sql.engine import Engine, JobRow
from dever_sql.errors import DeverError, InvalidArgument, InvalidPayload
from dever_sql.finisher import Finisher
from dever_sql.worker import Worker, WorkerOptions

HOUR_MS = 3_600_000


def outcome(engine: Engine, handler: Callable[..., Any], **options: Any) -> JobRow:
    """The row of a job after one drain with that handler."""
    kept = {name: options.pop(name) for name in ("retry", "timeout", "decode") if name in options}
    work_task = task(handler, base_ms=HOUR_MS, **kept)
    [id] = enqueue(engine, work_task)
    work(engine, work_task, **options)
    row = engine.get_job(id)
    assert row is not None
    return row


@pytest.mark.req("R1.3")
@pytest.mark.parametrize("kind", ["async", "def"])
def test_a_handler_runs_once_and_its_job_succeeds(live: Engine, kind: str) -> None:
    seen: list[int] = []

    async def as_async() -> None:
        seen.append(job.current().attempt)

    def as_def() -> None:
        seen.append(job.current().attempt)

    row = outcome(live, as_async if kind == "async" else as_def)
    assert (row.state, seen) == ("succeeded", [1])


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class CannotBeAsked(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no attributes")


class ForgotToInit(job.Retry):
    def __init__(self) -> None:
        pass


class WrongDelay(job.Retry):
    def __init__(self, delay: Any) -> None:
        super().__init__()
        self.delay = delay


def recursion() -> None:
    recursion()


def cycle() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    raise first


def raiser(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


ODD: dict[str, Callable[[], None]] = {
    "ValueError": raiser(ValueError("x")),
    "CannotBeShown": raiser(CannotBeShown()),
    "CannotBeAsked": raiser(CannotBeAsked()),
    "WrongDelay of a number": raiser(WrongDelay(5)),
    "WrongDelay of ages": raiser(WrongDelay(timedelta.max)),
    "RecursionError": recursion,
    "ValueError cycle": cycle,
    "ExceptionGroup": raiser(ExceptionGroup("many", [ValueError(str(n)) for n in range(1000)])),
    "BaseException": raiser(BaseException("x")),
    "SystemExit": raiser(SystemExit(0)),
    "KeyboardInterrupt": raiser(KeyboardInterrupt()),
    "GeneratorExit": raiser(GeneratorExit()),
    "MemoryError": raiser(MemoryError()),
    "CancelledError": raiser(asyncio.CancelledError()),
    "RuntimeError": raiser(RuntimeError("a\0b" * 10)),
    "OSError": raiser(OSError("y" * 10_000_000)),
}


@pytest.mark.req("R5.5")
@pytest.mark.parametrize("kind", ["async", "def"])
@pytest.mark.parametrize("detail", ["type", "message"])
def test_odd_exceptions_are_recorded_and_the_worker_goes_on(
    live: Engine, kind: str, detail: str
) -> None:
    def as_async(handler: Callable[[], None]) -> Callable[[], Any]:
        async def run() -> None:
            handler()

        return run

    tasks = [
        task(
            handler if kind == "def" else as_async(handler),
            target=f"odd.{name.replace(' ', '_')}",
            base_ms=HOUR_MS,
        )
        for name, handler in ODD.items()
    ]
    enqueue(live, *tasks)
    work(live, *tasks, error_detail=detail)
    rows = {row.target: row for row in live.jobs()}
    for name in ODD:
        row = rows[f"odd.{name.replace(' ', '_')}"]
        assert (row.state, row.reason, row.attempt) == ("scheduled", "handler_failed", 1), name
        assert row.error is not None
        assert name.split()[0] in row.error
        assert "test_worker_outcomes.py:" in row.error
        assert len(row.error) < 3_000


@pytest.mark.req("R5.5")
@pytest.mark.parametrize("kind", ["async", "def"])
def test_an_exception_without_its_parts_fails_its_attempt(live: Engine, kind: str) -> None:
    async def as_async() -> None:
        raise ForgotToInit

    def as_def() -> None:
        raise ForgotToInit

    row = outcome(live, as_async if kind == "async" else as_def)
    assert (row.state, row.reason) == ("scheduled", "handler_failed")


@pytest.mark.req("R5.8")
def test_retry_refuses_a_delay_that_no_database_takes() -> None:
    for delay in (timedelta.max, timedelta.min, timedelta(days=36_500, microseconds=1)):
        with pytest.raises(InvalidArgument):
            job.Retry(delay)
    assert job.Retry(timedelta(days=36_500)).delay == timedelta(days=36_500)


@pytest.mark.req("R5.5")
def test_the_message_is_stored_only_on_request_and_without_payload(live: Engine) -> None:
    def handler(*_: Any) -> None:
        raise ValueError("mail to ann@example.org at postgresql://u:hunter2@h/d failed")

    failing = task(handler, base_ms=HOUR_MS)
    live.register(None, [failing.contract], timedelta(minutes=1))
    for number, detail in enumerate(["type", "message"]):
        payload = '{"to": "ann@example.org"}'
        [row] = live.enqueue_as(failing.target, failing.fingerprint, [f"k{number}"], [payload])
        work(live, failing, error_detail=detail)
        found = live.get_job(row.id)
        assert found is not None
        assert found.error is not None
        assert "ann@" not in found.error
        assert "hunter2" not in found.error
        assert ("mail to" in found.error) == (detail == "message")


@pytest.mark.req("R5.2")
@pytest.mark.parametrize("kind", ["async", "def"])
def test_a_handler_past_its_timeout_is_cancelled_and_has_failed(live: Engine, kind: str) -> None:
    stopped: list[str] = []

    async def as_async() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append("async")
            raise

    def as_def() -> None:
        context = job.current()
        while not context.cancelled:
            time.sleep(0.005)
        stopped.append("def")

    row = outcome(live, as_async if kind == "async" else as_def, timeout=0.2)
    assert (row.state, row.reason, row.attempt) == ("scheduled", "handler_timeout", 1)
    assert stopped == [kind]


@pytest.mark.req("R5.2")
def test_a_handler_that_blocks_the_loop_past_its_timeout_has_failed(live: Engine) -> None:
    async def handler() -> None:
        deadline = time.monotonic() + 0.15
        while time.monotonic() < deadline:  # no timer of the loop can fire meanwhile
            pass

    row = outcome(live, handler, timeout=0.1)
    assert (row.state, row.reason, row.attempt) == ("scheduled", "handler_timeout", 1)


@pytest.mark.req("R5.2")
def test_a_handler_that_swallows_its_cancellation_has_failed_all_the_same(live: Engine) -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    row = outcome(live, handler, timeout=0.1)
    assert (row.state, row.reason) == ("scheduled", "handler_timeout")


@pytest.mark.req("R5.8")
def test_a_handler_asks_for_a_retry_after_a_delay(live: Engine) -> None:
    async def handler() -> None:
        if job.current().attempt == 1:
            raise job.Retry(delay=timedelta(0))
        raise job.Retry(delay=timedelta(hours=2))

    row = outcome(live, handler)
    assert (row.state, row.attempt, row.reason) == ("scheduled", 2, "handler_failed")
    assert row.run_at > live.clock() + timedelta(hours=1, minutes=59)


@pytest.mark.req("R5.8", "R5.1")
def test_a_retry_stays_within_the_attempts(live: Engine) -> None:
    async def handler() -> None:
        raise job.Retry(delay=timedelta(0))

    row = outcome(live, handler, retry=2)
    assert (row.state, row.attempt) == ("dead", 2)


@pytest.mark.req("R5.8")
def test_a_handler_gives_up_with_a_reason_of_its_own(live: Engine) -> None:
    def handler() -> None:
        raise job.Dead("no such customer\0")

    row = outcome(live, handler)
    assert (row.state, row.attempt) == ("dead", 1)
    assert row.reason is not None
    assert row.reason.startswith("no such customer")


@pytest.mark.req("R5.3")
def test_an_undecodable_payload_blocks_the_job_and_runs_nothing(live: Engine) -> None:
    ran: list[None] = []

    def refuse(_: str) -> tuple[Any, ...]:
        raise InvalidPayload("payload.email is missing")

    async def handler() -> None:
        ran.append(None)

    row = outcome(live, handler, decode=refuse)
    assert (row.state, row.reason, ran) == ("blocked", "invalid_payload", [])


@pytest.mark.req("R5.4")
def test_a_worker_leaves_jobs_of_another_schema_alone(live: Engine) -> None:
    async def handler() -> None:
        raise AssertionError("must not run")

    newer = task(handler, fingerprint="0" * 64)
    [id] = enqueue(live, newer)
    work(live, task(handler))
    row = live.get_job(id)
    assert row is not None
    assert (row.state, row.attempt) == ("ready", 0)


@pytest.mark.req("R4.7")
def test_no_more_jobs_run_at_once_than_there_are_slots(live: Engine) -> None:
    now, most = 0, 0

    async def handler() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1

    each = task(handler)
    enqueue(live, each, keys=[f"k{n}" for n in range(60)])
    worker = Worker(live, [each], WorkerOptions(workers=3))
    assert worker.drain() == 60
    assert most == 3


@pytest.mark.req("R8.3")
def test_queues_take_turns(live: Engine) -> None:
    order: list[str] = []

    def handler_of(queue: str) -> Any:
        async def handler() -> None:
            order.append(queue)

        return task(handler, queue=queue, target=f"app.job.{queue}")

    first, second = handler_of("first"), handler_of("second")
    enqueue(live, first, keys=[f"k{n}" for n in range(50)])
    enqueue(live, second, keys=["k"])
    work(live, first, second, workers=2)
    assert order.index("second") < 10


@pytest.mark.req("R5.8")
def test_the_context_names_the_job(live: Engine) -> None:
    seen: list[tuple[Any, ...]] = []

    async def handler() -> None:
        context = job.current()
        seen.append((context.id, context.key, context.target, context.max_attempts))
        assert context.deadline > live.clock()
        assert context.token > 0
        assert not context.cancelled

    row = outcome(live, handler)
    assert row.state == "succeeded"
    assert seen == [(row.id, "k", row.target, 3)]


def test_there_is_no_current_job_outside_a_handler() -> None:
    with pytest.raises(DeverError, match="no job is running"):
        job.current()


@pytest.mark.req("R4.7")
def test_a_drain_stops_after_its_limit(live: Engine) -> None:
    async def handler() -> None:
        pass

    each = task(handler)
    enqueue(live, each, keys=[f"k{n}" for n in range(10)])
    assert Worker(live, [each]).drain(limit=3) == 3
    assert sum(row.state == "succeeded" for row in live.jobs()) == 3


@pytest.mark.req("R6.4")
def test_a_drain_works_what_jobs_enqueue(live: Engine) -> None:
    async def follow() -> None:
        pass

    later = task(follow)

    def handler() -> None:
        live.enqueue_as(later.target, later.fingerprint, ["next"], ["null"])

    first = task(handler)
    enqueue(live, first)
    assert Worker(live, [first, later]).drain() == 2


@pytest.mark.req("R8.2")
@pytest.mark.parametrize("until_idle", [True, False])
def test_a_worker_whose_finishing_thread_ends_by_a_fault_ends_too(
    live: Engine, monkeypatch: pytest.MonkeyPatch, until_idle: bool
) -> None:
    def faulty(self: Finisher, *_: Any) -> None:
        raise ArithmeticError("a fault of ours")

    monkeypatch.setattr(Finisher, "_answer", faulty)

    async def handler() -> None: ...

    work_task = task(handler)
    enqueue(live, work_task)
    worker = Worker(live, [work_task], WorkerOptions())
    worker.start(until_idle=until_idle)
    with pytest.raises(ArithmeticError):
        worker.wait(timeout=30)
