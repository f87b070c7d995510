"""Jobs without payload codec for the tests of the worker: a handler and its name are enough."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from dever_sql.engine import Engine
from dever_sql.run import Task
from dever_sql.worker import Worker, WorkerOptions

FINGERPRINT = "f" * 64


def task(
    handler: Callable[..., Any],
    *,
    retry: int = 3,
    timeout: float = 30.0,
    queue: str = "default",
    base_ms: int = 60_000,
    decode: Callable[[str], Sequence[Any]] = lambda _: (),
    fingerprint: str = FINGERPRINT,
    target: str | None = None,
) -> Task:
    name = target or f"app.job.{handler.__name__}"
    contract = {
        "target": name,
        "fingerprint": fingerprint,
        "queue": queue,
        "schema": {"kind": "json"},
        "retry": retry,
        "timeout_ms": round(timeout * 1000),
        "backoff_base_ms": base_ms,
        "backoff_max_ms": 3_600_000,
        "schedule": None,
    }
    return Task(
        target=name,
        fingerprint=fingerprint,
        queue=queue,
        contract=contract,
        timeout=timeout,
        handler=handler,
        is_async=inspect.iscoroutinefunction(handler),
        decode=decode,
    )


def enqueue(
    engine: Engine, *tasks: Task, keys: Sequence[str] = ("k",), payload: str = "null"
) -> list[int]:
    """Enqueue one job of each task for each key; their ids."""
    engine.register(None, [each.contract for each in tasks], timedelta(minutes=1))
    return [
        row.id
        for each in tasks
        for row in engine.enqueue_as(
            each.target, each.fingerprint, list(keys), [payload] * len(keys)
        )
    ]


def work(engine: Engine, *tasks: Task, **options: Any) -> Worker:
    """Run what is due with these tasks until nothing is; the worker that did."""
    worker = Worker(engine, tasks, WorkerOptions(**options))
    worker.drain()
    return worker


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of the condition; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)
