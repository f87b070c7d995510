"""`transaction("name")`: the program's rows and its jobs in one commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Self, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .engine import Engine
from .errors import DatabaseUnavailable, DeverError, InvalidArgument, LeaseLost

Parameters = Mapping[str, Any] | Sequence[Any] | None
_Rows = list[tuple[Any, ...]]

SQLITE_SECONDS: Final = 20.0
"""How long a write transaction may hold the only write lock of an SQLite file."""

_current: ContextVar[Transaction | None] = ContextVar("dever_transaction", default=None)


class Transaction:
    """An open transaction; commits at the end of the block, rolls back on an exception.

    A block inside a block of the same database joins it: there is one transaction, which the
    outermost block ends. When an inner block fails all of it is rolled back, and an outer one that
    caught the exception raises DeverError at its end.

    `execute(statement, parameters)` runs SQL in the driver's own parameter style (psycopg `%s` and
    `%(name)s`, sqlite3 `?` and `:name`) and returns the rows as tuples; await it inside
    `async with`. `connection` is the driver's connection: do not commit it.
    """

    def __init__(self, database: str, engine_for: Callable[[str], Engine]) -> None:
        self.database = database
        """The logical name."""
        self._engine_for = engine_for
        self._holder: Any = None
        self._token: Token[Transaction | None] | None = None
        self._is_async = False
        self._before: Transaction | None = None
        """The innermost transaction that was open when this one began."""
        self._outer: Transaction | None = None
        """The one that this block joined."""
        self._spoilt = False
        """A block that joined this one has failed."""

    @staticmethod
    def current() -> Transaction | None:
        """The innermost open transaction of this thread or task."""
        found = _current.get()
        # A task that was started inside a block and outlives it is in no transaction any more.
        return found if found is not None and found._holder is not None else None

    @property
    def connection(self) -> Any:
        if self._holder is None:
            raise DeverError("the transaction is not open", hint="use it inside its with block")
        return self._holder.connection

    @property
    def dever_connection(self) -> Any:
        """What an enqueue joins."""
        if self._holder is None:
            raise DeverError("the transaction is not open", hint="use it inside its with block")
        return self._holder.link()

    def execute(self, statement: str, parameters: Parameters = None) -> Any:
        """Run one statement; its rows, an empty list when it returns none."""
        if self._holder is None:
            raise DeverError("the transaction is not open", hint="use it inside its with block")
        if self._is_async:
            return self._holder.aexecute(statement, parameters)
        return self._holder.execute(statement, parameters)

    def __enter__(self) -> Self:
        if not self._joins(is_async=False):
            holder = _holder(self._engine_for(self.database), is_async=False)
            holder.begin()
            self._holder = holder
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        holder, commit = self._leave(error)
        if holder is not None:
            holder.end(commit=commit)
            self._tell_spoilt(error)

    async def __aenter__(self) -> Self:
        self._is_async = True
        if not self._joins(is_async=True):
            holder = _holder(
                await asyncio.to_thread(self._engine_for, self.database), is_async=True
            )
            await holder.abegin()
            self._holder = holder
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        holder, commit = self._leave(error)
        if holder is not None:
            await holder.aend(commit=commit)
            self._tell_spoilt(error)

    def _joins(self, *, is_async: bool) -> bool:
        """Join the open transaction on the same database, if there is one."""
        if self._holder is not None:
            raise InvalidArgument("this transaction is open already")
        self._before = outer = Transaction.current()
        while outer is not None and outer.database != self.database:
            outer = outer._before
        self._outer = outer
        if outer is None:
            return False
        if outer._is_async != is_async:
            wanted = "async with" if outer._is_async else "with"
            raise InvalidArgument(
                f"the open transaction on {self.database!r} is one of `{wanted}`",
                hint=f"join it by `{wanted} transaction({self.database!r})`",
            )
        self._holder = outer._holder
        return True

    def _leave(self, error: BaseException | None) -> tuple[Any, bool]:
        """What to end, None for a block that joined another; and whether to commit it."""
        holder, self._holder = self._holder, None
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        commit = error is None and not self._spoilt
        if self._outer is None:
            return holder, commit
        self._outer._spoilt = self._outer._spoilt or not commit
        return None, False

    def _tell_spoilt(self, error: BaseException | None) -> None:
        if error is None and self._spoilt:
            raise DeverError(
                "a block inside this transaction failed, so all of it was rolled back",
                hint="let the exception leave the outer block too",
            )


def open_transaction(database: str, engine_for: Callable[[str], Engine]) -> Transaction:
    return Transaction(database, engine_for)


def _holder(engine: Engine, *, is_async: bool) -> Any:
    from .postgres import PostgresEngine
    from .sqlite import SQLiteEngine

    if isinstance(engine, PostgresEngine):
        return _AsyncPostgres(engine) if is_async else _Postgres(engine)
    if isinstance(engine, SQLiteEngine) and engine.path != ":memory:":
        return _Sqlite(engine, is_async)
    raise InvalidArgument(f"{engine!r} has no transactions")


class _Postgres:
    """A pooled session of the engine, lent for the length of the transaction."""

    def __init__(self, engine: Any) -> None:
        self._lending = engine.lend()
        self.connection: psycopg.Connection[Any] = self._lending.__enter__()
        self._block = self.connection.transaction()

    def link(self) -> Any:
        return self.connection

    def begin(self) -> None:
        try:
            self._block.__enter__()
        except BaseException as error:
            self._lending.__exit__(type(error), error, None)
            raise

    def execute(self, statement: str, parameters: Parameters) -> _Rows:
        with self.connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(cast(Any, statement), parameters)
            return cursor.fetchall() if cursor.description else []

    def end(self, *, commit: bool) -> None:
        fault = _fault(self.connection) if commit else None
        cause = None if commit and fault is None else _Rollback()
        try:
            self._block.__exit__(type(cause) if cause else None, cause, None)
        finally:
            self._lending.__exit__(None, None, None)
        if fault is not None:
            raise fault


def _fault(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> DeverError | None:
    """Why there is nothing to commit any more, though the block ended well: it caught an error."""
    status = connection.info.transaction_status
    if connection.closed or status == TransactionStatus.UNKNOWN:
        return DatabaseUnavailable(
            "the connection was lost, and with it the transaction", hint="run it again"
        )
    if status == TransactionStatus.INERROR:
        # The server would answer a commit with a rollback, and nobody would hear of it.
        return DeverError(
            "a statement in this transaction failed, so all of it was rolled back",
            hint="let its exception leave the block, or run it in a savepoint",
        )
    return None


class _Rollback(Exception):
    """Tells the driver's transaction block to roll back."""


