"""The codec: what a type may be, what a value may be, and that nothing changes on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dever_sql.errors import DeclarationError, InvalidPayload
from dever_sql.record import Json, ModelId, record
from dever_sql.secret import Secret
from dever_sql.wire import (
    SIZE_LIMIT,
    VALUE_LIMIT,
    codec_for,
    decode_json,
    encode_json,
    fingerprint_of,
)

T = TypeVar("T")


class Order: ...


class User: ...


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Size(StrEnum):
    S = "s"


@record
class Line:
    sku: str
    price: Decimal


@record
class Everything:
    flag: bool
    count: int
    ratio: float
    amount: Decimal
    title: str
    token: UUID
    at: datetime
    date: date
    time: time
    wait: timedelta
    color: Color
    level: Level
    order: ModelId[Order]
    note: str | None
    lines: list[Line]
    data: Json


EVERYTHING = Everything(
    flag=True,
    count=2**63 - 1,
    ratio=0.1,
    amount=Decimal("12.50"),
    title="a \N{GRINNING FACE} \u2028 \\u0000",
    token=UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    at=datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    date=date(2026, 1, 2),
    time=time(3, 4, 5, 6),
    wait=timedelta(days=-1, microseconds=1),
    color=Color.RED,
    level=Level.HIGH,
    order=ModelId(Order, 7),
    note=None,
    lines=[Line("a", Decimal("1E+3"))],
    data={"a": [1, 1.5, None, True, "x"], "": {}},
)


def record_of(annotation: Any, name: str = "Payload") -> Any:
    return record(type(name, (), {"__annotations__": {"x": annotation}, "__module__": __name__}))


def encode(annotation: Any, value: Any) -> str:
    payload = record_of(annotation)
    return codec_for(payload, "shop.job").encode(payload(value))


def decode(annotation: Any, text: str) -> Any:
    return codec_for(record_of(annotation), "shop.job").decode(f'{{"x":{text}}}').x


# --- exact both ways ---


@pytest.mark.req("R2.1", "R2.2")
def test_every_kind_comes_back_as_it_was() -> None:
    codec = codec_for(Everything)
    text = codec.encode(EVERYTHING)
    assert codec.decode(text) == EVERYTHING
    assert json.loads(text) == {
        "flag": True,
        "count": 9223372036854775807,
        "ratio": 0.1,
        "amount": "12.50",
        "title": "a \N{GRINNING FACE} \u2028 \\u0000",
        "token": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "at": "2026-01-02T03:04:05.000006Z",
        "date": "2026-01-02",
        "time": "03:04:05.000006",
        "wait": -86_399_999_999,
        "color": "red",
        "level": 2,
        "order": 7,
        "note": None,
        "lines": [{"sku": "a", "price": "1E+3"}],
        "data": {"a": [1, 1.5, None, True, "x"], "": {}},
    }


@pytest.mark.req("R2.2")
def test_text_is_compact_and_in_field_order() -> None:
    payload = record_of(list[Line])([Line("ä", Decimal(1))])
    assert codec_for(type(payload)).encode(payload) == '{"x":[{"sku":"ä","price":"1"}]}'


@pytest.mark.req("R2.5")
def test_the_model_is_there_after_decoding() -> None:
    identity = decode(ModelId[Order], "7")
    assert identity == ModelId(Order, 7)
    assert identity.model is Order


@pytest.mark.req("R2.2")
@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=-9, minutes=-30)), ZoneInfo("Asia/Kolkata")]
)
def test_instants_are_stored_in_utc(zone: Any) -> None:
    at = datetime(2026, 7, 1, 12, 0, 0, 500_000, zone)
    utc = at.astimezone(UTC).replace(tzinfo=None)
    assert encode(datetime, at) == f'{{"x":"{utc.isoformat()}Z"}}'
    assert decode(datetime, f'"{utc.isoformat()}Z"') == at


@pytest.mark.req("R2.2")
@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.0, "0.0"), (1.0, "1.0"), (5, "5.0"), (1e16, "1e16"), (5e-324, "5e-324")],
)
def test_floats(value: float, text: str) -> None:
    assert encode(float, value) == f'{{"x":{text}}}'


@pytest.mark.req("R2.1")
@pytest.mark.parametrize("value", [2.0**53, 7.016243990261682e16, 1e22, -1.5e300, 1e15, -0.0])
def test_a_float_in_free_json_stays_one_in_jsonb(value: float) -> None:
    number = json.loads(as_jsonb(encode(Json, value)))["x"]
    assert type(number) is float
    assert number == value


@pytest.mark.req("R2.2")
def test_minus_zero_is_zero_after_decoding_too() -> None:
    assert str(decode(float, "-0.0")) == "0.0"
    assert str(decode(Json, "[-0.0]")) == "[0.0]"


@pytest.mark.req("R2.2")
def test_a_decimal_keeps_every_digit() -> None:
    spelled = "1234567890" * 20 + ".100"
    assert str(decode(Decimal, f'"{spelled}"')) == spelled
    assert encode(Decimal, Decimal(spelled)) == f'{{"x":"{spelled}"}}'


@pytest.mark.req("R2.1")
def test_repeated_members_of_free_json_are_not_kept() -> None:
    assert decode(Json, '{"a":1,"b":{"c":1,"c":2},"a":3}') == {"a": 3, "b": {"c": 2}}


# Random records: a type, and values of it.


def _of(kind: Any, values: st.SearchStrategy[Any]) -> tuple[Any, st.SearchStrategy[Any]]:
    return kind, values


_int64 = st.integers(-(2**63), 2**63 - 1)
_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_float = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | _int64 | _float | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_scalars = [
    _of(bool, st.booleans()),
    _of(int, _int64),
    _of(float, _float),
    _of(
        Decimal,
        st.decimals(allow_nan=False, allow_infinity=False)
        | st.builds(lambda n, e: Decimal(n).scaleb(e), _int64, st.integers(-999, 999)),
    ),
    _of(str, _text),
    _of(UUID, st.uuids()),
    _of(
        datetime,
        st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=_offsets),
    ),
    _of(date, st.dates()),
    _of(time, st.times()),
    _of(timedelta, st.timedeltas(timedelta(days=-100_000_000), timedelta(days=100_000_000))),
    _of(Color, st.sampled_from(Color)),
    _of(Level, st.sampled_from(Level)),
    _of(ModelId[Order], (_int64 | _text.filter(bool)).map(lambda value: ModelId(Order, value))),
    _of(Json, _json),
]


@st.composite
def _payloads(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A record type with values of it."""
    fields = draw(st.lists(_types(depth), max_size=4))
    kind = record(
        type(
            "Random",
            (),
            {
                "__annotations__": {f"f{i}": kind for i, (kind, _) in enumerate(fields)},
                "__module__": __name__,
            },
        )
    )
    return kind, st.builds(kind, *[values for _, values in fields])


