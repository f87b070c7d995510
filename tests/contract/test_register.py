"""Register, alive, leave: who runs what, and which declaration is in force (R5.4, DESIGN 4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from engines import MICROSECOND, START, Clock, Raw
from samples import (
    NULL_SCHEMA,
    RECEIPT,
    RECEIPT_SCHEMA,
    TARGET,
    claim_one,
    declaration,
    fingerprint,
    register,
)

from dever_sql.engine import Engine
from dever_sql.errors import InvalidArgument, InvalidName, InvalidPayload, ReservedName

MINUTE = timedelta(minutes=1)


def max_attempts_in_force(engine: Engine, key: str) -> int:
    row = engine.get_job(engine.enqueue(TARGET, key).id)
    assert row is not None
    return row.max_attempts


@pytest.mark.req("R5.4")
def test_register_answers_per_contract(engine: Engine) -> None:
    rows = engine.register(
        "w1", [declaration("b.job.two"), declaration("a.job.one", RECEIPT_SCHEMA)], MINUTE
    )
    assert {(row.target, row.fingerprint) for row in rows} == {
        ("a.job.one", fingerprint(RECEIPT_SCHEMA)),
        ("b.job.two", fingerprint(NULL_SCHEMA)),
    }
    assert len({row.contract_id for row in rows}) == 2


@pytest.mark.req("R5.4")
def test_register_again_changes_nothing(engine: Engine, raw: Raw) -> None:
    first = register(engine, declaration(), worker="w1")
    assert register(engine, declaration(), worker="w1") == first
    assert register(engine, declaration(), worker="w2") == first
    assert register(engine, declaration(), worker=None) == first
    assert (raw.count("contract"), raw.count("policy")) == (1, 1)


@pytest.mark.req("R5.4")
def test_worker_is_shown_with_what_it_told_about_itself(engine: Engine, clock: Clock) -> None:
    engine.register("w1", [declaration()], MINUTE, {"host": "h", "pid": 42, "version": "0.1.0"})
    engine.enqueue(TARGET, "k")
    claim_one(engine, register(engine, worker=None))
    (row,) = engine.workers()
    assert (row.worker, row.host, row.pid, row.version) == ("w1", "h", 42, "0.1.0")
    assert (row.started_at, row.alive_until, row.jobs) == (START, START + MINUTE, 1)


@pytest.mark.req("R5.4")
def test_alive_extends_from_now_until_the_lapse(engine: Engine, clock: Clock) -> None:
    register(engine, alive=MINUTE)
    clock.advance(MINUTE - MICROSECOND)
    assert engine.alive("w1", MINUTE)
    assert engine.workers()[0].alive_until == clock.now + MINUTE
    clock.advance(MINUTE)
    assert engine.alive("w1", MINUTE) is False


@pytest.mark.req("R5.4")
def test_unknown_worker_is_not_alive(engine: Engine) -> None:
    assert engine.alive("nobody", MINUTE) is False
    assert engine.leave("nobody") is False


@pytest.mark.req("R5.4")
def test_worker_that_left_must_register_again(engine: Engine, clock: Clock) -> None:
    register(engine)
    assert engine.leave("w1") is True
    assert engine.leave("w1") is False
    assert engine.alive("w1", MINUTE) is False
    register(engine)
    assert engine.alive("w1", MINUTE) is True


@pytest.mark.req("R5.4")
def test_newest_policy_of_a_live_worker_is_in_force(engine: Engine, clock: Clock) -> None:
    register(engine, declaration(retry=1), worker="old", alive=10 * MINUTE)
    register(engine, declaration(retry=2), worker="new", alive=MINUTE)
    register(engine, declaration(retry=3), worker=None)
    assert max_attempts_in_force(engine, "a") == 2
    clock.advance(MINUTE)
    assert max_attempts_in_force(engine, "b") == 1
    clock.advance(9 * MINUTE)
    assert max_attempts_in_force(engine, "c") == 3


@pytest.mark.req("R5.4")
def test_restart_of_an_old_process_does_not_bring_its_policy_back(engine: Engine) -> None:
    register(engine, declaration(retry=1), worker="old")
    register(engine, declaration(retry=2), worker="new")
    register(engine, declaration(retry=1), worker="old2")
    assert max_attempts_in_force(engine, "a") == 2


@pytest.mark.req("R5.4")
def test_worker_that_registers_again_runs_only_its_new_declarations(
    engine: Engine, clock: Clock
) -> None:
    register(engine, declaration(retry=1), worker="w1")
    register(engine, declaration(retry=2), worker="w2")
    register(engine, declaration("a.job.other"), worker="w2")
    assert max_attempts_in_force(engine, "a") == 1


@pytest.mark.req("R5.4", "R3.6")
def test_current_contract_checks_the_payload(engine: Engine) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA), worker="old")
    register(engine, declaration(schema=NULL_SCHEMA), worker="new")
    with pytest.raises(InvalidPayload):
        engine.enqueue(TARGET, "k", RECEIPT)
    engine.leave("new")
    assert engine.enqueue(TARGET, "k", RECEIPT).created


@pytest.mark.req("R2.6", "R5.4")
def test_enqueue_as_takes_that_contracts_newest_live_policy(engine: Engine) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA, retry=4), worker="old")
    register(engine, declaration(schema=RECEIPT_SCHEMA, retry=5), worker=None)
    register(engine, declaration(retry=6), worker="new")
    (done,) = engine.enqueue_as(TARGET, fingerprint(RECEIPT_SCHEMA), ["k"], [RECEIPT])
    row = engine.get_job(done.id)
    assert row is not None
    assert row.max_attempts == 4


@pytest.mark.req("R5.4")
def test_policy_is_stamped_when_enqueued(engine: Engine) -> None:
    """A later declaration changes jobs to come, not jobs that are there."""
    contracts = register(engine, declaration(retry=2))
    engine.enqueue(TARGET, "k")
    register(engine, declaration(retry=9))
    assert claim_one(engine, contracts).max_attempts == 2


@pytest.mark.req("R1.4", "R5.3")
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("retry", 0),
        ("retry", 101),
        ("retry", -1),
        ("retry", True),
        ("retry", 1.5),
        ("retry", "3"),
        ("retry", None),
        ("timeout_ms", 0),
        ("timeout_ms", 3_600_001),
        ("timeout_ms", None),
        ("backoff_base_ms", 0),
        ("backoff_base_ms", 300_001),
        ("backoff_max_ms", 86_400_001),
        ("backoff_jitter", -0.1),
        ("backoff_jitter", 1.1),
        ("fingerprint", ""),
        ("fingerprint", None),
        ("schema", None),
        ("schema", "text"),
        ("target", "a:b"),
        ("schema", {}),
        ("schema", {"kind": 5}),
        ("backoff_jitter", None),
        ("schedule", []),
        ("schedule", "* * * * *"),
        ("schedule", {}),
        ("schedule", {"spec": None, "missed": "skip"}),
    ],
)
def test_bad_declaration_is_refused(engine: Engine, raw: Raw, member: str, value: object) -> None:
    with pytest.raises(InvalidArgument):
        engine.register("w1", [{**declaration(), member: value}], MINUTE)
    assert (raw.count("contract"), raw.count("worker")) == (0, 0)


@pytest.mark.req("R6.3")
def test_schedule_of_a_job_with_input_is_refused(engine: Engine, raw: Raw) -> None:
    declared = declaration(
        schema=RECEIPT_SCHEMA, schedule={"spec": "* * * * *", "missed": "catch_up"}
    )
    with pytest.raises(InvalidArgument, match="takes no input"):
        engine.register(None, [declared], MINUTE)
    assert (raw.count("contract"), raw.count("schedule")) == (0, 0)


@pytest.mark.req("R7.1")
@pytest.mark.parametrize("member", ["target", "queue"])
@pytest.mark.parametrize("name", [5, True, [], {}], ids=str)
def test_names_that_are_not_text_are_refused(
    engine: Engine, raw: Raw, member: str, name: object
) -> None:
    with pytest.raises(InvalidName, match="is not text"):
        engine.register(None, [{**declaration(), member: name}], MINUTE)
    assert (raw.count("contract"), raw.count("queue")) == (0, 0)


@pytest.mark.req("R7.1")
def test_bad_names_in_a_declaration_are_refused(engine: Engine, raw: Raw) -> None:
    for target in ("", " ", "x" * 256):
        with pytest.raises(InvalidName):
            engine.register("w1", [declaration(target)], MINUTE)
    with pytest.raises(ReservedName):
        engine.register("w1", [declaration(queue="__dever_x")], MINUTE)
    with pytest.raises(InvalidName):
        engine.register(" ", [declaration()], MINUTE)
    assert raw.count("contract") == 0


@pytest.mark.req("R5.4")
@pytest.mark.parametrize("alive", [timedelta(0), timedelta(seconds=-1)])
def test_bad_liveness_is_refused(engine: Engine, alive: timedelta) -> None:
    with pytest.raises(InvalidArgument):
        engine.register("w1", [declaration()], alive)
    register(engine)
    with pytest.raises(InvalidArgument):
        engine.alive("w1", alive)


@pytest.mark.req("R5.4")
def test_missing_liveness_is_refused(engine: Engine, raw: Raw) -> None:
    missing: Any = None
    with pytest.raises(InvalidArgument, match="alive is missing"):
        engine.register("w1", [declaration()], missing)
    assert raw.count("worker") == 0
    register(engine)
    with pytest.raises(InvalidArgument, match="alive is missing"):
        engine.alive("w1", missing)