class _AsyncPostgres:
    """An async connection of the engine, lent for the length of the transaction."""

    def __init__(self, engine: Any) -> None:
        self._pool = engine.async_transactions
        self.connection: psycopg.AsyncConnection[Any] | None = None

    def link(self) -> Any:
        return self.connection

    async def abegin(self) -> None:
        self.connection = await self._pool.take()
        try:
            await self._driver().execute("begin isolation level read committed")
        except BaseException:
            await self._pool.give_back(self.connection)
            raise

    def _driver(self) -> psycopg.AsyncConnection[Any]:
        if self.connection is None:
            raise DeverError("the transaction is not open")
        return self.connection

    async def aexecute(self, statement: str, parameters: Parameters) -> _Rows:
        async with self._driver().cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(cast(Any, statement), parameters)
            return await cursor.fetchall() if cursor.description else []

    async def aend(self, *, commit: bool) -> None:
        connection = self._driver()
        fault = _fault(connection) if commit else None
        try:
            if not connection.closed:
                await connection.execute("commit" if commit and fault is None else "rollback")
        finally:
            await self._pool.give_back(connection)
        if fault is not None:
            raise fault


class ThreadedSqlite:
    """An sqlite3 connection whose calls run in a thread, one after the other."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    async def execute(self, statement: str, parameters: Parameters) -> _Rows:
        return await asyncio.to_thread(sqlite_rows, self.connection, statement, parameters)


def sqlite_rows(connection: sqlite3.Connection, statement: str, parameters: Parameters) -> _Rows:
    """The rows of a statement as tuples, whatever row factory the connection has."""
    cursor: sqlite3.Cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    try:
        return cursor.execute(statement, cast(Any, parameters or ())).fetchall()
    finally:
        cursor.close()


class _Sqlite:
    """An own connection that holds the file's write lock from begin to end."""

    def __init__(self, engine: Any, is_async: bool) -> None:
        self._engine = engine
        self._is_async = is_async
        self._began = 0.0
        self._seconds = SQLITE_SECONDS
        self._watch: threading.Timer | None = None
        self.connection: Any = None

    def link(self) -> Any:
        return ThreadedSqlite(self.connection) if self._is_async else self.connection

    def begin(self) -> None:
        from .sqlite_file import begin_immediate, connect

        self.connection = connect(self._engine.path)
        try:
            begin_immediate(self.connection)
            self._renew_own_lease()
        except BaseException:
            self.connection.close()
            raise
        self._began = time.monotonic()
        self._watch = threading.Timer(self._seconds, self._undo, [self.connection])
        self._watch.daemon = True
        self._watch.start()

    @staticmethod
    def _undo(connection: sqlite3.Connection) -> None:
        """Give the write lock back though the handler sleeps on; nothing works on it any more."""

        def refuse(action: int, operation: str | None, *_: str | None) -> int:
            is_rollback = action == sqlite3.SQLITE_TRANSACTION and operation == "ROLLBACK"
            return sqlite3.SQLITE_OK if is_rollback else sqlite3.SQLITE_DENY

        # Closed meanwhile: the transaction has ended by itself.
        with suppress(sqlite3.ProgrammingError):
            connection.interrupt()
            # First this: a statement after the rollback would commit by itself.
            connection.set_authorizer(refuse)
            if connection.in_transaction:
                connection.execute("rollback")

    def _renew_own_lease(self) -> None:
        """Inside a job: nobody can renew its lease while this transaction is open."""
        from .job import running
        from .sqlite_file import Transaction as Writing
        from .sqlite_verbs import renew

        context = running.get()
        lease = None if context is None else context.lease_in(self._engine)
        if context is None or lease is None:
            return
        [verdict] = Writing(self.connection).run(renew([context.id], [context.token], lease))
        if verdict.ok is False:
            raise LeaseLost(
                f"job {context.id} is no longer ours", hint="another attempt has taken over"
            )
        self._seconds = min(SQLITE_SECONDS, lease.total_seconds() / 3)

    async def abegin(self) -> None:
        beginning = asyncio.create_task(asyncio.to_thread(self.begin))
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread may wait for the write lock still, and then would keep it.
            beginning.add_done_callback(self._abandon)
            raise

    def _abandon(self, beginning: asyncio.Task[None]) -> None:
        if not beginning.cancelled() and beginning.exception() is None:
            self.end(commit=False)

    def execute(self, statement: str, parameters: Parameters) -> _Rows:
        self._check_time()
        return sqlite_rows(self.connection, statement, parameters)

    async def aexecute(self, statement: str, parameters: Parameters) -> _Rows:
        return await asyncio.to_thread(self.execute, statement, parameters)

    def end(self, *, commit: bool) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch.join()
        try:
            if commit:
                self._check_time()
                if not self.connection.in_transaction:
                    raise DeverError(
                        "SQLite has rolled this transaction back, nothing of it was stored",
                        hint="let the exception of the statement that failed leave the block",
                    )
            if self.connection.in_transaction:
                self.connection.execute("commit" if commit else "rollback")
        finally:
            self.connection.close()  # rolls back what is still open
        if commit:
            self._engine.wake()

    async def aend(self, *, commit: bool) -> None:
        await asyncio.to_thread(lambda: self.end(commit=commit))

    def _check_time(self) -> None:
        seconds = time.monotonic() - self._began
        if seconds > self._seconds:
            if self.connection.in_transaction:
                self.connection.execute("rollback")
            raise DeverError(
                f"the SQLite transaction was open for {seconds:.1f} s and was rolled back: nobody"
                " else can write meanwhile, and leases run out",
                hint=f"keep it below {self._seconds:.1f} s; do slow work before it",
            )
