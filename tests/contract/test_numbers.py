"""Numbers and text at their limits: in payloads and as arguments (R2.2, R2.4; C43 to C48)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from engines import Raw
from samples import LEASE, TARGET, claim_one, declaration, record_schema, register

from dever_sql.engine import Engine
from dever_sql.errors import InvalidArgument, InvalidPayload

SCHEMA = record_schema("Numbers", i="int", f="float", t="text", j="json")


def store(engine: Engine, **members: str) -> str:
    """Enqueues a record with these members, given as JSON text; returns what came to be stored."""
    contracts = register(engine, declaration(schema=SCHEMA))
    values = {"i": "0", "f": "0", "t": '""', "j": "null", **members}
    text = "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"
    engine.enqueue(TARGET, "k", text)
    return claim_one(engine, contracts).payload


@pytest.mark.req("R2.2")
@pytest.mark.parametrize("number", [0, -1, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)], ids=str)
@pytest.mark.parametrize("member", ["i", "j"])
def test_64_bit_integers_are_exact(engine: Engine, member: str, number: int) -> None:
    assert json.loads(store(engine, **{member: str(number)}))[member] == number


BEYOND = ["9223372036854775808", "-9223372036854775809", "1" + "0" * 400, "9" * 5000]


@pytest.mark.req("R2.2")
@pytest.mark.parametrize("text", BEYOND, ids=["2^63", "-2^63-1", "10^400", "5000 digits"])
@pytest.mark.parametrize("member", ["i", "j"])
def test_integers_beyond_64_bits_are_refused(
    engine: Engine, raw: Raw, member: str, text: str
) -> None:
    with pytest.raises(InvalidPayload):
        store(engine, **{member: text})
    assert raw.count("job") == 0


@pytest.mark.req("R2.2")
@pytest.mark.parametrize(
    "name", ['a"b', '"', "a.b", "a]b", "a[0]", "", "\\", "$", "'", "é", "a\nb"]
)
def test_integers_beyond_64_bits_are_found_under_any_name(
    engine: Engine, raw: Raw, name: str
) -> None:
    payload = json.dumps({"x": [1, {name: [{name: 2**64 + 1}]}]})
    with pytest.raises(InvalidPayload):
        engine.send("q", payload)
    with pytest.raises(InvalidPayload):
        store(engine, j=payload)
    assert raw.count("job") == 0


@pytest.mark.req("R2.2")
@pytest.mark.parametrize("text", ["1.5", "1.0", "1e2", "true", '"1"', "null", "-0.0", "[]"])
def test_what_is_no_integer_is_refused(engine: Engine, raw: Raw, text: str) -> None:
    """C45: jsonb keeps no trace of 1e2, so that one case is the text 100 on PostgreSQL."""
    if text == "1e2" and engine.kind == "postgresql":
        pytest.skip("jsonb has turned 1e2 into 100 before any function sees it")
    with pytest.raises(InvalidPayload):
        store(engine, i=text)
    assert raw.count("job") == 0


@pytest.mark.req("R2.2")
@pytest.mark.parametrize(
    "text", ["1.5", "0.1", "1e300", "1.7976931348623157e308", "5e-324", "3", "-2.5e-10", "1e2"]
)
@pytest.mark.parametrize("member", ["f", "j"])
def test_finite_floats_come_back_as_the_same_float(engine: Engine, member: str, text: str) -> None:
    stored = json.loads(store(engine, **{member: text}))[member]
    assert float(stored) == float(text)


@pytest.mark.req("R2.2")
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "-1e309", "1e200000"])
@pytest.mark.parametrize("member", ["f", "j"])
def test_what_is_no_finite_float_is_refused(
    engine: Engine, raw: Raw, member: str, text: str
) -> None:
    with pytest.raises(InvalidPayload):
        store(engine, **{member: text})
    assert raw.count("job") == 0


@pytest.mark.req("R2.2")
@pytest.mark.parametrize(
    "text",
    [
        "é",
        "e\u0301",
        "😀",
        "👨‍👩‍👧",
        "\\u0000",
        "\x7f\u0080\u2028",
        "\ufeff",
        "\uffff",
        "\U0010ffff",
        '"\\/\b\f\n\r\t',
    ],
    ids=ascii,
)
def test_text_is_exact(engine: Engine, text: str) -> None:
    """C43, C44: the six characters backslash u 0 0 0 0 are text like any other."""
    value = json.dumps(text)
    stored = json.loads(store(engine, t=value, j=f"[{{{value}: {value}}}]"))
    assert (stored["t"], stored["j"]) == (text, [{text: text}])


@pytest.mark.req("R2.2")
def test_surrogate_pair_is_one_character(engine: Engine) -> None:
    assert json.loads(store(engine, t='"\\ud83d\\ude00"'))["t"] == "😀"


@pytest.mark.req("R2.2")
@pytest.mark.parametrize(
    "members",
    [
        {"t": '"a\\u0000b"'},
        {"j": '["a\\u0000b"]'},
        {"j": '{"a\\u0000b": 1}'},
        {"j": '[[{"a": ["\\u0000"]}]]'},
        {"t": '"\\ud800"'},
        {"t": '"a\\udfffb"'},
        {"t": '"\\ude00\\ud83d"'},
        {"j": '{"\\ud800": 1}'},
        {"t": '"a\x00b"'},
        {"t": '"\ud800"'},
        {"t": '"a\nb"'},
    ],
    ids=ascii,
)
def test_nul_and_lone_surrogates_are_refused(
    engine: Engine, raw: Raw, members: dict[str, str]
) -> None:
    """C43, C44: escaped or not, in a value or in a member's name, and raw control characters."""
    with pytest.raises(InvalidPayload):
        store(engine, **members)
    assert raw.count("job") == 0


