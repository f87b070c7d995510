"""One SQLite database file: its connections, its one writer, and its write transactions.

Every write is a BEGIN IMMEDIATE transaction on the one writing connection that the process has for
the file; callers stand in line for it, renewals first. Other processes' writers are waited for in a
short loop of attempts, because SQLite's own busy handler backs off ever longer and starves.
The file is never opened other than through SQLite: closing any other descriptor of it would drop
the locks of the process.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from .arguments import check as check_arguments
from .arguments import unfit_text
from .engine import Statement, Steps
from .errors import DatabaseUnavailable, DeverError, InstallError
from .sql_files import named_statements
from .sqlite_errors import own_error
from .sqlite_place import check_place

Synchronous: TypeAlias = Literal["full", "normal", "off"]
"""`off` waits for no disk: for databases of tests, which no power cut has to survive."""
Rows: TypeAlias = list[tuple[Any, ...]]

MEMORY: Final = ":memory:"

_PATIENCE: Final = 10.0
"""Seconds to wait for the write lock."""
_PAUSE: Final = (0.001, 0.004)
_URGENT_PAUSE: Final = (0.0002, 0.001)
"""Shortest and longest pause between two attempts; a renewal tries more often than the rest."""

_LOCKED_HINT: Final = (
    "another connection holds a write transaction on this file; if it is one of this thread, pass"
    " it as connection=, else keep write transactions short"
)


class Line:
    """Who may write next: one at a time, renewals first, otherwise in order of arrival."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._urgent: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()

    def enter(self, urgent: bool, patience: float) -> bool:
        """Wait for the turn; False when it did not come within `patience` seconds."""
        turn = threading.Event()
        places = self._urgent if urgent else self._others
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            places.append(turn)
        try:
            if turn.wait(patience):
                return True
        except BaseException:
            self._abandon(turn, places)
            raise
        with self._guard:
            if turn.is_set():
                return True
            places.remove(turn)
        return False

    def leave(self) -> None:
        with self._guard:
            for places in (self._urgent, self._others):
                if places:
                    places.popleft().set()
                    return
            self._taken = False

    def _abandon(self, turn: threading.Event, places: deque[threading.Event]) -> None:
        with self._guard:
            if not turn.is_set():
                places.remove(turn)
                return
        self.leave()


class Transaction:
    """An open write transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, name: str, parameters: Mapping[str, Any]) -> Rows:
        """Run a named statement of `sqlite_port`."""
        return execute(self._connection, step(name, **parameters))

    def run(self, steps: Steps) -> Any:
        """Run steps and return their result."""
        try:
            statement = next(steps)
            while True:
                statement = steps.send(execute(self._connection, statement))
        except StopIteration as done:
            return done.value

    def run_measured(self, steps: Steps) -> tuple[Any, int]:
        """Also how much work it was, in thousands of instructions of SQLite's machine; time would
        count what a busy machine does besides."""
        ticks: list[None] = []
        # Not a function of Python's: in one a signal handler could run, and SQLite would take what
        # that raises (a KeyboardInterrupt) for the wish to give up the statement.
        self._connection.set_progress_handler(partial(ticks.append, None), 1000)
        try:
            return self.run(steps), len(ticks)
        finally:
            self._connection.set_progress_handler(None, 0)

    def define(self, text: str) -> None:
        """Run one statement of an install script."""
        execute(self._connection, Statement(text, {}))


class SqliteFile:
    """The database at `path`, which may not exist yet. Connects at the first use, not before.

    Safe from any thread; of one process only: after a fork the child opens its own.
    """

    def __init__(self, path: str, synchronous: Synchronous) -> None:
        self.path = path
        self._synchronous: Synchronous = synchronous
        self._line = Line()
        self._process = os.getpid()
        self._log = ""
        """The write-ahead log, which lies beside the file itself, not beside a link to it."""
        self._identities: dict[str, tuple[int, int]] = {}
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._reader_lock = threading.Lock()
        self._closed = False
        self._wakers: set[Callable[[], None]] = set()

    # --- transactions -----------------------------------------------------------------------

    @contextmanager
    def write(self, *, urgent: bool = False, create: bool = False) -> Generator[Transaction]:
        """A write transaction; commits at the end, rolls back on any exception.

        Raises DatabaseUnavailable when the write lock could not be had in time.
        """
        with self._turn(urgent):
            connection = self._writing(create)
            begin_immediate(connection, urgent=urgent)
            try:
                yield Transaction(connection)
                _commit(connection)
            except BaseException:
                _rollback(connection)
                raise

    def read(self, name: str, /, **parameters: Any) -> Rows:
        """The rows of one named statement that only reads."""
        if self.path == MEMORY:
            with self._turn(False):
                return execute(self._writing(False), step(name, **parameters))
        with self._reader_lock:
            self._check_usable()
            if self._reader is None:
                self._require()
                self._reader = connect(self.path, self._synchronous, busy_seconds=_PATIENCE)
                self._reader.execute("pragma query_only = on")
            self._check_identity()
            return execute(self._reader, step(name, **parameters))

    @contextmanager
    def _turn(self, urgent: bool) -> Generator[None]:
        if not self._line.enter(urgent, _PATIENCE):
            raise DatabaseUnavailable(
                f"no turn to write to {self.path} within {_PATIENCE:g} s", hint=_LOCKED_HINT
            )
        try:
            yield
        finally:
            self._line.leave()

    # --- connections ------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._writer is not None or (self.path != MEMORY and os.path.exists(self.path))

    def watcher(self) -> sqlite3.Connection:
        """An idle connection of the caller's own, for `pragma data_version`."""
        self._require()
        return connect(self.path, self._synchronous, busy_seconds=_PATIENCE)

    def close(self) -> None:
        """Close the connections; waits for a transaction that is going on."""
        with self._turn(False), self._reader_lock:
            self._closed = True
            for connection in (self._reader, self._writer):
                if connection is not None and os.getpid() == self._process:
                    connection.close()
            self._reader = self._writer = None

    def _writing(self, create: bool) -> sqlite3.Connection:
        self._check_usable()
        if self._writer is None:
            if not create:
                self._require()
            self._writer = connect(self.path, self._synchronous)
        self._check_identity()
        return self._writer

    def _require(self) -> None:
        if not self.exists():
            if self.path != MEMORY:
                check_place(self.path)
            raise InstallError(
                f"there is no database at {self.path}",
                hint=f"dever sql install sqlite:///{self.path}",
            )

    def _check_usable(self) -> None:
        if self._closed:
            raise DeverError(f"the engine of {self.path} is closed", hint="open a new one")
        if os.getpid() != self._process:
            raise DeverError(
                f"the engine of {self.path} was opened in another process",
                hint="open one in each process, after the fork",
            )

    def _check_identity(self) -> None:
        """Notice that the file, or the log beside it, was removed or replaced, instead of going on
        with its ghost, where every commit would be lost."""
        if self.path == MEMORY:
            return
        if not self._identities:
            self._log = f"{os.path.realpath(self.path)}-wal"
        for path in (self.path, self._log):
            known = self._identities.get(path)
            try:
                status = os.stat(path)
            except OSError:
                # The log comes with the first use, and stays while a connection is open.
                if path == self.path or known is not None:
                    raise _replaced(path) from None
                continue
            found = (status.st_dev, status.st_ino)
            if known is None:
                self._identities[path] = found
            elif known != found:
                raise _replaced(path)

    # --- waking -----------------------------------------------------------------------------

    def add_waker(self, wake: Callable[[], None]) -> None:
        self._wakers.add(wake)

    def remove_waker(self, wake: Callable[[], None]) -> None:
        self._wakers.discard(wake)

    def wake(self) -> None:
        """Work may be due now: end the sleep of this process's workers."""
        for wake in tuple(self._wakers):
            wake()


