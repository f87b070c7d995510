"""What a payload is made of beside plain types: `record`, `ModelId` and `Json`."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    final,
)

from .errors import DeclarationError, InvalidArgument

C = TypeVar("C")
M = TypeVar("M")

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_MARK: Final = "__dever_record__"


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[C], /) -> type[C]:
    """Make a class the payload of a job: a frozen dataclass with slots (R1.3, R2.1).

    Field types are looked at when the record is first used, so that modules may import each other.
    A default helps whoever builds the record; on the wire every field is always there. A
    `__post_init__` runs for decoded payloads too; what it raises makes the payload invalid.
    """
    if not inspect.isclass(cls):
        raise DeclarationError(f"@record stands on a class, not on {type(cls).__name__}")
    name = cls.__name__
    if "__init__" in cls.__dict__ or "__new__" in cls.__dict__:
        raise DeclarationError(
            f"record {name} has a constructor of its own",
            hint="declare its fields; check them in __post_init__ if need be",
        )
    if "__dataclass_fields__" in cls.__dict__:
        raise DeclarationError(f"record {name} is a dataclass already", hint="use @record alone")
    try:
        made = dataclasses.dataclass(frozen=True, slots=True)(cls)
    except TypeError as error:
        raise DeclarationError(f"record {name} cannot be made: {error}") from None
    _check_constructor(made)
    setattr(made, _MARK, True)
    return made


def _check_constructor(cls: type) -> None:
    """Refuse what would make a record differ from the payload it stands for."""
    fields = {field.name: field.init for field in dataclasses.fields(cls)}
    for name in [*inspect.signature(cls).parameters, *fields]:
        if name.startswith("_"):
            why = "a private field; everything in a payload is public"
        elif name not in fields:
            why = "an InitVar; it is not kept, so it cannot be stored"
        elif not fields[name]:
            why = "a field outside the constructor; it cannot be decoded"
        else:
            continue
        raise DeclarationError(f"{cls.__name__}.{name} is {why}")


def is_record(cls: type) -> bool:
    """Whether `record` made this very class; a plain subclass of a record is none."""
    return _MARK in cls.__dict__


@final
class ModelId(Generic[M]):
    """The identity of a model: `ModelId(Order, 7)`. Equal by model and value (R2.5).

    `value` is a 64-bit integer or a text that is not empty.
    """

    __slots__ = ("_model", "_value")

    _model: type[M]
    _value: int | str

    def __init__(self, model: type[M], value: int | str) -> None:
        if not inspect.isclass(model):
            raise InvalidArgument(f"a ModelId needs a model class, not {type(model).__name__}")
        kind = type(value)
        if kind is int:
            fits = INT64_MIN <= cast("int", value) <= INT64_MAX
        elif kind is str:
            fits = value != ""
        else:
            raise InvalidArgument(
                f"the value of ModelId[{model.__name__}] must be int or str, got {kind.__name__}"
            )
        if not fits:
            raise InvalidArgument(
                f"the value of ModelId[{model.__name__}] must be a 64-bit integer "
                "or a text that is not empty"
            )
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_value", value)

    @property
    def model(self) -> type[M]:
        """The class this is an identity of."""
        return self._model

    @property
    def value(self) -> int | str:
        """The identity itself."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if type(other) is not ModelId:
            return NotImplemented
        same = cast("ModelId[Any]", other)
        return self.model is same.model and self.value == same.value

    def __hash__(self) -> int:
        return hash((self.model, self.value))

    def __repr__(self) -> str:
        return f"ModelId({self.model.__name__}, {self.value!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelId, (self.model, self.value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a ModelId does not change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a ModelId does not change")


if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
    # Read-only kinds, so that a dict[str, int] is one. Only list and dict themselves are encoded.
else:

    @final
    class Json:
        """Any JSON value: None, bool, int, float, str, list and dict of these (R2.1).

        Kept as a value: spelling, member order and repeated members are not. To a type checker
        it is the union of these; at run time a mark in annotations, and `Json(x)` is `x`.
        """

        def __new__(cls, value: Any = None) -> Any:
            return value


def module_name(module: str) -> str:
    """The name a module has in every process of a program.

    The module that was run is called `__main__` there (`__mp_main__` in a spawned child) and by
    its own name everywhere else: the name it would be imported by, else the stem of its file.
    """
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return cast("str", spec.name)
    file = getattr(main, "__file__", None)
    return module if file is None else Path(file).stem
