"""How one value becomes plain JSON data and comes back; `docs/wire.md` lists the kinds.

An encoder takes the Python value and returns what JSON can hold, a decoder takes what the JSON
parser read and returns the Python value. Both are exact and strict (R2.2, R2.3) and raise `Fault`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

import msgspec

from .record import INT64_MAX, INT64_MIN, ModelId

Convert: TypeAlias = Callable[[Any], Any]

_KIND_WORDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "text",
    list: "array",
    dict: "object",
}

_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_is_date: Final = re.compile(_DATE).fullmatch
_is_time: Final = re.compile(_TIME).fullmatch
_is_datetime: Final = re.compile(f"{_DATE}T{_TIME}Z").fullmatch
_is_uuid: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_is_decimal: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:E[+-]?[0-9]{1,6})?").fullmatch

# No float64 needs more digits than these; an integer with more can only have been meant exactly.
_FLOAT_DIGITS: Final = 17

# From here on every float64 is an integer, and their shortest text has no fraction.
_LARGE: Final = 2.0**53


class Fault(Exception):
    """What does not fit, and where. Says the kind of a value, never the value."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []
        """Steps from the inside out; whoever passes the fault on appends its own."""

    def __str__(self) -> str:
        return f"payload{''.join(reversed(self.path))} {self.what}"


class Repeated(dict[str, Any]):
    """A JSON object with a member that is there more than once; the last value is kept.

    No record accepts it. In a `Json` value repeated members are not kept (R2.1), as in jsonb.
    """

    def __init__(self, members: dict[str, Any], repeated: str) -> None:
        super().__init__(members)
        self.repeated = repeated


def wrong_kind(expected: str, value: object) -> Fault:
    word = "object" if type(value) is Repeated else _KIND_WORDS.get(type(value))
    return Fault(f"must be {expected}, got {word or type(value).__name__}")


def wrong_type(expected: str, value: object) -> Fault:
    return Fault(f"must be {expected}, got {type(value).__name__}")


def boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise wrong_kind("boolean", value)
    return value


def integer(value: Any) -> Any:
    if type(value) is not int:
        if type(value) is float:
            raise Fault("must be an integer without fraction or exponent")
        raise wrong_kind("integer", value)
    if not INT64_MIN <= value <= INT64_MAX:
        raise Fault("is an integer outside 64 bits")
    return value


def encode_number(value: Any) -> Any:
    if type(value) is int:
        # A type checker takes int for float, so it is taken here too, while it stays exact.
        number = _as_float(value)
        if number != value:
            raise Fault("is an integer that a float cannot hold exactly")
        return number
    return decode_number(value)


def decode_number(value: Any) -> Any:
    if type(value) is int:
        return _as_float(value)
    if type(value) is not float:
        raise wrong_kind("number", value)
    if not isfinite(value):
        raise Fault("is not a finite number")
    return value + 0.0  # -0.0 becomes 0.0


