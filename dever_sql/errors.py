"""The errors of Dever SQL: one family, one class per thing that can be wrong.

A message says what is wrong and which thing it is about, `hint` what to do about it. Neither ever
holds a payload value or a secret. The databases raise the same errors with an own SQLSTATE
(PostgreSQL) or the same words at the start of the message (SQLite); they are told apart by these
codes, never by their text.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final


class DeverError(Exception):
    """Anything Dever SQL refuses or cannot do.

    `message` is one sentence, `detail` facts for a log, `hint` what to do. `str()` shows the
    message and the hint.
    """

    sqlstate: ClassVar[str | None] = None
    """The SQLSTATE the databases raise for it; None when only Python raises it."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles its positional arguments only; a process pool would lose the rest.
        return type(self), (self.message,), {"detail": self.detail, "hint": self.hint}


class RuledError(DeverError):
    """An error about code, which `dever check` may tell of beforehand.

    `code` is the rule of `dever check` that says the same, such as `DEV301`.
    """

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = code

    def __str__(self) -> str:
        message, separator, hint = super().__str__().partition("\n")
        return message + (f" ({self.code})" if self.code else "") + separator + hint

    def __reduce__(self) -> tuple[object, ...]:
        state = {"detail": self.detail, "hint": self.hint, "code": self.code}
        return type(self), (self.message,), state


class InvalidName(DeverError):
    """A name that is empty, blank, too long (over 255 bytes) or holds U+0000 (R7.1)."""

    sqlstate = "DV001"


class ReservedName(DeverError):
    """A name or key that begins with `__dever_`, which Dever SQL keeps for itself (R7.1)."""

    sqlstate = "DV002"


class InvalidSpec(RuledError):
    """A schedule that is neither five-field UTC cron nor `@every` where that is allowed (R6.1)."""

    sqlstate = "DV003"


class UnknownJob(DeverError):
    """No program ever registered that job, or that schema of it, in this database (R3.6)."""

    sqlstate = "DV004"


class InvalidPayload(DeverError):
    """A payload that does not fit its schema or breaks a limit; names the field (R2.2, R2.3)."""

    sqlstate = "DV005"


class InvalidKey(DeverError):
    """A key that is empty, blank, too long (over 1024 bytes) or holds U+0000 (R3.1)."""

    sqlstate = "DV006"


class InvalidArgument(DeverError):
    """A value that is out of range or of the wrong kind for this call."""

    sqlstate = "DV007"


class SchemaVersion(DeverError):
    """The installed version does not fit this program; both versions are named (R4.1)."""

    sqlstate = "DV009"


class LeadershipLost(DeverError):
    """Another runner holds the scheduler's lock; nothing was fired after it was lost (R7.5)."""


class DeclarationError(RuledError):
    """A job or record declared wrongly, or a declared job used wrongly (R1, R2.1)."""


class SettingsError(DeverError):
    """Settings that are missing, unknown or out of range; names the path in the file (R8.3)."""


class CrossDatabaseError(DeverError):
    """A job bound to one database in a transaction on another; nothing was written (R3.5)."""


class LeaseLost(DeverError):
    """The job's lease is no longer held: its result would be refused, so the work is stopped."""


class InstallError(DeverError):
    """Dever SQL is not installed there, could not be, or the role has no right to it (R9.1)."""


class MissingRight(InstallError):
    """The role may not make that call: it needs one of the roles of `roles.sql` (R9.3)."""


class DatabaseUnavailable(DeverError):
    """The database cannot be reached at the moment; the same call may succeed later (R8.5)."""


_BY_SQLSTATE: Final[dict[str, type[DeverError]]] = {
    error.sqlstate: error
    for error in (*DeverError.__subclasses__(), *RuledError.__subclasses__())
    if error.sqlstate is not None
}

_SQLITE_MESSAGE: Final = re.compile(r"(DV\d{3}) \w+: (.*)", re.DOTALL)


def from_sqlstate(
    sqlstate: str | None, message: str, detail: str | None = None, hint: str | None = None
) -> DeverError | None:
    """The error for a SQLSTATE that PostgreSQL reported; None when it is not one of ours."""
    error = _BY_SQLSTATE.get(sqlstate or "")
    return None if error is None else error(message, detail=detail, hint=hint)


def from_sqlite_message(message: str) -> DeverError | None:
    """The error for what a trigger raised, `DV005 InvalidPayload: ...`; None when not ours.

    The text after the colon is the message; a line `hint: ...` at its end is the hint.
    """
    match = _SQLITE_MESSAGE.fullmatch(message)
    if match is None:
        return None
    text, _, hint = match[2].partition("\nhint: ")
    return from_sqlstate(match[1], text, hint=hint or None)
