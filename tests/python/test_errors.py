"""The family of errors and the codes they are told apart by."""

from __future__ import annotations

import copy
import pickle

import pytest

from dever_sql import errors
from dever_sql.errors import DeverError, from_sqlite_message, from_sqlstate

CODES = {
    "DV001": errors.InvalidName,
    "DV002": errors.ReservedName,
    "DV003": errors.InvalidSpec,
    "DV004": errors.UnknownJob,
    "DV005": errors.InvalidPayload,
    "DV006": errors.InvalidKey,
    "DV007": errors.InvalidArgument,
    "DV009": errors.SchemaVersion,
}


@pytest.mark.req("R3.6")
@pytest.mark.parametrize(("code", "kind"), CODES.items())
def test_each_code_has_its_class_on_both_engines(code: str, kind: type[DeverError]) -> None:
    assert kind.sqlstate == code
    assert type(from_sqlstate(code, "message", "detail", "hint")) is kind
    assert type(from_sqlite_message(f"{code} {kind.__name__}: message")) is kind


def test_message_detail_and_hint_come_through() -> None:
    error = from_sqlstate("DV005", "the payload does not fit", "target=x", "send the fields")
    assert error is not None
    assert (error.message, error.detail, error.hint) == (
        "the payload does not fit",
        "target=x",
        "send the fields",
    )
    assert str(error) == "the payload does not fit\nhint: send the fields"


def test_the_hint_of_a_trigger_is_the_last_line() -> None:
    error = from_sqlite_message("DV006 InvalidKey: the key: is empty\nhint: give one")
    assert error is not None
    assert (error.message, error.hint) == ("the key: is empty", "give one")


@pytest.mark.parametrize("code", [None, "", "23505", "DV008", "DV000"])
def test_a_foreign_code_is_none_of_ours(code: str | None) -> None:
    assert from_sqlstate(code, "duplicate key") is None


@pytest.mark.parametrize("text", ["UNIQUE constraint failed", "DV999 Other: x", "DV001", ""])
def test_a_foreign_message_is_none_of_ours(text: str) -> None:
    assert from_sqlite_message(text) is None


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_an_error_survives_copying_whole(again: object) -> None:
    error = errors.InvalidKey("the key is empty", detail="job=x", hint="give one")
    copied = again(error)  # type: ignore[operator]
    assert type(copied) is errors.InvalidKey
    assert (copied.message, copied.detail, copied.hint) == (
        "the key is empty",
        "job=x",
        "give one",
    )
