"""Sleeping until PostgreSQL says that there is work, or that it is time to look again.

A listening session that lies idle can die unnoticed. So it is spoken to directly through libpq,
never blocks, and is asked for a sign of life from time to time; without one the worker polls and a
new session is tried. Nothing here is needed for correctness.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.pq import ExecStatus

from .errors import DeverError
from .events import log_event
from .postgres_pool import Pool, Session

_LOCK_CLASS: Final = 1_145_394_770
_LOCK_MASK: Final = 2_147_483_647
_SIGN_OF_LIFE: Final = 10.0
"""Seconds of silence after which the server must answer a question."""
_PATIENCE: Final = 1.0
"""Seconds it has for any answer: the worker waits for it, and polling costs less than that."""
_TRY_AGAIN: Final = (1.0, 15.0)
"""Shortest and longest pause between attempts to listen again."""
_QUIET: Final = (0.02, 1.0)
"""Seconds after a notification in which none is wanted: the worker looks by itself. Doubles with
each one that brought no job, for many idle workers would else make each commit of a stream notify
all of them."""


class PostgresSleeper:
    """One worker's sleep over the queues with the given ids. Used from one thread; `wake` from any.

    While it sleeps its session holds a shared advisory lock per queue, which tells enqueuers that a
    notification is wanted. The first `wait` after `awake` takes the locks and returns True at once:
    a commit may have slipped in before, so the worker looks once more. A notification ends the
    sleep: the locks are given back, and taken again after a while. It listens only while it sleeps,
    because the server wakes every session that listens, whoever the notification is for.
    """

    def __init__(self, pool: Pool, queue_ids: Sequence[int]) -> None:
        self._pool = pool
        self._locks = [queue_id & _LOCK_MASK for queue_id in queue_ids]
        self._held: list[int] = []
        self._session: Session | None = None
        self._asleep = False
        self._notification = False
        self._asleep_since = 0.0
        self._quiet = _QUIET[0]
        self._quiet_until = 0.0
        self._pooled = False
        self._last_heard = 0.0
        self._next_try = 0.0
        self._pause = _TRY_AGAIN[0]
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def wait(self, timeout: float) -> bool:
        try:
            if not self._asleep:
                quiet = self._quiet_until - time.monotonic()
                if quiet > 0:
                    timeout = min(timeout, quiet)
                elif self._open():
                    self._listen()
                    self._asleep = True
                    self._asleep_since = time.monotonic()
                    return True
            woken = self._pause_for(timeout)
        except (psycopg.Error, OSError, DeverError) as error:
            self._lose(error)
            return self._pause_for(timeout)
        if self._notification:
            self._notification = False
            self._be_quiet()
        return woken

    def awake(self) -> None:
        """The worker has found work by itself or after a notification, which was worth it then."""
        self._quiet = _QUIET[0]
        self._stop_listening()

    def wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            pass  # enough wake-ups wait already
        except OSError:
            pass  # closed meanwhile

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._woken.close()
        self._waker.close()

    # --- the listening session --------------------------------------------------------------

    def _open(self) -> bool:
        """Have a session that can listen; False when there is none at the moment."""
        if self._session is not None:
            return True
        if self._pooled or time.monotonic() < self._next_try:
            return False
        session = self._pool.open()
        if session.pooled:
            # Neither LISTEN nor session locks survive behind it.
            session.close()
            self._pooled = True
            return False
        self._session = session
        return True

    def _lose(self, error: Exception) -> None:
        """Give the session up (its locks go with it) and poll until a new one can be had."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._held = []
        self._asleep = False
        self._next_try = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _TRY_AGAIN[1])
        log_event("debug", "not listening, polling instead", error=type(error).__name__)

    def _listen(self) -> None:
        """Listen and take the locks."""
        wanted = self._locks
        for _ in range(20):
            # What commits before the server listens for this session, the look afterwards sees.
            rows = self._ask(b"listen dever; " + _each("pg_try_advisory_lock_shared", wanted))
            self._pause = _TRY_AGAIN[0]
            self._held += [key for key, taken in zip(wanted, rows, strict=True) if taken == b"t"]
            wanted = [key for key in self._locks if key not in self._held]
            if not wanted:
                return
            # An enqueuer holds it for an instant while it looks whether somebody sleeps.
            time.sleep(0.001)

    def _stop_listening(self) -> None:
        """Give the locks back: an enqueue need not notify, and no notification comes through."""
        if not self._asleep:
            return
        self._asleep = False
        held, self._held = self._held, []
        try:
            self._ask(_each("pg_advisory_unlock_shared", held) + b"; unlisten dever")
            # The worker is about to look: what has come meanwhile tells it nothing new.
            self._notified()
            self._notification = False
        except (psycopg.Error, OSError) as error:
            self._lose(error)

    def _be_quiet(self) -> None:
        """A notification has come: none is wanted for a while."""
        now = time.monotonic()
        if now - self._asleep_since > _QUIET[1]:
            self._quiet = _QUIET[0]
        self._quiet_until = now + self._quiet
        self._quiet = min(2 * self._quiet, _QUIET[1])
        self._stop_listening()

    def _ask(self, command: bytes) -> list[bytes | None]:
        """The last row that a command gives; there is an end to the patience. Never in a
        transaction."""
        connection = self._connection()
        row: list[bytes | None] = []
        connection.send_query(command)
        deadline = time.monotonic() + _PATIENCE
        while True:
            connection.flush()
            while not connection.is_busy():
                result = connection.get_result()
                if result is None:
                    self._last_heard = time.monotonic()
                    return row
                if result.ntuples:
                    row = [result.get_value(0, column) for column in range(result.nfields)]
                if result.status == ExecStatus.FATAL_ERROR:
                    raise psycopg.OperationalError("the listening session failed")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise psycopg.OperationalError("the listening session gives no answer")
            if _readable(connection.socket, timeout=remaining):
                connection.consume_input()

    def _connection(self) -> Any:
        if self._session is None:
            raise psycopg.OperationalError("the listening session is closed")
        return self._session.pgconn

    def _notified(self) -> bool:
        connection = self._connection()
        connection.consume_input()
        self._last_heard = time.monotonic()
        found = False
        while (notification := connection.notifies()) is not None:
            found = self._is_mine(notification.extra) or found
        self._notification = self._notification or found
        return found

    def _is_mine(self, queue_id: bytes) -> bool:
        """Whether a notification is about a queue that this sleep is over."""
        return not queue_id.isdigit() or int(queue_id) & _LOCK_MASK in self._locks

    # --- waiting ----------------------------------------------------------------------------

    def _pause_for(self, timeout: float) -> bool:
        if self._session is not None:
            if time.monotonic() - self._last_heard > _SIGN_OF_LIFE:
                self._ask(b"select")
            # A notification that came with an earlier answer no longer makes the socket readable.
            if self._notified():
                return True
        files = [self._woken.fileno()]
        if self._session is not None:
            files.append(self._session.pgconn.socket)
        poll = select.poll()
        for file in files:
            poll.register(file, select.POLLIN)
        deadline = time.monotonic() + timeout
        remaining = timeout
        while True:
            found = {file for file, _ in poll.poll(max(0.0, remaining) * 1000)}
            woken = files[0] in found
            if woken:
                self._forget_wakes()
            if len(files) > 1 and files[1] in found:
                woken = self._notified() or woken
            # A notification about the queues of other workers only is no reason to look.
            remaining = deadline - time.monotonic()
            if woken or not found or remaining <= 0:
                return woken

    def _forget_wakes(self) -> None:
        try:
            while self._woken.recv(64):
                pass
        except BlockingIOError:
            pass


def _each(function: str, keys: Sequence[int]) -> bytes:
    """One row with the result of the function for each key."""
    calls = ", ".join(f"pg_catalog.{function}({_LOCK_CLASS}, {key})" for key in keys)
    return f"select {calls}".encode()


def _readable(file: int, *, timeout: float) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