def text(value: Any) -> Any:
    if type(value) is not str:
        raise wrong_kind("text", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Fault("holds a lone surrogate") from None
    if "\0" in value:
        raise Fault("holds U+0000")
    return value


def encode_decimal(value: Any) -> Any:
    if type(value) is not Decimal:
        raise wrong_type("Decimal", value)
    spelled = str(value)
    if not value.is_finite():
        raise Fault("is not a finite number")
    if not _is_decimal(spelled):
        raise Fault("is a decimal with an exponent beyond 999999")
    return spelled


def decode_decimal(value: Any) -> Any:
    if type(value) is not str:
        raise wrong_kind("text", value)
    if not _is_decimal(value):
        raise Fault("is not a decimal, such as 12.50")
    return Decimal(value)


def encode_uuid(value: Any) -> Any:
    if type(value) is not UUID:
        raise wrong_type("UUID", value)
    return str(value)


def decode_uuid(value: Any) -> Any:
    if type(value) is not str:
        raise wrong_kind("text", value)
    if not _is_uuid(value):
        raise Fault("is not a UUID")
    return UUID(value)


def encode_datetime(value: Any) -> Any:
    if type(value) is not datetime:
        raise wrong_type("datetime", value)
    if value.tzinfo is not UTC:
        if value.utcoffset() is None:
            raise Fault("is a datetime without a time zone")
        try:
            value = value.astimezone(UTC)
        except OverflowError:
            raise Fault("is a datetime outside the years 1 to 9999 in UTC") from None
    return value.replace(tzinfo=None).isoformat() + "Z"


def decode_datetime(value: Any) -> Any:
    if type(value) is not str:
        raise wrong_kind("text", value)
    if _is_datetime(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise Fault("is not a datetime (RFC 3339, UTC, ends in Z)")


def encode_date(value: Any) -> Any:
    if type(value) is not date:
        raise wrong_type("date", value)
    return value.isoformat()


def decode_date(value: Any) -> Any:
    if type(value) is not str:
        raise wrong_kind("text", value)
    if _is_date(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise Fault("is not a date (YYYY-MM-DD)")


def encode_time(value: Any) -> Any:
    if type(value) is not time:
        raise wrong_type("time", value)
    if value.tzinfo is not None:
        raise Fault("is a time with a time zone; only an instant has one")
    return value.isoformat()


def decode_time(value: Any) -> Any:
    if type(value) is not str:
        raise wrong_kind("text", value)
    if not _is_time(value):
        raise Fault("is not a time of day (HH:MM:SS)")
    return time.fromisoformat(value)


def encode_duration(value: Any) -> Any:
    if type(value) is not timedelta:
        raise wrong_type("timedelta", value)
    microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    if not INT64_MIN <= microseconds <= INT64_MAX:
        raise Fault("is a duration whose microseconds exceed 64 bits")
    return microseconds


def decode_duration(value: Any) -> Any:
    return timedelta(microseconds=integer(value))


def enum_converters(cls: type[Enum]) -> tuple[Convert, Convert]:
    """Encoder and decoder of an Enum whose values are all text or all integers."""
    members: dict[str | int, Enum] = {member.value: member for member in cls}
    kind = type(next(iter(members)))
    word = "text" if kind is str else "integer"

    def encode(value: Any) -> Any:
        if type(value) is not cls:
            raise wrong_type(cls.__name__, value)
        return value.value

    def decode(value: Any) -> Any:
        if type(value) is not kind:
            raise wrong_kind(word, value)
        try:
            return members[value]
        except KeyError:
            raise Fault(f"is not one of the values of {cls.__name__}") from None

    return encode, decode


def model_converters(model: type) -> tuple[Convert, Convert]:
    """Encoder and decoder of `ModelId[model]`."""

    def encode(value: Any) -> Any:
        if type(value) is not ModelId:
            raise wrong_type(f"ModelId[{model.__name__}]", value)
        identity = cast("ModelId[Any]", value)
        if identity.model is not model:
            raise Fault(f"must be ModelId[{model.__name__}], got the id of another model")
        return check(identity.value)

    def check(value: Any) -> Any:
        if type(value) is int:
            return integer(value)
        if type(value) is not str:
            raise wrong_kind("integer or text", value)
        if not value:
            raise Fault("is an empty model id")
        return text(value)

    def decode(value: Any) -> Any:
        return cast("Any", ModelId)(model, check(value))

    return encode, decode


def json_converters(room: int) -> tuple[Convert, Convert]:
    """Encoder and decoder of any JSON value with at most `room` nested arrays and objects.

    A fault names the field that holds the value, not a place inside: keys in there are data.
    """

    def encode(value: Any) -> Any:
        return _encode_json(value, room)

    def decode(value: Any) -> Any:
        return _decode_json(value, room)

    return encode, decode


def _encode_json(value: Any, room: int) -> Any:
    kind: object = cast("object", type(value))
    if kind is str:
        return text(value)
    if kind is dict:
        _check_room(room)
        for key in value:
            if type(key) is not str:
                raise Fault(f"holds an object with a key that is {type(key).__name__}, not text")
        return {text(key): _encode_json(item, room - 1) for key, item in value.items()}
    if kind is list:
        _check_room(room)
        return [_encode_json(item, room - 1) for item in value]
    if kind is int:
        return integer(value)
    if kind is float:
        number = decode_number(value)
        if abs(number) < _LARGE:
            return number
        # With a fraction, or jsonb could not tell it from an integer.
        return msgspec.Raw(f"{number:.1f}".encode())
    if value is None or kind is bool:
        return value
    raise Fault(f"holds a {type(value).__name__}, which is not a JSON value")


def _decode_json(value: Any, room: int) -> Any:
    kind: object = cast("object", type(value))
    if kind is str:
        return text(value)
    if kind is dict or kind is Repeated:
        _check_room(room)
        return {text(key): _decode_json(item, room - 1) for key, item in value.items()}
    if kind is list:
        _check_room(room)
        return [_decode_json(item, room - 1) for item in value]
    if kind is int:
        return value if INT64_MIN <= value <= INT64_MAX else _large_number(value)
    if kind is float:
        return decode_number(value)
    return value


def _check_room(room: int) -> None:
    if room <= 0:
        raise Fault("nests deeper than 64 levels")


def _large_number(value: int) -> float:
    """A float that jsonb wrote without its exponent: 1e300 comes back as 301 digits."""
    number = _as_float(value)
    if len(str(abs(value)).rstrip("0")) > _FLOAT_DIGITS:
        raise Fault("is an integer outside 64 bits")
    return number


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Fault("is not a finite number") from None
