"""Running the workers of a program: one for each of its databases, and signals (R8.1, R8.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import database
from .declare import Job, all_jobs
from .errors import DeclarationError, DeverError, SettingsError
from .events import log_event
from .group import GRACE_SECONDS, Group
from .run import Task
from .settings import JobSettings
from .signals import signals_stop
from .worker import Worker, WorkerOptions


def serve_program(*, until_idle: bool = False) -> int:
    """Work the jobs declared so far, with the program's settings, until a signal ends it.

    The exit code: 0 after a clean drain, 1 when work was cut off. `until_idle`: end by itself once
    nothing is due. In mode `api` it does nothing. Raises SettingsError, DeclarationError or
    InstallError before anything is claimed.
    """
    settings, _ = database.program()
    if settings.runtime.mode == "api":
        log_event("info", "no worker in this process", mode="api")
        return 0
    workers = program_workers()
    at_latest = settings.runtime.shutdown_ms / 1000 + GRACE_SECONDS

    def stop() -> None:
        for worker in workers:
            worker.stop()

    try:
        with signals_stop(stop, at_latest=at_latest):
            for worker in workers:
                worker.start(until_idle=until_idle)
            return _wait_for(workers, stop)
    finally:
        database.close_all()


def _wait_for(workers: Sequence[Worker], stop: Callable[[], None]) -> int:
    """The worst exit code. The first worker that fails stops the others, and is raised then."""
    code = 0
    failure: BaseException | None = None
    waiting = list(workers)
    while waiting:
        for worker in list(waiting):
            try:
                code = max(code, worker.wait(0.1 if len(waiting) > 1 else None))
            except TimeoutError:
                continue
            except BaseException as error:
                failure = failure or error
                stop()
            waiting.remove(worker)
    if failure is not None:
        raise failure
    return code


def run_program(app: Any = None) -> int:
    """Run the program in the mode its settings name (R8.2); the exit code.

    `app`: the ASGI application, which the modes `api` and `all` need. `api` claims nothing,
    `worker` listens on no port, `all` does both in one Group. Raises SettingsError and the like
    before anything listens or is claimed.
    """
    settings, _ = database.program()
    mode = settings.runtime.mode
    if app is None and mode != "worker":
        raise SettingsError(
            f'runtime.mode is "{mode}", and the program has no API',
            hint='set runtime.mode to "worker", or give the program an ASGI application',
        )
    group = Group()
    try:
        if app is not None:
            group.add_api(app)
        group.add_jobs()
        code = group.run()
        if isinstance(group.failure, DeverError):
            raise group.failure
        return code
    finally:
        group.close()
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
