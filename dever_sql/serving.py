"""Running the workers of a program: one for each of its databases, and signals (R8.1, R8.4)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from . import database
from .declare import Job, all_jobs
from .errors import DeclarationError, SettingsError
from .events import log_event
from .run import Task
from .settings import JobSettings
from .worker import Worker, WorkerOptions


def serve_program(*, until_idle: bool = False) -> int:
    """Work the jobs declared so far, with the program's settings, until a signal ends it.

    The exit code: 0 after a clean drain, 1 when work was cut off. `until_idle`: end by itself once
    nothing is due. Raises SettingsError, DeclarationError or InstallError before anything is
    claimed.
    """
    workers = program_workers()
    try:
        with signals_stop(workers):
            for worker in workers:
                worker.start(until_idle=until_idle)
            return max([worker.wait() for worker in workers], default=0)
    finally:
        for worker in workers:
            worker.stop()
        database.close_all()


def program_workers() -> list[Worker]:
    """A worker, not started, for each database that the program's jobs are bound to."""
    settings, _ = database.program()
    if settings.job is None:
        raise SettingsError(
            "job: missing; a worker cannot start without it",
            hint="add job to the settings, see the documentation for its fields",
        )
    jobs = all_jobs()
    if not jobs:
        raise DeclarationError(
            "this program declares no job",
            hint="declare one with @jobs.job(retry=..., timeout=...), and import its module",
        )
    by_database: dict[str, list[Job[Any]]] = {}
    for job in jobs:
        by_database.setdefault(job.database, []).append(job)
    options = worker_options(settings.job, settings.runtime.shutdown_ms)
    return [
        Worker(database.engine_for(name), tasks_of(found, settings.job), options)
        for name, found in by_database.items()
    ]


def worker_options(settings: JobSettings, shutdown_ms: int) -> WorkerOptions:
    return WorkerOptions(
        workers=settings.workers,
        poll_ms=settings.poll_ms,
        lease_ms=settings.lease_ms,
        retry_base_ms=settings.retry_base_ms,
        retry_max_ms=settings.retry_max_ms,
        retry_jitter=settings.retry_jitter,
        error_detail=settings.error_detail,
        queues=settings.queues,
        shutdown_ms=shutdown_ms,
    )


def tasks_of(jobs: Sequence[Job[Any]], options: JobSettings | WorkerOptions) -> list[Task]:
    """Declared jobs in the worker's shape. Raises DeclarationError for one that cannot be."""
    return [
        Task(
            target=job.target,
            fingerprint=job.codec.fingerprint,
            queue=job.queue,
            contract=job.contract(
                retry_base_ms=options.retry_base_ms,
                retry_max_ms=options.retry_max_ms,
                retry_jitter=options.retry_jitter,
            ),
            timeout=job.timeout_ms / 1000,
            handler=job.handler,
            is_async=job.is_async,
            decode=job.arguments,
        )
        for job in jobs
    ]


@contextmanager
def signals_stop(workers: Sequence[Worker]) -> Generator[None]:
    """SIGTERM and Ctrl-C stop the workers; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal received
        if received:
            os._exit(128 + number)
        received = True
        log_event("info", "signal received, draining", signal=signal.Signals(number).name)
        for worker in workers:
            worker.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
