"""Joining a caller's transaction: running an engine's steps on the connection they hold (R3.4).

Supported: psycopg (sync, async), sqlite3, aiosqlite, SQLAlchemy (Core, ORM, async), Django, what
`transaction()` yields. They are told apart by their classes' names, so that none of them has to be
installed. The caller's row factories are never used and never changed; nothing here begins,
commits or rolls back.
"""

from __future__ import annotations

import importlib
import re
import sqlite3
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .arguments import check as check_arguments
from .engine import Engine, Statement, Steps
from .errors import CrossDatabaseError, InvalidArgument
from .transaction import ThreadedSqlite, sqlite_rows

_Rows = list[tuple[Any, ...]]
_known_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Driver connections that were looked at, and the installation they lead to."""

_SUPPORTED = (
    "psycopg, sqlite3, aiosqlite, SQLAlchemy and Django connections and sessions are supported"
)


def run(engine: Engine, connection: object, steps: Steps) -> Any:
    """Run `steps` of `engine` on the caller's sync connection, inside its transaction.

    Raises CrossDatabaseError, before anything is written, when the connection leads to another
    installation than the engine (R3.5); InvalidArgument for an async connection or one of an
    unknown kind. Other errors of the driver pass as they are.
    """
    link = _link(connection)
    if link.is_async:
        raise InvalidArgument(
            "this connection is async, and the call is not",
            hint="call the method of the same name with an a in front: await ....aenqueue(...),"
            " aenqueue_at, aenqueue_many, acomplete",
        )
    if not _is_checked(engine, link):
        _compare(
            engine, link, _drive(engine, link, engine.installation_steps(link.in_transaction()))
        )
    return _drive(engine, link, steps)


async def arun(engine: Engine, connection: object, steps: Steps) -> Any:
    """Like `run`, for the caller's async connection."""
    link = _link(connection)
    if not link.is_async:
        raise InvalidArgument(
            "this connection is not async, and the call is",
            hint="call the method without the a in front: ....enqueue(...), enqueue_at,"
            " enqueue_many, complete",
        )
    if not _is_checked(engine, link):
        _compare(
            engine,
            link,
            await _adrive(engine, link, engine.installation_steps(link.in_transaction())),
        )
    return await _adrive(engine, link, steps)


def require_transaction(connection: object) -> None:
    """Raise InvalidArgument unless a transaction is open on the caller's connection."""
    if not _link(connection).in_transaction():
        raise InvalidArgument(
            "no transaction is open on this connection",
            hint="open one first and call this inside it, so that the work and its completion"
            " are one commit",
        )


def _drive(engine: Engine, link: _Link, steps: Steps) -> Any:
    try:
        statement = next(steps)
        while True:
            check_arguments(statement.parameters)
            try:
                rows = link.execute(statement)
            except Exception as error:
                raise _translated(engine, error, statement) from None
            statement = steps.send(rows)
    except StopIteration as done:
        return done.value


async def _adrive(engine: Engine, link: _Link, steps: Steps) -> Any:
    try:
        statement = next(steps)
        while True:
            check_arguments(statement.parameters)
            try:
                rows = await link.aexecute(statement)
            except Exception as error:
                raise _translated(engine, error, statement) from None
            statement = steps.send(rows)
    except StopIteration as done:
        return done.value


def _translated(engine: Engine, error: Exception, statement: Statement) -> Exception:
    return engine.translate(error, statement)


# --- which installation the connection leads to -------------------------------------------------


def _is_checked(engine: Engine, link: _Link) -> bool:
    if link.kind != engine.kind:
        raise CrossDatabaseError(
            f"the connection is one of {link.kind}, the job's database is {engine!r}",
            hint="pass a connection to the database the job is bound to, or none",
        )
    if link.identity is None:
        return False
    with _known_lock:
        return _known.get(link.identity) == engine.installation_id()


def _compare(engine: Engine, link: _Link, found: str | None) -> None:
    if found is None:
        raise CrossDatabaseError(
            f"Dever SQL is not installed where the connection leads; the job belongs to {engine!r}",
            hint="pass a connection to the database the job is bound to, or none",
        )
    if found != engine.installation_id():
        raise CrossDatabaseError(
            f"the connection leads to another installation than {engine!r}",
            hint="pass a connection to the database the job is bound to, or none",
        )
    if link.identity is not None:
        with _known_lock:
            _known[link.identity] = found


# --- the kinds of connection --------------------------------------------------------------------


@dataclass(slots=True)
class _Link:
    """A caller's connection in the shape the steps need."""

    connection: Any
    kind: Literal["postgresql", "sqlite"]
    is_async: bool = False
    identity: Any = None
    """The driver's own connection object where it can be remembered."""

    def execute(self, statement: Statement) -> _Rows:
        raise NotImplementedError

    async def aexecute(self, statement: Statement) -> _Rows:
        raise NotImplementedError

    def in_transaction(self) -> bool:
        raise NotImplementedError


class _Psycopg(_Link):
    __slots__ = ()

    def execute(self, statement: Statement) -> _Rows:
        with psycopg.Cursor(self.connection, row_factory=tuple_row) as cursor:
            cursor.execute(cast(Any, statement.text), statement.parameters)
            return cursor.fetchall()

    async def aexecute(self, statement: Statement) -> _Rows:
        async with psycopg.AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(cast(Any, statement.text), statement.parameters)
            return await cursor.fetchall()

    def in_transaction(self) -> bool:
        return self.connection.info.transaction_status == TransactionStatus.INTRANS