@pytest.mark.req("R2.2", "R2.3")
@pytest.mark.parametrize(
    "payload",
    [
        "",
        " ",
        "{",
        "{}}",
        "nul",
        "{'a': 1}",
        '{"a": 1,}',
        "[1 2]",
        "01",
        "+1",
        ".5",
        "1.",
        "\ufeff1",
    ],
    ids=ascii,
)
def test_what_is_no_json_is_refused(engine: Engine, raw: Raw, payload: str) -> None:
    with pytest.raises(InvalidPayload):
        engine.send("mail", payload)
    register(engine, declaration(schema=record_schema("J", j="json")))
    with pytest.raises(InvalidPayload):
        engine.enqueue(TARGET, "k", payload)
    assert raw.count("job") == 0


# Limits (R2.4)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.req("R2.4")
def test_64_levels_fit_and_65_do_not(engine: Engine, raw: Raw) -> None:
    assert json.loads(store(engine, j=nested(63)))["j"] == json.loads(nested(63))
    engine.send("mail", nested(64))
    for call in (lambda: store(engine, j=nested(64)), lambda: engine.send("mail", nested(65))):
        before = raw.count("job")
        with pytest.raises(InvalidPayload):
            call()
        assert raw.count("job") == before


@pytest.mark.req("R2.4")
@pytest.mark.parametrize("levels", [1_000, 100_000])
def test_absurd_nesting_is_refused_in_time(engine: Engine, raw: Raw, levels: int) -> None:
    with pytest.raises(InvalidPayload):
        engine.send("mail", nested(levels))
    assert raw.count("job") == 0


@pytest.mark.req("R2.4")
def test_65_536_values_fit_and_one_more_does_not(engine: Engine, raw: Raw) -> None:
    engine.send("mail", "[" + ",".join(["1"] * 65_535) + "]")
    with pytest.raises(InvalidPayload):
        engine.send("mail", "[" + ",".join(["1"] * 65_536) + "]")
    assert raw.count("job") == 1


@pytest.mark.req("R2.4")
def test_16_mib_fit_and_one_byte_more_does_not(engine: Engine, raw: Raw) -> None:
    text = json.dumps("x" * (16 * 1024 * 1024 - 2))
    id = engine.send("mail", text)
    row = engine.get_job(id)
    assert row is not None
    assert row.payload == text
    with pytest.raises(InvalidPayload):
        engine.send("mail", json.dumps("x" * (16 * 1024 * 1024 - 1)))
    with pytest.raises(InvalidPayload):
        engine.send("mail", json.dumps("é" * (8 * 1024 * 1024), ensure_ascii=False))
    assert raw.count("job") == 1


# Arguments


@pytest.mark.req("R2.2")
@pytest.mark.parametrize("id", [2**63 - 1, -(2**63), 0, -1], ids=str)
def test_ids_of_64_bits_are_just_unknown(engine: Engine, id: int) -> None:
    assert engine.get_job(id) is None
    assert [one.outcome for one in engine.cancel([id])] == ["not_found"]
    assert engine.complete([id], [1])[0].ok is False


OUT_OF_RANGE: dict[str, Callable[[Engine, int], object]] = {
    "cancel": lambda engine, n: engine.cancel([n]),
    "redrive": lambda engine, n: engine.redrive([n]),
    "drop_jobs": lambda engine, n: engine.drop_jobs([n]),
    "complete": lambda engine, n: engine.complete([n], [1]),
    "complete's token": lambda engine, n: engine.complete([1], [n]),
    "renew": lambda engine, n: engine.renew([n], [1], LEASE),
    "claim's n": lambda engine, n: engine.claim("q", "w", n, LEASE),
    "claim's contracts": lambda engine, n: engine.claim("q", "w", 1, LEASE, [n]),
    "sweep's n": lambda engine, n: engine.sweep(n),
    "get_job": lambda engine, n: engine.get_job(n),
}


@pytest.mark.req("R2.2", "R7.2")
@pytest.mark.parametrize("call", OUT_OF_RANGE)
@pytest.mark.parametrize(
    "number", [2**63, -(2**63) - 1, 10**400], ids=["2^63", "-2^63-1", "10^400"]
)
def test_arguments_beyond_64_bits_are_errors(engine: Engine, call: str, number: int) -> None:
    """C46."""
    with pytest.raises(InvalidArgument):
        OUT_OF_RANGE[call](engine, number)


@pytest.mark.req("R7.2")
@pytest.mark.parametrize("n", [0, -1])
def test_sweep_of_nothing(engine: Engine, n: int) -> None:
    assert engine.sweep(n) == {}


@pytest.mark.req("R7.2")
def test_largest_durations_are_kept_exactly(engine: Engine) -> None:
    longest = timedelta(days=36_500)
    row = engine.configure_queue("mail", visibility=longest, keep_dead=longest)
    assert (row.visibility, row.keep_dead) == (longest, longest)
    smallest = timedelta(microseconds=1)
    assert engine.configure_queue("mail", visibility=smallest).visibility == smallest
