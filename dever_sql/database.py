"""The program's databases by their logical names: which URL each has, and one engine for each.

The names come from `config/setting.json` in the working directory. A one-file script without it has
one database, `default`, which is `<stem>.db` beside the script.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from .engine import Engine
from .errors import CrossDatabaseError, InvalidArgument
from .settings import DatabaseSettings, Settings, program_settings
from .transaction import Transaction, open_transaction

__all__ = [
    "backoff_settings",
    "close_all",
    "configure",
    "current_transaction",
    "engine_for",
    "engines_made_by",
    "open_engine",
    "program",
    "transaction",
    "use_engine",
]

_lock: Final = threading.RLock()
_engines: dict[str, Engine] = {}
_program: tuple[Settings, Path] | None = None
_opener: Callable[[str], Engine] | None = None
"""Makes the engines instead of the settings; for tests."""


def open_engine(url: str, settings: DatabaseSettings | None = None) -> Engine:
    """The engine for a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://...`.

    Connects at its first use, installs nothing. `settings`: limits for the connections.
    """
    if url.startswith(("postgresql://", "postgres://")):
        from .postgres import PostgresEngine

        if settings is None:
            return PostgresEngine(url)
        return PostgresEngine(
            url,
            connections=settings.connections or 10,
            connect_timeout=settings.connect_timeout_ms / 1000,
            statement_timeout_ms=settings.statement_timeout_ms,
        )
    scheme, separator, path = url.partition(":///")
    if scheme == "sqlite" and separator and path:
        from .sqlite import SQLiteEngine

        return SQLiteEngine(unquote(path), synchronous=settings.synchronous if settings else "full")
    raise InvalidArgument(
        "this is not the URL of a database",
        hint="write sqlite:///jobs.db, sqlite:////path/to/jobs.db or postgresql://user@host/name",
    )


def configure(settings: Settings, project: Path) -> None:
    """Use these settings from now on, instead of those the program would find by itself."""
    global _program
    with _lock:
        close_all()
        _program = (settings, project)


def use_engine(name: str, engine: Engine) -> None:
    """Make `engine` the logical database `name`; for tests. The caller closes it."""
    with _lock:
        _engines[name] = engine


@contextmanager
def engines_made_by(opener: Callable[[str], Engine]) -> Generator[None]:
    """Inside the block no settings are read: `opener` makes the engine of each logical database at
    its first use. They are closed at the end; those from before are back then. For tests."""
    global _engines, _opener
    with _lock:
        before = _engines, _opener
        _engines, _opener = {}, opener
    try:
        yield
    finally:
        with _lock:
            made = list(_engines.values())
            _engines, _opener = before
        for engine in made:
            engine.close()


def program() -> tuple[Settings, Path]:
    """The program's settings and the directory its paths start from.

    Raises SettingsError when there is no settings file and the program is no one-file script.
    """
    global _program
    with _lock:
        if _program is None:
            _program = program_settings(Path.cwd(), _script())
        return _program


def engine_for(name: str) -> Engine:
    """The engine of a logical database, one per process. An SQLite file is created when missing.

    Raises SettingsError for a name that the settings do not have.
    """
    with _lock:
        engine = _engines.get(name)
        if engine is None and _opener is not None:
            engine = _engines[name] = _opener(name)
        if engine is None:
            settings, project = program()
            url = settings.database_url(name, project)
            engine = open_engine(url, settings.database.get(name))
            if engine.kind == "sqlite" and engine.version() is None:
                engine.install()
            _engines[name] = engine
        return engine


def close_all() -> None:
    """Close every engine and forget the settings: the next use starts afresh."""
    global _program
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
        _program = None
    for engine in engines:
        engine.close()


def backoff_settings() -> dict[str, Any]:
    """The arguments of `Job.contract`: the backoff that the settings give to all jobs (R8.3)."""
    with _lock:
        if _opener is not None or (_program is None and _engines):
            return {}  # engines were given (tests): the documented defaults
    job = program()[0].job
    if job is None:
        return {}
    return {
        "retry_base_ms": job.retry_base_ms,
        "retry_max_ms": job.retry_max_ms,
        "retry_jitter": job.retry_jitter,
    }


def transaction(name: str = "default") -> Transaction:
    """A transaction on the logical database `name`: `with`, or `async with` in async code.

    What is enqueued inside without `connection=` joins it: business rows and jobs commit or roll
    back together (R3.4). On SQLite it holds the only write lock of the file and may last at most
    20 s, a third of the usual lease.
    """
    return open_transaction(name, engine_for)


def current_transaction(name: str) -> Transaction | None:
    """The open `transaction()` of this context, None when there is none.

    Raises CrossDatabaseError when it is on another logical database than `name` (R3.5).
    """
    found = Transaction.current()
    if found is not None and found.database != name:
        raise CrossDatabaseError(
            f"the job is bound to database {name!r}, the open transaction is on {found.database!r}",
            hint="enqueue it after the transaction, or keep job and rows in one database",
        )
    return found


def _script() -> Path | None:
    """The file of the program when it is a one-file script."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or not file.endswith(".py"):
        return None
    return Path(file)
