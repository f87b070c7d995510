"""Python's codec against the golden examples of the wire format."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from wire_cases import WireCase, cases, schemas

from dever_sql.errors import InvalidPayload
from dever_sql.record import Json, ModelId, record
from dever_sql.wire import Codec, codec_for, fingerprint_of

_SCALARS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "decimal": Decimal,
    "text": str,
    "uuid": UUID,
    "datetime": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "json": Json,
}


def type_of(node: dict[str, Any]) -> Any:
    """A Python type whose wire schema is `node`."""
    match node["kind"]:
        case "record":
            fields = {field["name"]: type_of(field["type"]) for field in node["fields"]}
            return record(
                type(node["name"], (), {"__annotations__": fields, "__module__": __name__})
            )
        case "optional":
            return type_of(node["item"]) | None
        case "list":
            return list[type_of(node["item"])]
        case "enum":
            members = {f"MEMBER_{number}": value for number, value in enumerate(node["values"])}
            return Enum(node["name"], members)
        case "model":
            module, _, name = node["model"].rpartition(".")
            return ModelId[type(name, (), {"__module__": module, "__qualname__": name})]
        case kind:
            return _SCALARS[kind]


def codec_of(schema: dict[str, Any]) -> Codec[Any]:
    return codec_for(None if schema["kind"] == "null" else type_of(schema), "shop.order.job.golden")


@pytest.fixture(scope="module")
def codecs() -> dict[str, Codec[Any]]:
    return {entry["name"]: codec_of(entry["schema"]) for entry in schemas()}


@pytest.mark.req("R2.6")
@pytest.mark.parametrize("entry", schemas(), ids=lambda entry: entry["name"])
def test_types_give_the_golden_schema_and_fingerprint(
    entry: dict[str, Any], codecs: dict[str, Codec[Any]]
) -> None:
    codec = codecs[entry["name"]]
    assert codec.schema == entry["schema"]
    assert codec.fingerprint == entry["fingerprint"] == fingerprint_of(entry["schema"])


@pytest.mark.req("R2.2", "R2.3", "R2.4")
@pytest.mark.parametrize("case", cases("python"), ids=lambda case: case.label)
def test_golden_payload(case: WireCase, codecs: dict[str, Codec[Any]]) -> None:
    codec = codecs[case.schema_name]
    if case.path is None:
        payload = codec.decode(case.payload)
        assert codec.decode(codec.encode(payload)) == payload
    else:
        with pytest.raises(InvalidPayload) as caught:
            codec.decode(case.payload)
        found = caught.value.message.removeprefix(
            "payload of job shop.order.job.golden does not fit: "
        )
        assert found.startswith(case.path)
        assert len(found) < 400
