"""Connections of the PostgreSQL engine: how one is opened, kept, checked and given up."""

from __future__ import annotations

import re
import select
import struct
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg import conninfo
from psycopg.adapt import Loader
from psycopg.pq import Format, TransactionStatus

from .credentials import hide_credentials
from .errors import DatabaseUnavailable, InstallError, InvalidArgument
from .events import log_event

CALL_TIMEOUT: Final = 60.0
"""Seconds without an answer after which a connection counts as lost: a network that swallows
packets gives no error by itself."""

_LENDING_PATIENCE: Final = 30.0
"""Seconds to wait for another thread to give a connection back."""

_KEEPALIVE: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST_INSTANT: Final = datetime.min.replace(tzinfo=UTC)
_LAST_INSTANT: Final = datetime.max.replace(tzinfo=UTC)
_FIRST_MICROSECOND: Final = (_FIRST_INSTANT - _POSTGRES_EPOCH) // timedelta(microseconds=1)
_LAST_MICROSECOND: Final = (_LAST_INSTANT - _POSTGRES_EPOCH) // timedelta(microseconds=1)
_DAY_US: Final = 86_400_000_000
_unpack_int64 = struct.Struct("!q").unpack
_unpack_interval = struct.Struct("!qii").unpack


class _InstantLoader(Loader):
    """Instants in UTC, whatever the session's TimeZone and DateStyle are."""

    format = Format.BINARY

    def load(self, data: Any) -> datetime:
        return _instant(_unpack_int64(data)[0])


@lru_cache(maxsize=1024)
def _instant(microseconds: int) -> datetime:
    """Jobs that were enqueued or claimed together have the same instants."""
    if not _FIRST_MICROSECOND <= microseconds <= _LAST_MICROSECOND:
        return _FIRST_INSTANT if microseconds < 0 else _LAST_INSTANT
    return _POSTGRES_EPOCH + timedelta(microseconds=microseconds)


class _DurationLoader(Loader):
    """Durations without months, whatever the session's IntervalStyle is."""

    format = Format.BINARY

    def load(self, data: Any) -> timedelta:
        microseconds, days, _months = _unpack_interval(data)
        return timedelta(days=days, microseconds=microseconds)


class Session(psycopg.Connection[tuple[Any, ...]]):
    """One connection of the engine, with a limit on how long an answer may take."""

    pooled: bool = False
    """A transaction pooler stands between: no session state, no LISTEN, no prepared statements."""
    in_transactions: bool = False
    """Calls must open their own transaction, because the session's default isolation cannot be
    changed behind the pooler."""

    def wait(
        self,
        gen: Generator[Any, Any, Any],
        interval: float = 0.0,
        timeout: float | None = None,
    ) -> Any:
        deadline = time.monotonic() + (CALL_TIMEOUT if timeout is None else timeout)
        file = self.pgconn.socket
        poll = select.poll()
        try:
            wanted = next(gen)
            poll.register(file, _events(wanted))
            while True:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    self.close()
                    raise DatabaseUnavailable(
                        f"the database gave no answer in {CALL_TIMEOUT:.0f} s",
                        hint="the network or the server is stuck; the call may be tried again",
                    )
                found = poll.poll(min(remaining, 10.0) * 1000)
                ready = _ready(found[0][1], wanted) if found else 0
                next_wanted = gen.send(ready)
                if next_wanted != wanted:
                    wanted = next_wanted
                    poll.modify(file, _events(wanted))
        except StopIteration as done:
            return done.value


def _events(wanted: int) -> int:
    """Events to poll for; psycopg's Wait and Ready are bits: 1 reads, 2 writes."""
    return (select.POLLIN if wanted & 1 else 0) | (select.POLLOUT if wanted & 2 else 0)


def _ready(events: int, wanted: int) -> int:
    if events & ~(select.POLLIN | select.POLLOUT):  # an error or a hang-up: let libpq find it
        return wanted & 3
    return (1 if events & select.POLLIN else 0) | (2 if events & select.POLLOUT else 0)


def unavailable(error: Exception, shown_url: str) -> DatabaseUnavailable:
    """Connection trouble in our words: the driver's text without any password in it."""
    reason = (hide_credentials(str(error)).strip().splitlines() or [type(error).__name__])[0]
    return DatabaseUnavailable(
        f"the database at {shown_url} cannot be used: {reason}",
        hint="check that the server runs and that the URL and the credentials are right",
    )


def url_parameters(url: str) -> dict[str, Any]:
    """The parameters that a URL stands for. Raises InvalidArgument if it is malformed."""
    try:
        return conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        reason = str(error).strip()
        if not reason.startswith("invalid URI query parameter"):
            # What libpq quotes then may be a piece of a password.
            reason = re.sub('".*"', "***", reason, flags=re.DOTALL)
        raise InvalidArgument(
            f"the URL of the database is malformed: {reason}",
            hint="write special characters of a user name or password percent-encoded:"
            " % as %25, / as %2F, @ as %40",
        ) from None


