"""The store for asyncio: the same calls, each on a thread so that the loop goes on."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any

from . import connection as caller
from .engine import Engine, JobRow, JobState, Missed, Outcome, ScheduleRow
from .lock import Lease, Lock
from .outbox import Outbox
from .queue import Message, Queue
from .store import Store
from .wire import encode_json


class AsyncMessage:
    """A claimed message; `message` has its id, token, key, payload and the rest."""

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def id(self) -> int:
        return self.message.id

    @property
    def token(self) -> int:
        return self.message.token

    @property
    def key(self) -> str | None:
        return self.message.key

    @property
    def attempt(self) -> int:
        return self.message.attempt

    @property
    def max_attempts(self) -> int:
        return self.message.max_attempts

    @property
    def payload(self) -> Any:
        return self.message.payload

    async def ack(self) -> bool:
        return await asyncio.to_thread(self.message.ack)

    async def retry(
        self, error: str | BaseException | None = None, delay: timedelta | None = None
    ) -> bool:
        return await asyncio.to_thread(self.message.retry, error, delay)

    async def fail(self, error: str | BaseException | None = None) -> bool:
        return await asyncio.to_thread(self.message.fail, error)

    async def heartbeat(self) -> bool:
        return await asyncio.to_thread(self.message.heartbeat)


class AsyncQueue:
    """As `Queue`. `connection`: the caller's open async connection or session."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._queue = Queue(engine, name)
        self.name = name

    async def send(
        self,
        payload: object = None,
        *,
        key: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        expires: timedelta | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int:
        if connection is not None:
            steps = self._engine.send_steps(
                self.name, encode_json(payload), key, delay, run_at, expires, max_attempts
            )
            return await caller.arun(self._engine, connection, steps)
        return await asyncio.to_thread(
            self._queue.send,
            payload,
            key=key,
            delay=delay,
            run_at=run_at,
            expires=expires,
            max_attempts=max_attempts,
        )

    async def send_many(self, payloads: Sequence[object]) -> list[int]:
        return await asyncio.to_thread(self._queue.send_many, payloads)

    async def claim(
        self, n: int = 1, *, worker: str, lease: timedelta | None = None
    ) -> list[AsyncMessage]:
        claimed = await asyncio.to_thread(self._queue.claim, n, worker=worker, lease=lease)
        return [AsyncMessage(message) for message in claimed]


class AsyncOutbox:
    """As `Outbox`. `connection`: the caller's open async connection or session."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._outbox = Outbox(engine, name)
        self.name = name

    async def enqueue(
        self,
        payload: object = None,
        *,
        key: str | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int:
        if connection is not None:
            steps = self._engine.outbox_enqueue_steps(
                self.name, encode_json(payload), key, max_attempts
            )
            return await caller.arun(self._engine, connection, steps)
        return await asyncio.to_thread(
            self._outbox.enqueue, payload, key=key, max_attempts=max_attempts
        )

    async def run_once(
        self, worker: str, delivery: Callable[[Message], Awaitable[Any] | Any]
    ) -> bool:
        """As `Outbox.run_once`; `delivery` runs on the loop and may be a coroutine function."""
        message = await asyncio.to_thread(self._outbox.claim, worker)
        if message is None:
            return False
        try:
            result = delivery(message)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            await asyncio.to_thread(message.retry, error)
        else:
            await asyncio.to_thread(message.ack)
        return True


class AsyncLease:
    """As `Lease`."""

    __slots__ = ("lease",)

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    @property
    def token(self) -> int:
        return self.lease.token

    async def renew(self, ttl: timedelta | None = None) -> bool:
        return await asyncio.to_thread(self.lease.renew, ttl)

    async def release(self) -> bool:
        return await asyncio.to_thread(self.lease.release)


class AsyncLock:
    """As `Lock`."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._lock = Lock(engine, name)
        self.name = name

    async def acquire(self, ttl: timedelta, *, owner: str | None = None) -> AsyncLease | None:
        lease = await asyncio.to_thread(self._lock.acquire, ttl, owner=owner)
        return None if lease is None else AsyncLease(lease)


class AsyncStore:
    """As `Store`, for asyncio. `close` it, or use it in an async with block."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.engine = store.engine

    @classmethod
    async def open(cls, url: str) -> AsyncStore:
        """As `Store.open`."""
        return cls(await asyncio.to_thread(Store.open, url))

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)

    def queue(self, name: str) -> AsyncQueue:
        return AsyncQueue(self.engine, name)

    def outbox(self, name: str) -> AsyncOutbox:
        return AsyncOutbox(self.engine, name)

    def lock(self, name: str) -> AsyncLock:
        return AsyncLock(self.engine, name)

    async def schedule(
        self,
        name: str,
        spec: str,
        queue: str,
        payload: object = None,
        *,
        missed: Missed = "catch_up",
        expires: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> ScheduleRow:
        return await asyncio.to_thread(
            self._store.schedule,
            name,
            spec,
            queue,
            payload,
            missed=missed,
            expires=expires,
            max_attempts=max_attempts,
        )

    async def unschedule(self, name: str) -> bool:
        return await asyncio.to_thread(self._store.unschedule, name)

    async def pause_schedule(self, name: str) -> bool:
        return await asyncio.to_thread(self._store.pause_schedule, name)

    async def resume_schedule(self, name: str) -> bool:
        return await asyncio.to_thread(self._store.resume_schedule, name)

    async def rewind_schedule(self, name: str) -> bool:
        return await asyncio.to_thread(self._store.rewind_schedule, name)

    async def schedules(self) -> list[ScheduleRow]:
        return await asyncio.to_thread(self._store.schedules)

    async def run_schedules(self, stop: asyncio.Event) -> None:
        """As `Store.run_schedules`; cancelling the call stops the runner and waits for it."""
        ended = threading.Event()
        runner = asyncio.ensure_future(asyncio.to_thread(self._store.run_schedules, ended))
        waiter = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({runner, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.set()
            waiter.cancel()
            await asyncio.wait({runner})
        runner.result()

    async def get_job(self, id: int) -> JobRow | None:
        return await asyncio.to_thread(self._store.get_job, id)

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        target: str | None = None,
        key: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> list[JobRow]:
        return await asyncio.to_thread(
            self._store.jobs,
            state=state,
            queue=queue,
            target=target,
            key=key,
            limit=limit,
            before=before,
        )

    async def cancel(self, ids: Sequence[int]) -> list[Outcome]:
        return await asyncio.to_thread(self._store.cancel, ids)

    async def redrive(self, ids: Sequence[int]) -> list[Outcome]:
        return await asyncio.to_thread(self._store.redrive, ids)

    async def drop_jobs(self, ids: Sequence[int]) -> list[Outcome]:
        return await asyncio.to_thread(self._store.drop_jobs, ids)
