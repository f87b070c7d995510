"""The services of one process side by side: the first failure stops the rest (R8.2, R8.4).

    group = Group(shutdown_ms=30_000)
    group.add("worker", WorkerService(program_workers()))
    group.add("api", ApiService(app, "127.0.0.1", 8000))
    raise SystemExit(group.run())

Only the Group owns signals. Listeners are bound when a service is made, so a port that is taken is
found out before anything is claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import Any, Final, Protocol

from .errors import DeverError, InvalidArgument
from .events import log_event
from .failure import describe
from .worker import Worker

_GRACE_SECONDS: Final = 10.0
"""What services have beyond `shutdown_ms` to join, release their leases and say goodbye."""


class Service(Protocol):
    """One thing a process does."""

    async def run(self) -> int:
        """Serve until `stop`; 0 after a clean end, another number when work was cut off."""
        ...

    def stop(self) -> None:
        """Take nothing new and end soon. Called from a signal handler or any thread."""
        ...

    def close(self) -> None:
        """Give up what the service holds. Called after `run` or instead of it, perhaps twice."""
        ...


class Group:
    """Runs services until a signal or the first failure; then stops all of them.

    `shutdown_ms`: what running work has to end by itself.
    """

    def __init__(self, *, shutdown_ms: int = 30_000) -> None:
        self._shutdown_seconds = shutdown_ms / 1000
        self._services: dict[str, Service] = {}
        self._exit_code = 0
        self._stopping = threading.Event()

    def add(self, name: str, service: Service) -> None:
        """Add a service before `run`."""
        if name in self._services:
            raise InvalidArgument(f"the group has a service {name!r} already")
        self._services[name] = service

    def run(self) -> int:
        """Run the services; the exit code: 0 only when all ended clean after a signal or `stop`."""
        with signals_stop(self.stop):
            try:
                return asyncio.run(self.arun())
            finally:
                self.close()

    async def arun(self) -> int:
        """`run` on a loop that is running already; signals are the caller's."""
        if not self._services:
            raise InvalidArgument("the group has no service", hint="add one before it runs")
        tasks = {
            asyncio.create_task(self._serve(name, service), name=name)
            for name, service in self._services.items()
        }
        pending = tasks
        while pending and not self._stopping.is_set():
            _, pending = await asyncio.wait(pending, timeout=0.1)
        if pending:
            patience = self._shutdown_seconds + _GRACE_SECONDS
            _, pending = await asyncio.wait(pending, timeout=patience)
        if pending:
            self._exit_code = self._exit_code or 1
            for task in pending:
                log_event("error", "service did not end in time", service=task.get_name())
                task.cancel()
            await asyncio.wait(pending, timeout=1.0)
        return self._exit_code

    def close(self) -> None:
        """Close the services: listeners, and what else they hold."""
        for service in self._services.values():
            service.close()

    def stop(self) -> None:
        """Stop all services. Safe from any thread and from a signal handler."""
        self._stopping.set()
        for service in self._services.values():
            service.stop()

    async def _serve(self, name: str, service: Service) -> None:
        try:
            code = await service.run()
        except asyncio.CancelledError:
            raise
        # SystemExit too: libraries call exit() when they cannot go on, which would end the loop
        # before the other services have drained.
        except BaseException as error:
            self._fail(name, error.message if isinstance(error, DeverError) else describe(error))
            return
        if code != 0:
            self._exit_code = self._exit_code or code
        elif not self._stopping.is_set():
            self._fail(name, "it ended by itself")
            return
        log_event("info", "service ended", service=name)
        self.stop()

    def _fail(self, name: str, error: str) -> None:
        log_event("error", "service failed, stopping the others", service=name, error=error)
        self._exit_code = self._exit_code or 1
        self.stop()


class WorkerService:
    """Workers whose async handlers run on the group's loop."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    async def run(self) -> int:
        codes = await asyncio.gather(*(worker.arun() for worker in self._workers))
        return max(codes, default=0)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        pass


class ApiService:
    """An ASGI application behind uvicorn, on a socket that is bound here. Port 0: any free one.

    Raises DeverError when uvicorn is not installed or the address cannot be had.
    """

    def __init__(
        self, app: Any, host: str, port: int, *, shutdown_ms: int = 30_000, **options: Any
    ) -> None:
        try:
            uvicorn: Any = importlib.import_module("uvicorn")
        except ImportError:
            raise DeverError(
                "uvicorn is not installed; an API cannot listen without it",
                hint="pip install uvicorn",
            ) from None
        self._socket = _bound(host, port)
        config = uvicorn.Config(
            app, timeout_graceful_shutdown=max(1, shutdown_ms // 1000), log_config=None, **options
        )
        self._server: Any = uvicorn.Server(config)
        # It would handle signals itself and raise them again afterwards.
        self._server.capture_signals = contextlib.nullcontext

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._socket.getsockname()[1]

    async def run(self) -> int:
        log_event("info", "api listening", host=self._socket.getsockname()[0], port=self.port)
        await self._server.serve(sockets=[self._socket])
        if not self._server.started:
            raise DeverError("the API did not start; see its log for the reason")
        return 0

    def stop(self) -> None:
        self._server.should_exit = True

    def close(self) -> None:
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise DeverError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another api.port, or end the process that has it",
        ) from None
    return bound


@contextlib.contextmanager
def signals_stop(stop: Callable[[], None]) -> Generator[None]:
    """SIGTERM and Ctrl-C call `stop`; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal received
        if received:
            os._exit(128 + number)
        received = True
        log_event("info", "signal received, draining", signal=signal.Signals(number).name)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
