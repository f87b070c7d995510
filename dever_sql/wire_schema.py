"""From a record's annotations to its wire schema and converters (R2.1).

The schema is the tree of nodes that `docs/wire.md` describes; the databases check payloads
against the same tree. What has no kind on the wire is refused here, with the path of the field.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final, ForwardRef, NamedTuple, TypeAlias, cast
from uuid import UUID

from . import wire_scalars
from .errors import DeclarationError
from .record import Json, ModelId, is_record, module_name
from .secret import Secret
from .wire_scalars import Convert, Fault, Repeated, wrong_kind, wrong_type

Node: TypeAlias = dict[str, Any]

DEPTH_LIMIT: Final = 64
"""Nested arrays and objects of a payload, the record itself included (R2.4)."""

NODE_LIMIT: Final = 10_000
"""Nodes of one schema. Nested records are written out each time, so this can grow fast."""

_LONGEST_NAME: Final = 63


class Shape(NamedTuple):
    """A type on the wire: its node, how to encode and how to decode it."""

    node: Node
    encode: Convert
    decode: Convert


NULL_SCHEMA: Final[Node] = {"kind": "null"}
"""The schema of a job without input."""

_SCALARS: Final[dict[type, Shape]] = {
    bool: Shape({"kind": "bool"}, wire_scalars.boolean, wire_scalars.boolean),
    int: Shape({"kind": "int"}, wire_scalars.integer, wire_scalars.integer),
    float: Shape({"kind": "float"}, wire_scalars.encode_number, wire_scalars.decode_number),
    Decimal: Shape({"kind": "decimal"}, wire_scalars.encode_decimal, wire_scalars.decode_decimal),
    str: Shape({"kind": "text"}, wire_scalars.text, wire_scalars.text),
    UUID: Shape({"kind": "uuid"}, wire_scalars.encode_uuid, wire_scalars.decode_uuid),
    datetime: Shape(
        {"kind": "datetime"}, wire_scalars.encode_datetime, wire_scalars.decode_datetime
    ),
    date: Shape({"kind": "date"}, wire_scalars.encode_date, wire_scalars.decode_date),
    time: Shape({"kind": "time"}, wire_scalars.encode_time, wire_scalars.decode_time),
    timedelta: Shape(
        {"kind": "duration"}, wire_scalars.encode_duration, wire_scalars.decode_duration
    ),
}

# Types that people reach for, and what to write instead.
_ADVICE: Final[dict[object, str]] = {
    Any: "Any says nothing about the value; name its type, or write Json",
    object: "object says nothing about the value; name its type, or write Json",
    bytes: "bytes are not JSON; store them elsewhere and pass their id",
    bytearray: "bytes are not JSON; store them elsewhere and pass their id",
    memoryview: "bytes are not JSON; store them elsewhere and pass their id",
    Secret: "a secret must not be stored; pass a ModelId and look it up in the handler",
    dict: "an open map has no schema; write a record or Json",
    set: "a set has no order on the wire; write list[T]",
    frozenset: "a set has no order on the wire; write list[T]",
    tuple: "write list[T] or a nested record",
    list: "say what it holds: list[T]",
    collections.abc.Callable: "a function cannot be stored",  # pyright: ignore[reportUnknownMemberType]
    ModelId: "say whose identity it is: ModelId[M]",
    type(None): "a field that is always None says nothing; leave it out",
    None: "a field that is always None says nothing; leave it out",
}


def scalar_names() -> frozenset[str]:
    """The scalar types by dotted name, for `dever check`, which loads no program."""
    return frozenset(_dotted(kind) for kind in _SCALARS)


def advice_by_name() -> dict[str, str]:
    """What is said about types that are refused, by dotted name, for `dever check`."""
    return {_dotted(subject): advice for subject, advice in _ADVICE.items()}


def _dotted(subject: Any) -> str:
    return "None" if subject is None else f"{subject.__module__}.{subject.__qualname__}"


def compile_record(cls: type) -> Shape:
    """The shape of a record and everything in it. Raises DeclarationError naming the field."""
    return _Compiler().record(cls, cls.__name__, 1)


def resolve(annotation: object, namespace: dict[str, Any], path: str) -> object:
    """What an annotation stands for: strings are evaluated where they were written."""
    for _ in range(DEPTH_LIMIT):
        if isinstance(annotation, ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return annotation
        try:
            annotation = eval(annotation, namespace)
        except Exception as error:
            raise DeclarationError(
                f"{path}: its type cannot be resolved ({type(error).__name__}: {error})",
                hint="import the type where the program runs, not only for the type checker",
                code="DEV313",
            ) from None
    raise DeclarationError(f"{path}: its type is an alias of itself", code="DEV306")


def namespace_of(module: str) -> dict[str, Any]:
    """A copy of a module's names, to evaluate annotations in."""
    loaded = sys.modules.get(module)
    return {} if loaded is None else dict(vars(loaded))


