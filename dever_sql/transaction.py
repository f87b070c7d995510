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
from psycopg.rows import tuple_row

from .engine import Engine
from .errors import DeverError, InvalidArgument, LeaseLost

Parameters = Mapping[str, Any] | Sequence[Any] | None
_Rows = list[tuple[Any, ...]]

SQLITE_SECONDS: Final = 20.0
"""How long a write transaction may hold the only write lock of an SQLite file."""

_current: ContextVar[Transaction | None] = ContextVar("dever_transaction", default=None)


class Transaction:
    """An open transaction; commits at the end of the block, rolls back on an exception.

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
        self._outer: Transaction | None = None

    @staticmethod
    def current() -> Transaction | None:
        """The innermost open transaction of this thread or task."""
        return _current.get()

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
        self._holder = _holder(self._prepare(), is_async=False)
        self._holder.begin()
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        holder = self._leave()
        holder.end(commit=error is None)

    async def __aenter__(self) -> Self:
        self._is_async = True
        engine = await asyncio.to_thread(self._prepare)
        self._holder = _holder(engine, is_async=True)
        await self._holder.abegin()
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        holder = self._leave()
        await holder.aend(commit=error is None)

    def _prepare(self) -> Engine:
        if self._holder is not None:
            raise InvalidArgument("this transaction is open already")
        outer = _current.get()
        if outer is not None and outer.database == self.database:
            raise InvalidArgument(
                f"a transaction on {self.database!r} is open already",
                hint="use the open one; there are no nested transactions",
            )
        return self._engine_for(self.database)

    def _leave(self) -> Any:
        holder, self._holder = self._holder, None
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        return holder


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
        cause = None if commit else _Rollback()
        try:
            self._block.__exit__(type(cause) if cause else None, cause, None)
        finally:
            self._lending.__exit__(None, None, None)


class _Rollback(Exception):
    """Tells the driver's transaction block to roll back."""


class _AsyncPostgres:
    """An own async connection: those of the pool are not async."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.connection: psycopg.AsyncConnection[Any] | None = None

    def link(self) -> Any:
        return self.connection

    async def abegin(self) -> None:
        self.connection = await self._engine.open_async()
        await self._driver().execute("begin isolation level read committed")

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
        try:
            if not connection.closed:
                await connection.execute("commit" if commit else "rollback")
        finally:
            await connection.close()


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
        await asyncio.to_thread(self.begin)

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
