"""Async connections for transactions of the program's own, bounded like the sync ones (R8.3)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import psycopg

from .errors import DatabaseUnavailable
from .postgres_pool import Pool, has_something_to_say, may_be_kept

AsyncSession = psycopg.AsyncConnection[tuple[Any, ...]]

_LENDING_PATIENCE: Final = 30.0
"""Seconds that a task waits for a connection when all of them are lent."""


class _OfLoop:
    """What one event loop has: connections cannot move to another one."""

    def __init__(self, size: int) -> None:
        self.slots = asyncio.Semaphore(size)
        self.free: list[AsyncSession] = []


class AsyncPool:
    """At most `size` connections per event loop, each lent to one transaction at a time."""

    def __init__(self, source: Pool, size: int) -> None:
        self._source = source
        self._size = size
        self._lock = threading.Lock()
        self._loops: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    async def take(self) -> AsyncSession:
        """Borrow a connection, which `give_back` must get. Raises DatabaseUnavailable."""
        mine = self._mine()
        try:
            async with asyncio.timeout(_LENDING_PATIENCE):
                await mine.slots.acquire()
        except TimeoutError:
            raise DatabaseUnavailable(
                f"all {self._size} async connections to {self._source.shown_url} have been in use"
                f" for {_LENDING_PATIENCE:.0f} s",
                hint="raise database.<name>.connections, or keep transactions shorter",
            ) from None
        try:
            while mine.free:
                session = mine.free.pop()
                if not session.closed and not has_something_to_say(session):
                    return session
                await session.close()
            return await self._source.open_async()
        except BaseException:
            mine.slots.release()
            raise

    async def give_back(self, session: AsyncSession) -> None:
        """End the loan. A connection that is lost, in a transaction or read-only is closed."""
        mine = self._mine()
        mine.slots.release()
        if may_be_kept(session):
            mine.free.append(session)
        else:
            await session.close()

    def close(self) -> None:
        """Close what lies idle, whatever loop it belongs to."""
        with self._lock:
            loops, self._loops = self._loops, {}
        for each in loops.values():
            _finish(each)

    def _mine(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._loops if other.is_closed()]:
                _finish(self._loops.pop(other))
            return self._loops.setdefault(loop, _OfLoop(self._size))


def _finish(of_loop: _OfLoop) -> None:
    # The loop may have ended: an async close would need it.
    for session in of_loop.free:
        session.pgconn.finish()
