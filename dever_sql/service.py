"""What a Group runs: the workers, the scheduler, an ASGI application, a plain coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from .engine import Engine
from .errors import DatabaseUnavailable, DeverError, LeadershipLost
from .events import log_event
from .outage import Outage
from .scheduler import run_schedules
from .worker import Worker

_POLL: Final = 0.05
_JOIN_SECONDS: Final = 2.0
"""What a cancelled request has to clean up."""
_TURN_SECONDS: Final = 1.0
"""Between a scheduler's tries to take its turn, or to reach its database."""


class Service(Protocol):
    """One thing that a process does. A Group calls the methods in this order."""

    async def start(self) -> None:
        """Begin to serve, and return then. Raises what makes that impossible."""
        ...

    async def wait(self) -> None:
        """Wait for the end of the service; raises when that is a failure.

        Cancelled when the group stops, which must not end what is being served.
        """
        ...

    def stop_accepting(self) -> None:
        """Take nothing new. From any thread, perhaps before `start`, perhaps twice."""
        ...

    async def drain(self, seconds: float) -> bool:
        """Let what is in hand end by itself, then cut it off; whether nothing was cut off."""
        ...

    def close(self) -> None:
        """Give up what the service holds; also one that was never started, perhaps twice."""
        ...


class WorkerService:
    """Workers, whose async handlers run on the group's loop."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    async def start(self) -> None:
        for worker in self._workers:
            worker.start(loop=asyncio.get_running_loop())

    async def wait(self) -> None:
        while all(_exit_code(worker) is None for worker in self._workers):
            await asyncio.sleep(_POLL)
        raise DeverError("a worker ended by itself")

    def stop_accepting(self) -> None:
        for worker in self._workers:
            worker.stop()

    async def drain(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            codes = [_exit_code(worker) for worker in self._workers]
            if None not in codes:
                return not any(codes)
            if loop.time() >= deadline:
                for worker in self._workers:
                    worker.abort()
                deadline = float("inf")
            await asyncio.sleep(_POLL)

    def close(self) -> None:
        """Workers end with `drain`, and one that was not started holds nothing."""


def _exit_code(worker: Worker) -> int | None:
    """None while it works. Raises what ended it."""
    try:
        return worker.wait(0)
    except TimeoutError:
        return None


class SchedulerService:
    """Fires the schedules of a database for a program without a worker; a worker does so itself.

    Of several such services, in one process or many, one fires and the others stand by (R7.5).
    An outage ends nothing; what no later try can change does, such as a missing installation.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._outage = Outage("scheduler")
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="dever-scheduler", daemon=True)

    async def start(self) -> None:
        self._thread.start()

    async def wait(self) -> None:
        while not self._ended.is_set():
            await asyncio.sleep(_POLL)
        raise self._failure or DeverError("the scheduler ended by itself")

    def stop_accepting(self) -> None:
        self._stop.set()

    async def drain(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self._ended.is_set():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    def close(self) -> None:
        """The scheduler ends with `drain`, and one that was not started holds nothing."""

    def _serve(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._engine.clock()
                    self._outage.over()
                    run_schedules(self._engine, self._stop)
                except LeadershipLost:
                    self._stop.wait(_TURN_SECONDS)
                except DatabaseUnavailable as error:
                    self._outage.trouble(error, "fire schedules")
                    self._stop.wait(_TURN_SECONDS)
        except BaseException as error:
            self._failure = error
        finally:
            self._ended.set()


class ApiService:
    """An ASGI application behind uvicorn, on a socket that is bound here. Port 0: any free one.

    Raises DeverError when uvicorn is not installed or the address cannot be had.
    """

    def __init__(self, app: Any, host: str, port: int) -> None:
        try:
            uvicorn: Any = importlib.import_module("uvicorn")
        except ImportError:
            raise DeverError(
                "uvicorn is not installed; an API cannot listen without it",
                hint='pip install "dever-sql[api]"',
            ) from None
        self._server: Any = uvicorn.Server(uvicorn.Config(app, log_config=None))
        # It would handle signals itself, and raise them again at its end.
        self._server.capture_signals = contextlib.nullcontext
        self._socket = _listening(host, port)
        self._serving: asyncio.Task[None] | None = None
        self.port: int = self._socket.getsockname()[1]
        """The port it listens on."""

    async def start(self) -> None:
        self._serving = asyncio.create_task(self._serve(), name="api")
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.01)
        if self._serving.done():
            self._serving.result()
        log_event("info", "api listening", host=self._socket.getsockname()[0], port=self.port)

    async def wait(self) -> None:
        if self._serving is not None:
            await asyncio.wait({self._serving})
            self._serving.result()
        raise DeverError("the API ended by itself")

    def stop_accepting(self) -> None:
        self._server.should_exit = True

    async def drain(self, seconds: float) -> bool:
        if self._serving is None:
            return True
        if await _ends(self._serving, seconds):
            self._serving.result()
            return True
        for request in list(self._server.server_state.tasks):
            request.cancel()
        if not await _ends(self._serving, _JOIN_SECONDS):
            self._server.force_exit = True
            self._serving.cancel()
            await _ends(self._serving, _JOIN_SECONDS)
        return False

    def close(self) -> None:
        self._socket.close()

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        except SystemExit:  # inside a task it would end the loop before the others have drained
            raise DeverError("the API did not start; its log says why") from None


def _listening(host: str, port: int) -> socket.socket:
    """Bound and listening: merely bound, another process could bind the same port too."""
    listener: socket.socket | None = None
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise DeverError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another api.host or api.port, or end the process that has it",
        ) from None
    return listener


class CoroutineService:
    """A coroutine function without arguments. It may end by itself; a stop cancels it."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._function = function
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._call())

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})
            if self._task.cancelled():
                raise DeverError("the coroutine cancelled itself")
            self._task.result()

    def stop_accepting(self) -> None:
        if self._task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def drain(self, seconds: float) -> bool:
        if self._task is None:
            return True
        if not await _ends(self._task, seconds):
            self._task.cancel()
            return False
        if not self._task.cancelled():
            self._task.result()
        return True

    def close(self) -> None:
        """A coroutine ends with `drain`."""

    async def _call(self) -> None:
        try:
            await self._function()
        except (SystemExit, KeyboardInterrupt) as error:  # see ApiService
            raise DeverError(f"the coroutine raised {type(error).__name__}") from None


async def _ends(task: asyncio.Task[None], seconds: float) -> bool:
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)