@dataclass(slots=True)
class _Field:
    name: str
    annotation: object
    namespace: dict[str, Any]


class _Compiler:
    """One walk over the types of a record. `depth` counts arrays and objects from the root."""

    def __init__(self) -> None:
        self._open: list[type] = []
        self._nodes = 0

    def record(self, cls: type, path: str, depth: int) -> Shape:
        if cls in self._open:
            names = " -> ".join(entry.__name__ for entry in [*self._open, cls])
            raise _refusal(path, f"a record cannot contain itself ({names})")
        if "model" in module_name(cls.__module__).split(".")[1:]:
            raise _refusal(path, f"{cls.__name__} is private data of a model; write ModelId[...]")
        self._count(path, depth)
        self._open.append(cls)
        shapes = {
            field.name: self._type(
                resolve(field.annotation, field.namespace, f"{path}.{field.name}"),
                field.namespace,
                f"{path}.{field.name}",
                depth,
            )
            for field in _fields(cls, path)
        }
        self._open.pop()
        return _record_shape(cls, shapes)

    def _type(self, annotation: Any, names: dict[str, Any], path: str, depth: int) -> Shape:
        """The shape of a type inside an array or object at `depth`."""
        self._count(path, depth)
        if type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, Python 3.12
            return self._type(resolve(annotation.__value__, names, path), names, path, depth)
        if isinstance(annotation, type) and annotation in _SCALARS:
            return _SCALARS[annotation]
        if annotation is Json:
            encode, decode = wire_scalars.json_converters(DEPTH_LIMIT - depth)
            return Shape({"kind": "json"}, encode, decode)
        origin = typing.get_origin(annotation)
        arguments = [resolve(each, names, path) for each in typing.get_args(annotation)]
        if origin is typing.Union or origin is types.UnionType:
            return self._optional(arguments, names, path, depth)
        if origin is list and len(arguments) == 1:
            item = self._type(arguments[0], names, f"{path}[]", depth + 1)
            return _list_shape(item)
        if origin is ModelId:
            return _model_shape(arguments[0], path)
        if inspect.isclass(annotation) and origin is None:
            if issubclass(annotation, Enum):
                return _enum_shape(annotation, path)
            if is_record(annotation):
                return self.record(annotation, path, depth + 1)
        raise _refusal(path, _advice(annotation, origin))

    def _optional(
        self, arguments: list[object], names: dict[str, Any], path: str, depth: int
    ) -> Shape:
        types_ = [each for each in arguments if each is not None and each is not type(None)]
        if len(types_) != 1 or len(arguments) != 2:
            raise _refusal(path, "a union is not told apart on the wire; only T | None is")
        item = self._type(types_[0], names, path, depth)
        if item.node["kind"] in ("json", "optional"):  # these hold null already
            return item
        return _optional_shape(item)

    def _count(self, path: str, depth: int) -> None:
        self._nodes += 1
        if depth > DEPTH_LIMIT:
            raise _refusal(path, f"the record nests deeper than {DEPTH_LIMIT} levels")
        if self._nodes > NODE_LIMIT:
            raise _refusal(path, f"the record has more than {NODE_LIMIT:,} fields in all")


def _fields(cls: type, path: str) -> Iterator[_Field]:
    owners = {name: base for base in reversed(cls.__mro__) for name in _annotations(base, path)}
    for field in dataclasses.fields(cls):
        owner = owners[field.name]
        # The module's names win over the class's: `date: date` means the type, not the slot.
        names = {**vars(owner), **namespace_of(owner.__module__)}
        yield _Field(field.name, _annotations(owner, path)[field.name], names)


def _annotations(cls: type, path: str) -> dict[str, Any]:
    try:
        return inspect.get_annotations(cls)
    except NameError as error:  # Python 3.14 evaluates annotations when they are read
        raise DeclarationError(
            f"{path}: a type cannot be resolved ({error})",
            hint="import the type where the program runs, not only for the type checker",
            code="DEV313",
        ) from None


