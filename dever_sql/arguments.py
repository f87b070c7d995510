"""Arguments that cannot reach a database as they are: refused alike on both engines (R2.2, R7.1).

What a value may be is decided in the database. This is about values that a driver would turn into
something else, or that no text column can hold: a number where a text belongs, U+0000, half of a
surrogate pair. Both engines name their parameters alike, so the name says what is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from .errors import (
    DeverError,
    InvalidArgument,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    InvalidSpec,
)

_TEXTS: Final[dict[str, type[DeverError]]] = {
    "key": InvalidKey,
    "payload": InvalidPayload,
    "queue": InvalidName,
    "job": InvalidName,
    "outbox": InvalidName,
    "worker": InvalidName,
    "name": InvalidName,
    "owner": InvalidName,
    "target": InvalidName,
    "spec": InvalidSpec,
    "fingerprint": InvalidArgument,
    "missed": InvalidArgument,
    "state": InvalidArgument,
    "reason": InvalidArgument,
    "error": InvalidArgument,
}
_INTEGERS: Final = frozenset({"n", "max_attempts", "limit", "before", "id", "token"})
_REQUIRED: Final = frozenset({"n", "limit"})


def check(parameters: Mapping[str, Any]) -> None:
    """Raise for a parameter of another type than its name says.

    None is for the database to judge, except where a count is missing.
    """
    for name, value in parameters.items():
        if value is None and name not in _REQUIRED:
            continue
        if name in _TEXTS:
            check_texts(name, (value,))
        elif name in _INTEGERS:
            check_integers(name, (value,))


def check_texts(name: str, values: Iterable[Any] | None) -> None:
    """Raise the error that belongs to `name` unless each value is None or a text that fits."""
    for value in values or ():
        if value is None:
            continue
        if not isinstance(value, str):
            raise _error(name)(f"{name} is not text, got {type(value).__name__}", hint="pass a str")
        if not is_storable(value):
            raise unfit(name)


def check_integers(name: str, values: Iterable[Any] | None) -> None:
    """Raise InvalidArgument unless each value is an integer of 64 bits (a bool is none)."""
    for value in values or ():
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgument(
                f"{name} is not an integer, got {type(value).__name__}", hint="pass an int"
            )
        if not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"{name} is beyond 64 bits")


def microseconds(duration: timedelta | None) -> int | None:
    """A duration in integer microseconds; None stays None."""
    if duration is None:
        return None
    if not isinstance(duration, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(
            f"a duration is not a timedelta, got {type(duration).__name__}",
            hint="pass timedelta(seconds=...)",
        )
    return duration // timedelta(microseconds=1)


def check_instant(instant: datetime) -> None:
    """Raise InvalidArgument unless it is a datetime with a time zone."""
    if not isinstance(instant, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(
            f"an instant is not a datetime, got {type(instant).__name__}",
            hint="pass an aware datetime: datetime.now(UTC) + ...",
        )
    if instant.utcoffset() is None:
        raise InvalidArgument(
            "the instant has no time zone", hint="pass an aware datetime: datetime.now(UTC) + ..."
        )


def unfit(name: str) -> DeverError:
    """The error for a text that no database column can hold."""
    return _error(name)(
        f"{name} holds U+0000 or half of a surrogate pair, which cannot be stored",
        hint="remove that character",
    )


def unfit_text(parameters: Mapping[str, Any]) -> DeverError:
    """The error for a call that could not even be sent: says which argument is to blame."""
    for name, value in parameters.items():
        if isinstance(value, str) and not is_storable(value):
            return unfit(name)
    return InvalidArgument("a number of this call is beyond 64 bits")


def is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _error(name: str) -> type[DeverError]:
    # Arrays are named by the plural.
    return _TEXTS.get(name) or _TEXTS.get(name.removesuffix("s"), InvalidArgument)