# --- connections and statements -----------------------------------------------------------------


def connect(
    path: str, synchronous: Synchronous = "full", *, busy_seconds: float = 0.0
) -> sqlite3.Connection:
    """A connection as every one of ours is: WAL, foreign keys, no transaction of its own accord.

    `busy_seconds`: how long SQLite itself waits for locks; 0 for one that writes, which waits in
    `begin_immediate`.
    """
    if path != MEMORY:
        check_place(path)
    try:
        connection = sqlite3.connect(
            path,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise own_error(error, path) from None
    try:
        for setting in (
            "foreign_keys = on",
            # Some builds turn it off, and 3.40 then lets no trigger call a JSON function.
            "trusted_schema = on",
            "journal_mode = wal",
            f"synchronous = {synchronous}",
            "journal_size_limit = 16777216",
            # Overwriting a large payload that goes would cost as much as writing it did.
            "secure_delete = fast",
        ):
            _set(connection, setting)
    except sqlite3.Error as error:
        connection.close()
        raise own_error(error, path) from None
    return connection


def begin_immediate(connection: sqlite3.Connection, *, urgent: bool = False) -> None:
    """Begin a write transaction; other writers are waited for, for a bounded time.

    Raises DatabaseUnavailable after that.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("begin immediate")
            return
        except sqlite3.Error as error:
            if not _is_busy(error):
                raise own_error(error, _path_of(connection)) from None
            if time.monotonic() >= deadline:
                raise DatabaseUnavailable(
                    f"the database has been locked for {_PATIENCE:g} s", hint=_LOCKED_HINT
                ) from None
        time.sleep(random.uniform(*(_URGENT_PAUSE if urgent else _PAUSE)))


def step(name: str, /, **parameters: Any) -> Statement:
    """The named statement of `sqlite_port` with its parameters."""
    return Statement(named_statements()[name], parameters)


def execute(connection: sqlite3.Connection, statement: Statement) -> Rows:
    check_arguments(statement.parameters)
    try:
        return connection.execute(statement.text, statement.parameters).fetchall()
    except sqlite3.Error as error:
        raise own_error(error, _path_of(connection)) from None
    except (UnicodeEncodeError, OverflowError):
        raise unfit_text(statement.parameters) from None


def _commit(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("commit")
    except sqlite3.Error as error:
        raise own_error(error, _path_of(connection)) from None


def _rollback(connection: sqlite3.Connection) -> None:
    # SQLite may have rolled back by itself (disk full, I/O error).
    if connection.in_transaction:
        try:
            connection.execute("rollback")
        except sqlite3.Error as error:
            raise own_error(error, _path_of(connection)) from None


def _set(connection: sqlite3.Connection, setting: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute(f"pragma {setting}").fetchall()
            return
        except sqlite3.Error as error:
            # Switching to WAL needs the file alone for a moment, and until that is done others
            # find it locked; SQLite does not wait for either by itself.
            if not _is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(*_PAUSE))


def _path_of(connection: sqlite3.Connection) -> str | None:
    """The file of a connection, for an error; None for a database in memory."""
    try:
        return connection.execute("pragma database_list").fetchone()[2] or None
    except sqlite3.Error:
        return None


def _is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _replaced(path: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the database file {path} was removed or replaced while it was open",
        hint="put it back, or restart the program to use the new one",
    )
