"""Payloads as JSON text: exact, strict and bounded (R2).

`codec_for` compiles a record once into its schema, its fingerprint and a plan for encoding and
decoding. What a value may be stands in `wire_scalars`, what a type may be in `wire_schema`; this
file holds what is true of every payload: the parser, the limits, the errors. Decoding imports
nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

import msgspec

from .errors import InvalidPayload
from .wire_scalars import Convert, Fault, Repeated, json_converters
from .wire_schema import DEPTH_LIMIT, NULL_SCHEMA, Node, Shape, compile_record

P = TypeVar("P")

SIZE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of the encoded text (R2.4)."""

VALUE_LIMIT: Final = 65_536
"""Scalars, arrays and objects of a payload, the outermost included (R2.4)."""

# The shortest text that can hold more values than allowed: one character and a comma for each.
_MANY: Final = 2 * VALUE_LIMIT + 1
_LONGEST_EXACT: Final = 400
_SPACE: Final = " \t\n\r"


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                return Repeated(members, name)
            seen.add(name)
    return members


def _long_number(digits: str) -> int | float:
    # Python converts no more than some thousand digits; such a number is infinite in any case.
    return int(digits) if len(digits) <= _LONGEST_EXACT else float(digits)


# NaN and Infinity are no JSON. Read as floats they are refused with the path they stand at.
_PARSER: Final = json.JSONDecoder(object_pairs_hook=_members, parse_constant=float)
_PATIENT_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_members, parse_constant=float, parse_int=_long_number
)
_WRITER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Codec(Generic[P]):
    """How the payload of one job is written and read. Safe to use from any thread."""

    target: str | None
    schema: Node
    fingerprint: str
    """Lower-case SHA-256 of the schema as canonical JSON; any change of the schema changes it."""
    _encode: Convert
    _decode: Convert

    def encode(self, payload: P, *, item: int | None = None) -> str:
        """The payload as compact JSON, members in the order of the record's fields.

        Raises InvalidPayload naming the field that does not fit, never its value. `item` is its
        place in a batch, for that message.
        """
        try:
            return _write(self._encode(payload))
        except Fault as fault:
            self._refuse(fault, item)

    def decode(self, text: str) -> P:
        """The payload that `text` holds.

        Takes what `jsonb` made of a payload too: other spacing and member order, a float without
        its exponent. Raises InvalidPayload naming the field that does not fit, never its value.
        """
        try:
            return cast("P", self._decode(_read(text)))
        except Fault as fault:
            self._refuse(fault)

    def _refuse(self, fault: Fault, item: int | None = None) -> NoReturn:
        place = "" if item is None else f" (item {item})"
        # From None: the fault's own causes hold pieces of the payload.
        raise InvalidPayload(
            f"payload of job {self.target}{place} does not fit: {fault}",
            detail=f"target={self.target} fingerprint={self.fingerprint}",
            hint="a payload holds exactly the fields of the job's record; see the wire format",
        ) from None


def codec_for(payload: type[P] | None, target: str | None = None) -> Codec[P]:
    """Compile the codec of a record, or of a job without input (None).

    Raises DeclarationError naming the field that has no place on the wire (R2.1).
    """
    shape = _NULL if payload is None else compile_record(payload)
    return Codec(target, shape.node, fingerprint_of(shape.node), shape.encode, shape.decode)


def fingerprint_of(schema: Node) -> str:
    """The fingerprint of a wire schema: the same in every process and Python version (R2.6)."""
    canonical = json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def encode_json(value: object) -> str:
    """Any JSON value as text, for messages: the same limits as for every payload."""
    try:
        return _write(_encode_any(value))
    except Fault as fault:
        _refuse_message(fault)


def decode_json(text: str) -> Any:
    """The JSON value that `text` holds."""
    try:
        return _decode_any(_read(text))
    except Fault as fault:
        _refuse_message(fault)


def _refuse_message(fault: Fault) -> NoReturn:
    raise InvalidPayload(
        f"payload does not fit: {fault}",
        hint="a payload is any JSON value of None, bool, int, float, str, list and dict",
    ) from None


def _write(plain: Any) -> str:
    encoded = _WRITER.encode(plain)
    if len(encoded) >= _MANY:
        if len(encoded) > SIZE_LIMIT:
            raise Fault("is larger than 16 MiB of JSON")
        _check_count(plain)
    return encoded.decode()


def _read(text: str) -> Any:
    start = 0 if text[:1] not in _SPACE else len(text) - len(text.lstrip(_SPACE))
    try:
        try:
            plain, end = _PARSER.raw_decode(text, start)
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer of thousands of digits
            plain, end = _PATIENT_PARSER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise Fault(f"is not JSON (character {error.pos + 1})") from None
    except RecursionError:
        raise Fault(f"nests deeper than {DEPTH_LIMIT} levels") from None
    if end != len(text) and text[end:].strip(_SPACE):
        raise Fault(f"is not JSON (character {end + 1})")
    if len(text) >= _MANY:
        _check_count(plain)
    return plain


def _check_count(plain: Any) -> None:
    count = 0
    waiting = [plain]
    while waiting:
        value = waiting.pop()
        count += 1
        if type(value) is list:
            waiting.extend(cast("list[Any]", value))
        elif isinstance(value, dict):
            waiting.extend(cast("dict[str, Any]", value).values())
    if count > VALUE_LIMIT:
        raise Fault(f"holds more than {VALUE_LIMIT:,} values")


def _encode_nothing(value: Any) -> Any:
    if value is not None:
        raise Fault("must be absent: the job takes no input")
    return None


def _decode_nothing(value: Any) -> Any:
    if value is not None:
        raise Fault("must be null: the job takes no input")
    return None


_NULL: Final = Shape(NULL_SCHEMA, _encode_nothing, _decode_nothing)
_encode_any, _decode_any = json_converters(DEPTH_LIMIT)