def _record_shape(cls: type, shapes: dict[str, Shape]) -> Shape:
    build = cast("Callable[..., object]", cls)
    names = frozenset(shapes)
    encoders = [(name, shape.encode) for name, shape in shapes.items()]
    decoders = [(name, shape.decode) for name, shape in shapes.items()]

    def encode(value: Any) -> Any:
        if type(value) is not cls:
            raise wrong_type(cls.__name__, value)
        members: dict[str, Any] = {}
        name = ""
        try:
            for name, convert in encoders:
                members[name] = convert(getattr(value, name))
        except Fault as fault:
            fault.path.append(f".{name}")
            raise
        return members

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise _not_an_object(value)
        members: dict[str, Any] = {}
        name = ""
        try:
            for name, convert in decoders:
                if name not in value:
                    raise Fault("is missing")
                members[name] = convert(value[name])
        except Fault as fault:
            fault.path.append(f".{name}")
            raise
        if len(cast("dict[str, Any]", value)) != len(names):
            unknown = min(cast("dict[str, Any]", value).keys() - names)
            raise _at(unknown, "is not a known field")
        try:
            return build(**members)
        except Exception as error:  # a __post_init__ of the program's own
            raise Fault(f"was refused by {cls.__name__} ({type(error).__name__})") from None

    fields = [{"name": name, "type": shape.node} for name, shape in shapes.items()]
    return Shape({"kind": "record", "name": cls.__name__, "fields": fields}, encode, decode)


def _not_an_object(value: object) -> Fault:
    if isinstance(value, Repeated):
        return _at(value.repeated, "is there more than once")
    return wrong_kind("object", value)


def _at(member: str, what: str) -> Fault:
    """A fault at a member that no schema vouches for: its name may be anything."""
    fault = Fault(what)
    if member.isidentifier() and len(member) <= _LONGEST_NAME:
        fault.path.append(f".{member}")
    else:
        fault.path.append(f"[{json.dumps(member[:_LONGEST_NAME])}]")
    return fault


def _list_shape(item: Shape) -> Shape:
    def encode(value: Any) -> Any:
        if type(value) is not list:
            raise wrong_type("list", value)
        return each(value, item.encode)

    def decode(value: Any) -> Any:
        if type(value) is not list:
            raise wrong_kind("array", value)
        return each(value, item.decode)

    def each(values: Any, convert: Convert) -> list[Any]:
        items: list[Any] = []
        try:
            for value in values:
                items.append(convert(value))
        except Fault as fault:
            fault.path.append(f"[{len(items)}]")
            raise
        return items

    return Shape({"kind": "list", "item": item.node}, encode, decode)


def _optional_shape(item: Shape) -> Shape:
    def encode(value: Any) -> Any:
        return None if value is None else item.encode(value)

    def decode(value: Any) -> Any:
        return None if value is None else item.decode(value)

    return Shape({"kind": "optional", "item": item.node}, encode, decode)


def _model_shape(model: object, path: str) -> Shape:
    if not inspect.isclass(model) or model in _ADVICE or model in _SCALARS:
        raise _refusal(path, "ModelId needs the class of a model: ModelId[Order]")
    name = f"{module_name(model.__module__)}.{model.__qualname__}"
    encode, decode = wire_scalars.model_converters(model)
    return Shape({"kind": "model", "model": name}, encode, decode)


def _enum_shape(cls: type[Enum], path: str) -> Shape:
    values = [member.value for member in cls]
    kinds: set[type] = {type(value) for value in values}
    if issubclass(cls, Flag) or kinds not in ({str}, {int}):
        raise _refusal(path, f"the values of {cls.__name__} must be all text or all integers")
    try:
        for value in values:
            wire_scalars.text(value) if type(value) is str else wire_scalars.integer(value)
    except Fault as fault:
        raise _refusal(path, f"a value of {cls.__name__} {fault.what}") from None
    encode, decode = wire_scalars.enum_converters(cls)
    return Shape({"kind": "enum", "name": cls.__name__, "values": values}, encode, decode)


def _advice(annotation: Any, origin: Any) -> str:
    subject = annotation if origin is None else origin
    if isinstance(subject, Hashable) and subject in _ADVICE:
        return _ADVICE[subject]
    if inspect.isclass(subject):
        name = subject.__name__
        if is_record(subject):
            return f"{name} is a generic record; write one record per type"
        return (
            f"{name} is not a wire-safe type; refer to a model by ModelId[{name}], "
            "declare data with @record"
        )
    return f"{str(annotation)[:_LONGEST_NAME]} is not a wire-safe type"


def _refusal(path: str, why: str) -> DeclarationError:
    return DeclarationError(
        f"{path}: {why}",
        hint="wire-safe types: bool, int, float, Decimal, str, UUID, datetime, date, time, "
        "timedelta, Enum, ModelId[M], T | None, list[T], records and Json",
        code="DEV306",
    )