def _types(depth: int) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    if depth == 0:
        return st.sampled_from(_scalars)
    inner = _types(depth - 1)
    return st.one_of(
        st.sampled_from(_scalars),
        inner.map(lambda each: (list[each[0]], st.lists(each[1], max_size=3))),
        inner.map(lambda each: (Optional[each[0]], st.none() | each[1])),  # noqa: UP045
        _payloads(depth - 1),
    )


def as_jsonb(text: str) -> str:
    """What PostgreSQL's jsonb makes of a text: members by length and name, numbers without
    exponent."""

    def spell(value: Any) -> str:
        match value:
            case dict():
                members = sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0]))
                return "{" + ", ".join(f"{json.dumps(k)}: {spell(v)}" for k, v in members) + "}"
            case list():
                return "[" + ", ".join(map(spell, value)) + "]"
            case Decimal():
                return f"{value:f}"
            case _:
                return json.dumps(value, ensure_ascii=False)

    return spell(json.loads(text, parse_float=Decimal))


@pytest.mark.req("R2.2", "R2.3")
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_encoded_is_decoded(data: st.DataObject) -> None:
    kind, values = data.draw(_payloads())
    payload = data.draw(values)
    codec = codec_for(kind)
    text = codec.encode(payload)
    assert codec.decode(text) == payload
    assert codec.decode(as_jsonb(text)) == payload


# --- values that do not fit ---


class Text(str): ...


class Instant(datetime): ...