class _Sqlite3(_Link):
    __slots__ = ()

    def execute(self, statement: Statement) -> _Rows:
        rows = sqlite_rows(self.connection, statement.text, statement.parameters)
        if self.connection.text_factory is not bytes:
            return rows
        # No statement of ours returns a blob: this is the caller's choice for text.
        return [
            tuple(value.decode() if isinstance(value, bytes) else value for value in row)
            for row in rows
        ]

    def in_transaction(self) -> bool:
        return self.connection.in_transaction


class _ThreadedSqlite(_Link):
    __slots__ = ()

    async def aexecute(self, statement: Statement) -> _Rows:
        return await self.connection.execute(statement.text, statement.parameters)

    def in_transaction(self) -> bool:
        return self.connection.in_transaction


class _Aiosqlite(_Link):
    __slots__ = ()

    async def aexecute(self, statement: Statement) -> _Rows:
        async with self.connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(statement.text, statement.parameters)
            return list(await cursor.fetchall())

    def in_transaction(self) -> bool:
        return self.connection.in_transaction


class _SqlAlchemy(_Link):
    """A Connection or AsyncConnection; never the raw driver behind it."""

    __slots__ = ()

    def execute(self, statement: Statement) -> _Rows:
        return _tuples(self.connection.execute(*_for_sqlalchemy(statement)))

    async def aexecute(self, statement: Statement) -> _Rows:
        connection = self.connection
        if _is_a(connection, "sqlalchemy.", "AsyncSession", "async_scoped_session"):
            connection = await connection.connection()
        return _tuples(await connection.execute(*_for_sqlalchemy(statement)))

    def in_transaction(self) -> bool:
        return bool(self.connection.in_transaction())


class _Django(_Link):
    __slots__ = ()

    def execute(self, statement: Statement) -> _Rows:
        text = statement.text
        if self.kind == "sqlite":
            text = _COLON_NAME.sub(r"%(\1)s", text.replace("%", "%%"))
        with self.connection.cursor() as cursor:
            cursor.execute(text, dict(statement.parameters))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def in_transaction(self) -> bool:
        return bool(self.connection.in_atomic_block)


_COLON_NAME = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_PERCENT_NAME = re.compile(r"%\(([a-z_]+)\)s")


def _for_sqlalchemy(statement: Statement) -> tuple[Any, Mapping[str, Any]]:
    text: Any = importlib.import_module("sqlalchemy").text
    parameters = dict(statement.parameters)
    if "%(" not in statement.text:
        return text(statement.text), parameters
    # asyncpg asks the server for each parameter's type and wants that one: let all be text.
    shown = {name: None if value is None else str(value) for name, value in parameters.items()}
    return text(_PERCENT_NAME.sub(r"cast(:\1 as text)", statement.text)), shown


def _tuples(result: Any) -> _Rows:
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


def _is_a(connection: object, package: str, *names: str) -> bool:
    """Whether one of the object's classes has that name and comes from that package."""
    return any(
        kind.__name__ in names and kind.__module__.startswith(package)
        for kind in type(connection).__mro__
    )


def _link(connection: object) -> _Link:
    """Recognise the caller's connection. Raises InvalidArgument for anything else."""
    given: Any = connection
    inner = getattr(given, "dever_connection", None)
    if inner is not None:  # what `transaction()` yields
        given = inner
    if isinstance(given, sqlite3.Connection):
        return _Sqlite3(given, "sqlite")
    if isinstance(given, ThreadedSqlite):
        return _ThreadedSqlite(given, "sqlite", is_async=True)
    if isinstance(given, psycopg.Connection):
        return _Psycopg(given, "postgresql", identity=given)
    if isinstance(given, psycopg.AsyncConnection):
        return _Psycopg(given, "postgresql", is_async=True, identity=given)
    if _is_a(given, "aiosqlite.", "Connection"):
        return _Aiosqlite(given, "sqlite", is_async=True)
    if _is_a(given, "sqlalchemy.", "AsyncSession", "async_scoped_session"):
        return _SqlAlchemy(given, _dialect(given.get_bind()), is_async=True)
    if _is_a(given, "sqlalchemy.", "AsyncConnection"):
        return _SqlAlchemy(given, _dialect(given), is_async=True)
    if _is_a(given, "sqlalchemy.", "Session", "scoped_session"):
        given = given.connection()
    if _is_a(given, "sqlalchemy.", "Connection"):
        return _SqlAlchemy(given, _dialect(given))
    if _is_a(given, "django.", "BaseDatabaseWrapper", "ConnectionProxy"):
        return _Django(given, _kind(given.vendor))
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    raise InvalidArgument(f"connection is a {name}, which is not supported", hint=_SUPPORTED)


def _dialect(connection: Any) -> Literal["postgresql", "sqlite"]:
    return _kind(connection.dialect.name)


def _kind(name: str) -> Literal["postgresql", "sqlite"]:
    if name != "postgresql" and name != "sqlite":
        raise InvalidArgument(f"the connection is one of {name}", hint=_SUPPORTED)
    return name
