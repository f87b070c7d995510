"""The services of one process side by side: the first failure stops the rest (R8.2, R8.4).

    group = Group()
    group.add_api(app)                  # nothing in mode worker
    group.add_jobs()                    # nothing in mode api
    group.add("mail", fetch_mail)       # a coroutine function, in every mode
    raise SystemExit(group.run())

Only the Group owns signals. Listeners are bound when a service is added, so a port that is taken is
found out before anything is claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from . import database
from .errors import DeverError, InvalidArgument, SettingsError
from .events import log_event
from .failure import describe
from .service import ApiService, CoroutineService, SchedulerService, Service, WorkerService
from .signals import signals_stop

GRACE_SECONDS: Final = 10.0
"""What services have beyond `shutdown_ms` to join, release their leases and say goodbye."""
_LEFTOVER_SECONDS: Final = 1.0
"""What tasks nobody waited for have to end once they are cancelled."""


class _Ended(Exception):
    """Leaves the group's block: a service failed, or the group was stopped."""


class Group:
    """Runs services until a signal, `stop` or the first failure, then ends all of them.

    The end, in this order: nothing new is accepted or claimed; what is in hand has `shutdown_ms`
    (None: that of the program's settings) to end by itself, leases still renewed; then it is cut
    off, joined and its leases released; listeners are closed.
    """

    def __init__(self, *, shutdown_ms: int | None = None) -> None:
        self._shutdown_ms = shutdown_ms
        self._services: dict[str, Service] = {}
        self._left_out: list[str] = []
        self._begun: dict[str, Service] = {}
        self._failed: set[str] = set()
        self._exit_code = 0
        self.failure: BaseException | None = None
        """The first failure of a service, once there is one."""
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_seen = asyncio.Event()

    def add(self, name: str, service: Service | Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Add a service, or a coroutine function without arguments, before `run`.

        A coroutine may end by itself; when the group stops it is cancelled.
        """
        if name in self._services:
            raise InvalidArgument(f"the group has a service {name!r} already")
        self._services[name] = CoroutineService(service) if callable(service) else service

    def add_jobs(self) -> None:
        """Add the workers of the jobs declared so far; in mode `api` do nothing.

        Raises SettingsError, DeclarationError or InstallError.
        """
        from .serving import program_workers

        if self._serves("api"):
            self.add("worker", WorkerService(program_workers()))

    def add_scheduler(self, name: str = "default") -> None:
        """Add a scheduler of the logical database `name`, in every mode. For programs whose
        schedules no worker fires: a worker does so by itself.

        Raises SettingsError for a name that the settings do not have.
        """
        self.add(f"scheduler of {name}", SchedulerService(database.engine_for(name)))

    def add_api(self, app: Any) -> None:
        """Add an ASGI application, which listens where the settings say; in mode `worker` do
        nothing.

        Raises SettingsError, and DeverError when the port is taken or uvicorn is not installed.
        """
        if not self._serves("worker"):
            return
        settings, _ = database.program()
        if settings.api is None:
            raise SettingsError("api: missing; an API cannot listen without it")
        self.add("api", ApiService(app, settings.api.host, settings.api.port))

    def run(self) -> int:
        """Run the services; the exit code: 0 when all ended clean, 1 after a failure or when work
        was cut off. A second signal ends the process at once with 128 and its number."""
        at_latest = self._shutdown_seconds() + GRACE_SECONDS + 2 * _LEFTOVER_SECONDS
        loop = asyncio.new_event_loop()
        with signals_stop(self.stop, at_latest=at_latest):
            try:
                return loop.run_until_complete(self.arun())
            finally:
                self.close()
                _end_loop(loop)

    async def arun(self) -> int:
        """`run` on a loop that is running already; signals are the caller's."""
        if not self._services:
            raise self._empty()
        self._loop = asyncio.get_running_loop()
        if self._stopping.is_set():
            self._stop_seen.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                stopped = tasks.create_task(self._stopped(), name="stopped")
                waits: list[asyncio.Task[None]] = []
                for name, service in self._services.items():
                    self._begun[name] = service
                    await self._guard(name, service.start)
                    end = partial(self._end_of, service)
                    waits.append(tasks.create_task(self._guard(name, end), name=name))
                await asyncio.wait(waits)
                stopped.cancel()
        except* _Ended:
            pass
        finally:
            await self._shut_down()
        return self._exit_code

    def stop(self) -> None:
        """Stop all services. From any thread; not from a handler of signals."""
        self._stopping.set()
        for service in self._services.values():
            service.stop_accepting()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the end has come already
                self._loop.call_soon_threadsafe(self._stop_seen.set)

    def close(self) -> None:
        """Close what the services hold, such as listeners. `run` does so by itself."""
        for service in self._services.values():
            service.close()

    async def _stopped(self) -> None:
        await self._stop_seen.wait()
        raise _Ended

    async def _end_of(self, service: Service) -> None:
        """Wait for the end of a service, which is no failure when the group stops: it may come
        before the wait for it is cancelled, and `drain` tells how it was."""
        try:
            await service.wait()
        except Exception:
            if not self._stopping.is_set():
                raise

    async def _guard(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except asyncio.CancelledError:
            raise
        # SystemExit too: libraries call exit() when they cannot go on, which would end the loop
        # before the other services have drained.
        except BaseException as error:
            self._fail(name, error)
            raise _Ended from None

    def _fail(self, name: str, error: BaseException) -> None:
        self._exit_code = 1
        if name in self._failed:
            return
        self._failed.add(name)
        self.failure = self.failure or error
        shown = error.message if isinstance(error, DeverError) else describe(error)
        hint = error.hint if isinstance(error, DeverError) else None
        log_event(
            "error", "service failed, stopping the group", service=name, error=shown, hint=hint
        )

    async def _shut_down(self) -> None:
        self.stop()
        async with asyncio.TaskGroup() as tasks:
            for name, service in self._begun.items():
                tasks.create_task(self._drain(name, service), name=f"drain {name}")
        self.close()

    async def _drain(self, name: str, service: Service) -> None:
        seconds = self._shutdown_seconds()
        clean = False
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                clean = await service.drain(seconds)
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            self._fail(name, DeverError("it did not end in time"))
            return
        except BaseException as error:
            self._fail(name, error)
            return
        if not clean:
            self._exit_code = 1
        log_event(
            "info" if clean else "warning",
            "service ended" if clean else "service ended, work was cut off",
            service=name,
        )

    def _shutdown_seconds(self) -> float:
        if self._shutdown_ms is None:
            settings, _ = database.program()
            self._shutdown_ms = settings.runtime.shutdown_ms
        return self._shutdown_ms / 1000

    def _serves(self, other_mode: str) -> bool:
        """Whether this process does what a process in `other_mode` leaves to others."""
        settings, _ = database.program()
        if settings.runtime.mode == other_mode:
            self._left_out.append(other_mode)
            return False
        return True

    def _empty(self) -> DeverError:
        if self._left_out:
            return SettingsError(
                f'runtime.mode is "{self._left_out[0]}", and the program has nothing for it',
                hint="set another runtime.mode",
            )
        return InvalidArgument("the group has no service", hint="add one before it runs")


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close the loop without waiting for a task that swallows its cancellation."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_LEFTOVER_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