@pytest.mark.req("R2.2")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (bool, 1),
        (bool, None),
        (int, True),
        (int, 1.0),
        (int, "1"),
        (int, 2**63),
        (int, -(2**63) - 1),
        (int, Level.LOW),
        (float, True),
        (float, float("nan")),
        (float, float("inf")),
        (float, float("-inf")),
        (float, 2**53 + 1),
        (float, 10**400),
        (float, Decimal("1.5")),
        (Decimal, 1.5),
        (Decimal, 1),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("sNaN")),
        (Decimal, Decimal("Infinity")),
        (Decimal, Decimal("1E+1000000")),
        (str, b"a"),
        (str, Text("a")),
        (str, Size.S),
        (str, Secret("a")),
        (str, "x \0 y"),
        (str, "\ud800"),
        (str, "a\udfffb"),
        (UUID, "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        (datetime, datetime(2026, 1, 2)),
        (datetime, date(2026, 1, 2)),
        (datetime, Instant(2026, 1, 2, tzinfo=UTC)),
        (datetime, "2026-01-02T03:04:05Z"),
        (datetime, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        (datetime, datetime(9999, 12, 31, 23, 30, tzinfo=timezone(timedelta(hours=-1)))),
        (date, datetime(2026, 1, 2, tzinfo=UTC)),
        (time, time(1, 2, tzinfo=UTC)),
        (timedelta, 5),
        (timedelta, timedelta.max),
        (timedelta, timedelta.min),
        (Color, "red"),
        (Color, Level.LOW),
        (Level, 1),
        (ModelId[Order], 7),
        (ModelId[Order], ModelId(User, 7)),
        (ModelId[Order], ModelId(Order, "\0")),
        (ModelId[Order], ModelId(Order, "\ud800")),
        (int | None, "1"),
        (list[int], (1, 2)),
        (list[int], None),
        (Line, None),
        (Line, {"sku": "a", "price": "1"}),
        (Json, float("nan")),
        (Json, {"a": [float("inf")]}),
        (Json, 2**63),
        (Json, (1, 2)),
        (Json, {1: 2}),
        (Json, {"a": b"x"}),
        (Json, {"a": Decimal(1)}),
        (Json, {"\0": 1}),
        (Json, ["\ud800"]),
        (Json, Text("a")),
        (Json, Secret("a")),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_field(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode(kind, value)
    message = caught.value.message
    assert message.startswith("payload of job shop.job does not fit: payload.x ")
    assert caught.value.hint
    assert caught.value.__suppress_context__


@pytest.mark.req("R2.2")
def test_the_path_leads_into_lists_and_records() -> None:
    with pytest.raises(InvalidPayload, match=r"payload\.x\[1\]\.price must be Decimal, got float"):
        encode(list[Line], [Line("a", Decimal(1)), Line("b", 2.5)])  # type: ignore[arg-type]


@pytest.mark.req("R2.2", "R5.5")
def test_no_message_shows_a_value() -> None:
    marker = "marker-4711"
    for kind, text in [
        (int, f'"{marker}"'),
        (Decimal, f'"{marker}"'),
        (datetime, f'"{marker}"'),
        (UUID, f'"{marker}"'),
        (Color, f'"{marker}"'),
        (str, f'"{marker}\\u0000"'),
        (str, f'"{marker}'),
        (Json, f'{{"{marker}":1e400}}'),
    ]:
        with pytest.raises(InvalidPayload) as caught:
            decode(kind, text)
        assert marker not in f"{caught.value} {caught.value.detail}"


@pytest.mark.req("R2.3")
def test_an_unknown_name_is_cut_and_escaped() -> None:
    with pytest.raises(InvalidPayload) as caught:
        codec_for(record_of(int)).decode(json.dumps({"x": 1, "a\n" + "b" * 10_000: 1}))
    assert '["a\\nbbb' in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.req("R1.3")
def test_another_record_is_refused() -> None:
    with pytest.raises(InvalidPayload, match="must be Everything, got Line"):
        codec_for(Everything).encode(Line("a", Decimal(1)))  # type: ignore[arg-type]


@record
class Percent:
    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 100:
            raise ValueError(f"marker {self.value}")


@pytest.mark.req("R2.3")
def test_a_records_own_check_makes_a_payload_invalid() -> None:
    with pytest.raises(InvalidPayload, match=r"payload\.x\[0\] was refused by Percent") as caught:
        decode(list[Percent], '[{"value":101}]')
    assert "marker" not in str(caught.value)
    assert decode(list[Percent], '[{"value":100}]') == [Percent(100)]


# --- limits ---


@pytest.mark.req("R2.4")
@pytest.mark.parametrize("letter", ["y", "ä", "\N{GRINNING FACE}"])
def test_sixteen_mib_of_encoded_text_fit_and_a_byte_more_does_not(letter: str) -> None:
    room = SIZE_LIMIT - len('{"x":""}')
    text = "z" * (room % len(letter.encode())) + letter * (room // len(letter.encode()))
    assert len(encode(str, text).encode()) == SIZE_LIMIT
    with pytest.raises(InvalidPayload, match="16 MiB"):
        encode(str, text + "y")


@pytest.mark.req("R2.4")
@pytest.mark.parametrize("kind", [list[int], Json])
def test_65536_values_fit_and_one_more_does_not(kind: Any) -> None:
    fits = [0] * (VALUE_LIMIT - 2)
    assert decode(kind, json.dumps(fits)) == fits
    assert encode(kind, fits)
    with pytest.raises(InvalidPayload, match="more than 65,536 values"):
        encode(kind, [*fits, 0])
    with pytest.raises(InvalidPayload, match="more than 65,536 values"):
        decode(kind, json.dumps([*fits, 0]))


def nested(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.req("R2.4")
def test_64_levels_fit_and_one_more_does_not() -> None:
    assert decode(Json, json.dumps(nested(63))) == nested(63)
    assert encode(Json, nested(63))
    for refused in (encode, lambda kind, value: decode(kind, json.dumps(value))):
        with pytest.raises(InvalidPayload, match=r"payload\.x nests deeper than 64 levels"):
            refused(Json, nested(64))


@pytest.mark.req("R2.4")
def test_a_circle_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidPayload, match="deeper than 64"):
        encode(Json, circle)


@pytest.mark.req("R2.3")
def test_hostile_text_is_refused_in_bounded_time() -> None:
    for text in ["[" * 1_000_000, "9" * 1_000_000, '{"a":' * 100_000, "-", '"' + "\\u12"]:
        with pytest.raises(InvalidPayload):
            decode(Json, text)


# --- messages ---


@pytest.mark.req("R2.4", "R7.2")
def test_any_json_value_is_a_message() -> None:
    for value in [None, 1, "a", [], {"a": [1.5]}, nested(64)]:
        assert decode_json(encode_json(value)) == value
    for refused in [float("nan"), b"a", {1: 2}, "\0", "\ud800", nested(65), 2**63, object()]:
        with pytest.raises(InvalidPayload, match="payload does not fit: payload"):
            encode_json(refused)


# --- types that are refused when declared ---


class Plain: ...


class Movie(TypedDict):
    title: str


class Point(NamedTuple):
    x: int


class Mixed(Enum):
    A = "a"
    B = 1


class Empty(Enum): ...


class Flags(Flag):
    A = 1


class Pairs(Enum):
    A = (1, 2)


class Truth(Enum):
    YES = True


class Huge(Enum):
    A = 2**63


class Nul(Enum):
    A = "\0"


@record
class Node:
    next: Node | None


@record
class Left:
    right: list[Right]


@record
class Right:
    left: Left | None


@record
class Pair(Generic[T]):
    x: T


@pytest.mark.req("R2.1")
@pytest.mark.parametrize(
    "kind",
    [
        Any,
        object,
        bytes,
        bytearray,
        memoryview,
        Secret,
        dict,
        dict[str, int],
        Mapping[str, int],
        Movie,
        Point,
        Plain,
        set[int],
        frozenset[int],
        tuple[int, int],
        tuple,
        list,
        list[Any],
        list[list],
        list[dict[str, int]],
        Sequence[int],
        Callable[[], None],
        type,
        type[int],
        Path,
        complex,
        range,
        None,
        int | str,
        int | str | None,
        Line | Everything,
        Union[Line, Everything, None],  # noqa: UP007
        Literal["a"],
        Annotated[int, "positive"],
        T,
        Pair[int],
        Pair,
        Node,
        Left,
        ModelId,
        ModelId[Any],
        ModelId[int],
        ModelId[T],
        Mixed,
        Empty,
        Flags,
        Pairs,
        Truth,
        Huge,
        Nul,
        Enum,
        Secret | None,
        list[bytes | None],
    ],
    ids=str,
)
def test_a_type_without_a_kind_is_refused_by_its_field(kind: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^Payload\.x") as caught:
        codec_for(record_of(kind))
    assert caught.value.hint


@pytest.mark.req("R2.1")
def test_the_path_of_a_refused_type_leads_to_the_field() -> None:
    inner = record_of(list[bytes], "Inner")
    with pytest.raises(DeclarationError, match=r"^Payload\.x\[\]\.x\[\]: bytes"):
        codec_for(record_of(list[inner]))


@pytest.mark.req("R2.1")
def test_recursion_is_named() -> None:
    with pytest.raises(DeclarationError, match="Left -> Right -> Left"):
        codec_for(Left)


@pytest.mark.req("R2.1")
def test_private_data_of_a_model_is_refused() -> None:
    private = record(
        type("Row", (), {"__annotations__": {"x": int}, "__module__": "shop.order.model"})
    )
    with pytest.raises(DeclarationError, match=r"Payload\.x: Row is private data of a model"):
        codec_for(record_of(private))


@pytest.mark.req("R2.1", "R2.4")
def test_64_levels_of_types_are_the_limit() -> None:
    kind: Any = int
    for _ in range(63):
        kind = list[kind]
    assert codec_for(record_of(kind))
    with pytest.raises(DeclarationError, match="deeper than 64"):
        codec_for(record_of(list[kind]))


@pytest.mark.req("R2.1")
def test_a_record_that_unfolds_without_bound_is_refused() -> None:
    kind: Any = Line
    for _ in range(20):
        kind = record(
            type("Wide", (), {"__annotations__": {"a": kind, "b": kind}, "__module__": __name__})
        )
    with pytest.raises(DeclarationError, match="fields in all"):
        codec_for(kind)


@record
class Unresolved:
    x: list[Missing]  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.req("R1.3")
def test_a_type_that_cannot_be_resolved_is_named_with_its_field() -> None:
    with pytest.raises(DeclarationError, match=r"Unresolved\.x: .*Missing"):
        codec_for(Unresolved)


@record
class Base:
    first: int


@record
class Derived(Base):
    second: str = "x"
    third: "list[Line | None]" = None  # type: ignore[assignment]  # noqa: UP037


@pytest.mark.req("R2.1")
def test_fields_of_a_base_record_come_first() -> None:
    assert [field["name"] for field in codec_for(Derived).schema["fields"]] == [
        "first",
        "second",
        "third",
    ]


@pytest.mark.req("R2.3")
def test_a_default_is_no_excuse_for_a_missing_field() -> None:
    with pytest.raises(InvalidPayload, match=r"payload\.second is missing"):
        codec_for(Derived).decode('{"first":1,"third":[]}')


# --- fingerprints ---


@pytest.mark.req("R2.6")
def test_any_change_of_the_schema_changes_the_fingerprint() -> None:
    def of(name: str, **fields: Any) -> str:
        return codec_for(
            record(type(name, (), {"__annotations__": fields, "__module__": __name__}))
        ).fingerprint

    variants = [
        of("A", x=int, y=str),
        of("B", x=int, y=str),
        of("A", y=str, x=int),
        of("A", x=int, z=str),
        of("A", x=int),
        of("A", x=int, y=str | None),
        of("A", x=int, y=list[str]),
        of("A", x=float, y=str),
        of("A", x=int, y=Color),
        of("A", x=ModelId[Order], y=str),
        of("A", x=ModelId[User], y=str),
        of("A"),
        codec_for(None).fingerprint,
    ]
    assert len(set(variants)) == len(variants)
    assert of("A", x=int, y=str) == variants[0]


@pytest.mark.req("R2.6")
def test_the_fingerprint_is_that_of_the_canonical_text() -> None:
    # sha256 of {"kind":"null"}, as `printf '{"kind":"null"}' | sha256sum` prints it.
    assert fingerprint_of({"kind": "null"}) == (
        "f1c0649d0d3ab26a3841bff912e8a70af069512bd632f5c19f87b10439a44f24"
    )


@pytest.mark.req("R2.6")
def test_the_fingerprint_is_the_same_in_a_script_and_in_its_worker(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "from __future__ import annotations\n"
        "from dever_sql.record import ModelId, record\n"
        "from dever_sql.wire import codec_for\n"
        "class Order: ...\n"
        "@record\n"
        "class Receipt:\n"
        "    order: ModelId[Order]\n"
        "print(codec_for(Receipt).fingerprint)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for arguments in (["tasks.py"], ["-c", "import tasks"], ["-m", "tasks"])
    }
    assert len(printed) == 1