class Pool:
    """At most `size` sessions, each lent to one thread at a time. Thread-safe.

    A session that failed, or that the server ended while it lay idle, is thrown away.
    """

    def __init__(
        self,
        url: str,
        *,
        size: int,
        connect_timeout: float,
        statement_timeout_ms: int | None = None,
    ) -> None:
        self._url = url
        self._statement_timeout_ms = statement_timeout_ms
        self._connect_timeout = connect_timeout
        self._size = size
        self._free: list[Session] = []
        self._slots = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._closed = False
        self.shown_url = hide_credentials(url)

    def __repr__(self) -> str:
        return f"Pool({self.shown_url!r})"

    def open(self) -> Session:
        """A new session outside the pool; the caller closes it."""
        try:
            session = Session.connect(**self._options(), autocommit=True)
        except (psycopg.Error, OSError, ValueError) as error:
            raise unavailable(error, self.shown_url) from None
        try:
            self._prepare(session)
        except psycopg.Error as error:
            session.close()
            raise unavailable(error, self.shown_url) from None
        except BaseException:
            session.close()
            raise
        return session

    async def open_async(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """A new async connection outside the pool; the caller closes it."""
        try:
            return await psycopg.AsyncConnection[tuple[Any, ...]].connect(
                **self._options(), autocommit=True, prepare_threshold=None
            )
        except (psycopg.Error, OSError, ValueError) as error:
            raise unavailable(error, self.shown_url) from None

    def _options(self) -> dict[str, Any]:
        given = url_parameters(self._url)
        options: dict[str, Any] = {
            "connect_timeout": max(1, round(self._connect_timeout)),
            "application_name": "dever",
            **_KEEPALIVE,
            **given,
            "client_encoding": "utf8",
        }
        if self._statement_timeout_ms is not None:
            asked = f"-c statement_timeout={self._statement_timeout_ms}"
            options["options"] = f"{given.get('options') or ''} {asked}".strip()
        return options

    def _prepare(self, session: Session) -> None:
        encoding, pid, isolation, array_nulls = session.execute(
            "select pg_catalog.current_setting('server_encoding'),"
            " pg_catalog.pg_backend_pid(),"
            " pg_catalog.current_setting('default_transaction_isolation'),"
            " pg_catalog.current_setting('array_nulls')"
        ).fetchone() or ("", 0, "", "")
        if encoding not in ("UTF8", b"UTF8"):
            shown = encoding.decode() if isinstance(encoding, bytes) else encoding
            raise InstallError(
                f"the database at {self.shown_url} is encoded in {shown}, Dever SQL needs UTF8",
                hint="create one with: create database NAME encoding 'UTF8' template template0",
            )
        session.pooled = pid != session.info.backend_pid
        session.prepare_threshold = None if session.pooled else 2
        if session.pooled:
            if isolation != "read committed":
                session.in_transactions = True
                session.autocommit = False
                session.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            _tell_pooled(self.shown_url)
        elif isolation != "read committed":
            # A stricter default would turn ordinary races for a row into errors.
            session.execute(
                "select pg_catalog.set_config("
                "'default_transaction_isolation', 'read committed', false)"
            )
        if array_nulls == "off":
            # A None in a list would arrive as the text "NULL".
            if session.pooled:
                raise InstallError(
                    f"the database at {self.shown_url} has array_nulls = off, which cannot be"
                    " changed for one session behind a transaction pooler",
                    hint="run: alter database NAME set array_nulls = on",
                )
            session.execute("select pg_catalog.set_config('array_nulls', 'on', false)")
        session.adapters.register_loader("timestamptz", _InstantLoader)
        session.adapters.register_loader("interval", _DurationLoader)

    @contextmanager
    def session(self) -> Generator[Session]:
        """Borrow a session; waits a while when all of them are lent."""
        if not self._slots.acquire(timeout=_LENDING_PATIENCE):
            raise DatabaseUnavailable(
                f"all {self._size} connections to {self.shown_url} have been in use for"
                f" {_LENDING_PATIENCE:.0f} s",
                hint="raise database.<name>.connections, or keep transactions shorter",
            )
        try:
            session = self._take() or self.open()
            healthy = False
            try:
                yield session
                healthy = True
            finally:
                self._give_back(session, healthy)
        finally:
            self._slots.release()

    def discard_idle(self) -> None:
        """Close what lies idle: the server behind it is gone or not the right one any more."""
        with self._lock:
            idle, self._free = self._free, []
        for session in idle:
            session.close()

    def close(self) -> None:
        self._closed = True
        self.discard_idle()

    def _take(self) -> Session | None:
        while True:
            with self._lock:
                if not self._free:
                    return None
                session = self._free.pop()
            if not session.closed and not has_something_to_say(session):
                return session
            session.close()

    def _give_back(self, session: Session, healthy: bool) -> None:
        if may_be_kept(session) and (healthy or not has_something_to_say(session)):
            with self._lock:
                if not self._closed and len(self._free) < self._size:
                    self._free.append(session)
                    return
        session.close()


_told_pooled: Final[set[str]] = set()


def _tell_pooled(shown_url: str) -> None:
    """Once per database, not for each connection."""
    if shown_url not in _told_pooled:
        _told_pooled.add(shown_url)
        log_event(
            "info",
            "behind a transaction pooler: polling instead of LISTEN, no prepared statements",
            database=shown_url,
        )


def may_be_kept(session: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether it can be lent again. One to a server that became read-only cannot: a new session may
    find the new primary. PostgreSQL says so unasked, with its answer to the next call."""
    connection = session.pgconn
    return connection.transaction_status == TransactionStatus.IDLE and b"on" not in (
        connection.parameter_status(b"default_transaction_read_only"),
        connection.parameter_status(b"in_hot_standby"),
    )


def has_something_to_say(session: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """An idle server speaks up only to say that it ends the session."""
    poll = select.poll()
    poll.register(session.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
