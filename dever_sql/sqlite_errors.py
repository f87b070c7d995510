"""What SQLite raises, as errors of ours.

A trigger raises `DV005 InvalidPayload: ...`, either as it is or, where the text was made at run
time, quoted inside the error for a broken JSON path (`sqlite_port/20_names.sql`).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from .arguments import unfit_text
from .errors import (
    CrossDatabaseError,
    DatabaseUnavailable,
    DeverError,
    InstallError,
    InvalidArgument,
    InvalidPayload,
    from_sqlite_message,
)
from .sqlite_place import missing_right

_RAISED: Final = re.compile(r"DV\d{3} \w+: .*", re.DOTALL)
_QUOTED: Final = re.compile(r"(?:JSON path error near|bad JSON path:) '(.*)'", re.DOTALL)
_NOT_INSTALLED: Final = re.compile(r"no such (?:table|view|column): (?:\w+\.)?\"?dever_\w+")
_UNTRUSTED: Final = re.compile(r"unsafe use of ")

_UNAVAILABLE: Final = {
    sqlite3.SQLITE_BUSY: "the database is locked",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_INTERRUPT: "the statement was interrupted",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_PROTOCOL: "the locking of the database failed",
}

_READ_ONLY: Final = "the file, its directory and the -wal and -shm files beside it must be writable"
_NO_ROOM: Final = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing the database failed",
}


def raised(error: BaseException | None) -> DeverError | None:
    """The error that one of our triggers raised; None for any other exception."""
    if not isinstance(error, sqlite3.Error):
        return None
    text = str(error)
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        text = quoted[1].replace("''", "'")
    return from_sqlite_message(text) if _RAISED.fullmatch(text) else None


def own_error(error: sqlite3.Error, path: str | None = None) -> DeverError:
    """The error of ours for what SQLite raised on a connection of ours."""
    ours = raised(error)
    if ours is not None:
        return ours
    where = "" if path is None else f" ({path})"
    text = str(error)
    # A misused connection has no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _NO_ROOM:
        return DatabaseUnavailable(
            f"{_NO_ROOM[code]}{where}",
            detail=f"{text} ({getattr(error, 'sqlite_errorname', 'no code')})",
            hint="nothing of this call was stored; look at the disk, its free space and quotas",
        )
    if path is not None and code in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
    ):
        missing = missing_right(path)
        if missing is not None:
            return DatabaseUnavailable(missing, detail=text, hint=_READ_ONLY)
    if code in _UNAVAILABLE:
        return DatabaseUnavailable(f"{_UNAVAILABLE[code]}{where}", detail=text)
    if code == sqlite3.SQLITE_READONLY or code == sqlite3.SQLITE_PERM:
        return DatabaseUnavailable(
            f"the database or its directory is read-only{where}",
            detail=text,
            hint=_READ_ONLY,
        )
    if code == sqlite3.SQLITE_NOTADB or code == sqlite3.SQLITE_CORRUPT:
        return InstallError(
            f"the file is not an SQLite database, or it is damaged{where}",
            detail=text,
            hint="check the path; restore a backup if it is the right one",
        )
    if text == "malformed JSON":
        return InvalidPayload("payload is not valid JSON")
    if code == sqlite3.SQLITE_ERROR and _NOT_INSTALLED.match(text):
        return InstallError(
            f"Dever SQL is not installed in this database{where}, or too old for this program",
            detail=text,
            hint="dever sql install URL",
        )
    return DeverError(f"SQLite refused the call: {text}")


def caller_error(error: Exception, parameters: Mapping[str, Any]) -> Exception:
    """The error of ours behind what a caller's driver raised, else that exception itself."""
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        ours = raised(candidate)
        if ours is not None:
            return ours
        if isinstance(candidate, sqlite3.OperationalError) and _UNTRUSTED.match(str(candidate)):
            return InvalidArgument(
                "the connection does not trust the schema, so its triggers may not run",
                hint="pragma trusted_schema = on, before the connection is passed",
            )
        if isinstance(candidate, sqlite3.OperationalError) and _NOT_INSTALLED.match(str(candidate)):
            return CrossDatabaseError(
                "Dever SQL is not installed where the connection leads",
                hint="pass a connection to the database the job is bound to, or none",
            )
        if isinstance(candidate, UnicodeEncodeError | OverflowError):
            return unfit_text(parameters)
    return error
