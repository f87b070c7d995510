"""`record`, `ModelId`, `Json`, `Secret`, and the names of modules."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dever_sql.errors import DeclarationError, InvalidArgument
from dever_sql.record import Json, ModelId, is_record, module_name, record
from dever_sql.secret import Secret, hide_secrets


class Order: ...


class User: ...


@record
class Receipt:
    order: ModelId[Order]
    email: str = "nobody@example.org"


# --- record ---


@pytest.mark.req("R1.3")
def test_a_record_is_a_frozen_value_with_slots() -> None:
    receipt = Receipt(ModelId(Order, 7))
    assert receipt == Receipt(order=ModelId(Order, 7), email="nobody@example.org")
    assert hash(receipt) == hash(Receipt(ModelId(Order, 7)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        receipt.email = "x"  # type: ignore[misc]
    assert not hasattr(receipt, "__dict__")


def test_a_subclass_without_the_decorator_is_no_record() -> None:
    class Special(Receipt): ...

    assert is_record(Receipt)
    assert not is_record(Special)


def own_constructor() -> type:
    class Bad:
        x: int

        def __init__(self) -> None: ...

    return Bad


def init_var() -> type:
    class Bad:
        x: dataclasses.InitVar[int]

    return Bad


def outside_constructor() -> type:
    class Bad:
        x: int = dataclasses.field(default=1, init=False)

    return Bad


def private_field() -> type:
    class Bad:
        _x: int

    return Bad


def default_before() -> type:
    class Bad:
        x: int = 1
        y: int

    return Bad


def dataclass_already() -> type:
    @dataclasses.dataclass
    class Bad:
        x: int

    return Bad


@pytest.mark.req("R2.1")
@pytest.mark.parametrize(
    "make",
    [
        own_constructor,
        init_var,
        outside_constructor,
        private_field,
        default_before,
        dataclass_already,
    ],
)
def test_what_cannot_be_a_record_is_refused_where_it_stands(make: Any) -> None:
    with pytest.raises(DeclarationError, match="Bad"):
        record(make())


def test_record_stands_on_classes_only() -> None:
    with pytest.raises(DeclarationError, match="function"):
        record(default_before)  # type: ignore[type-var]


# --- ModelId ---


@pytest.mark.req("R2.5")
def test_model_ids_are_equal_by_model_and_value() -> None:
    assert ModelId(Order, 7) == ModelId(Order, 7)
    assert len({ModelId(Order, 7), ModelId(Order, 7), ModelId(User, 7)}) == 2
    assert ModelId(Order, 7) != ModelId(User, 7)
    assert ModelId(Order, 7) != ModelId(Order, 8)
    assert ModelId(Order, 7) != ModelId(Order, "7")
    assert ModelId(Order, 7) != 7
    assert (ModelId(Order, 7).model, ModelId(Order, "a").value) == (Order, "a")
    assert ModelId[Order](Order, 7) == ModelId(Order, 7)


@pytest.mark.req("R2.5")
@pytest.mark.parametrize("value", [True, 1.0, None, "", 2**63, -(2**63) - 1, b"7", [7]])
def test_a_value_that_is_no_identity_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="Order"):
        ModelId(Order, value)


@pytest.mark.req("R2.5")
@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, -(2**63), "a", " "])
def test_64_bit_integers_and_text_are_identities(value: int | str) -> None:
    assert ModelId(Order, value).value == value


def test_a_model_id_needs_a_class() -> None:
    with pytest.raises(InvalidArgument):
        ModelId("Order", 7)  # type: ignore[arg-type]


def test_a_model_id_does_not_change_and_can_be_copied() -> None:
    identity = ModelId(Order, 7)
    with pytest.raises(AttributeError):
        identity.value = 8  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del identity._value
    assert copy.deepcopy(identity) == identity
    assert pickle.loads(pickle.dumps(identity)) == identity
    assert repr(identity) == "ModelId(Order, 7)"


# --- Json ---


def test_json_is_the_value_itself() -> None:
    value = {"a": [1, None]}
    assert Json(value) is value  # type: ignore[operator]


# --- Secret ---


@pytest.mark.req("R2.1", "R5.5")
def test_a_secret_shows_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret("hunter2-marker")
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r", secret, secret)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r:>40}", f"{[secret]}", caplog.text]
    assert not any("hunter2-marker" in text for text in shown)
    assert secret.reveal() == "hunter2-marker"


def test_secrets_are_compared_by_value_and_never_pickled() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert copy.deepcopy(Secret("a")) == Secret("a")
    with pytest.raises(TypeError):
        pickle.dumps(Secret("a"))


def test_a_secret_holds_text_only() -> None:
    with pytest.raises(InvalidArgument):
        Secret(b"bytes")  # type: ignore[arg-type]


@pytest.mark.req("R5.5")
def test_living_secrets_are_hidden_in_text() -> None:
    first, second = Secret("marker-one"), Secret("marker-one-and-more")
    hidden = hide_secrets("failed with marker-one-and-more and marker-one")
    assert hidden == "failed with *** and ***"
    assert first != second


@pytest.mark.req("R5.5")
def test_an_equal_secret_that_went_away_leaves_the_other_one_hidden() -> None:
    kept = Secret("marker-kept")
    gone = Secret("marker-kept")
    assert kept == gone
    del gone
    assert hide_secrets("marker-kept") == "***"


# --- module names ---


@pytest.mark.req("R2.6")
def test_a_module_keeps_its_name() -> None:
    assert module_name("shop.order.job") == "shop.order.job"


SCRIPT = "from dever_sql.record import module_name; print(module_name(__name__))"


@pytest.mark.req("R2.6")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["tasks.py"], "tasks"),
        (["-m", "shop.tasks"], "shop.tasks"),
        (["-m", "shop"], "shop.__main__"),
    ],
)
def test_the_module_that_is_run_has_its_own_name(
    tmp_path: Path, arguments: list[str], name: str
) -> None:
    (tmp_path / "tasks.py").write_text(SCRIPT)
    (tmp_path / "shop").mkdir()
    for file in ("__init__.py", "tasks.py", "__main__.py"):
        (tmp_path / "shop" / file).write_text(SCRIPT if file != "__init__.py" else "")
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == name
