"""Enqueue: one job per key, due when it says, checked before it is stored (R3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from engines import MICROSECOND, START, Clock, Raw
from samples import (
    LEASE,
    NULL_SCHEMA,
    RECEIPT,
    RECEIPT_SCHEMA,
    TARGET,
    claim,
    claim_one,
    declaration,
    fingerprint,
    register,
    state,
)

from dever_sql.engine import Engine, Enqueued
from dever_sql.errors import (
    InvalidArgument,
    InvalidKey,
    InvalidPayload,
    ReservedName,
    UnknownJob,
)


@pytest.mark.req("R3.1")
def test_first_enqueue_creates(engine: Engine) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    done = engine.enqueue(TARGET, "receipt:7", RECEIPT)
    row = engine.get_job(done.id)
    assert done.created
    assert row is not None
    assert (row.target, row.key, row.queue, row.state) == (TARGET, "receipt:7", "default", "ready")
    assert (row.attempt, row.max_attempts, row.token) == (0, 3, 0)
    assert (row.run_at, row.created_at) == (START, START)
    assert row.fingerprint == fingerprint(RECEIPT_SCHEMA)
    assert json.loads(row.payload or "") == json.loads(RECEIPT)


@pytest.mark.req("R3.1")
def test_duplicate_returns_the_first(engine: Engine, clock: Clock) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    first = engine.enqueue(TARGET, "k", RECEIPT)
    clock.advance(5)
    later = START + timedelta(hours=1)
    second = engine.enqueue(TARGET, "k", '{"order_id": 8, "email": "b@example.org"}', later)
    row = engine.get_job(first.id)
    assert second == Enqueued(first.id, False)
    assert row is not None
    assert row.run_at == START
    assert json.loads(row.payload or "") == json.loads(RECEIPT)


def _scheduled(engine: Engine, contracts: list[int], clock: Clock) -> None:
    pass


def _running(engine: Engine, contracts: list[int], clock: Clock) -> None:
    claim_one(engine, contracts)


def _waiting_for_retry(engine: Engine, contracts: list[int], clock: Clock) -> None:
    job = claim_one(engine, contracts)
    assert engine.retry([job.id], [job.token], ["handler_failed"])[0].outcome == "retried"


def _blocked(engine: Engine, contracts: list[int], clock: Clock) -> None:
    job = claim_one(engine, contracts)
    assert engine.block([job.id], [job.token], ["invalid_payload"])[0].ok


def _succeeded(engine: Engine, contracts: list[int], clock: Clock) -> None:
    job = claim_one(engine, contracts)
    assert engine.complete([job.id], [job.token])[0].ok


def _dead(engine: Engine, contracts: list[int], clock: Clock) -> None:
    job = claim_one(engine, contracts)
    assert engine.bury([job.id], [job.token], ["handler_failed"])[0].ok


def _cancelled(engine: Engine, contracts: list[int], clock: Clock) -> None:
    ids = [row.id for row in engine.jobs()]
    assert engine.cancel(ids)[0].outcome == "cancelled"


@pytest.mark.req("R3.1")
@pytest.mark.parametrize(
    ("prepare", "run_at", "expected_state", "created"),
    [
        (_scheduled, None, "ready", False),
        (_scheduled, START + timedelta(hours=1), "scheduled", False),
        (_running, None, "running", False),
        (_waiting_for_retry, None, "scheduled", False),
        (_blocked, None, "blocked", False),
        (_succeeded, None, "succeeded", True),
        (_dead, None, "dead", True),
        (_cancelled, None, "cancelled", True),
    ],
    ids=["ready", "scheduled", "running", "retrying", "blocked", "succeeded", "dead", "cancelled"],
)
def test_key_by_state(
    engine: Engine,
    clock: Clock,
    prepare: object,
    run_at: datetime | None,
    expected_state: str,
    created: bool,
) -> None:
    """C22: a key is taken while its job is unfinished, and free once it has finished."""
    contracts = register(engine)
    first = engine.enqueue(TARGET, "k", None, run_at)
    prepare(engine, contracts, clock)  # type: ignore[operator]
    before = engine.get_job(first.id)
    assert before is not None
    assert before.state == expected_state

    second = engine.enqueue(TARGET, "k", None, START + timedelta(days=1))
    assert second.created is created
    assert (second.id != first.id) is created
    assert engine.get_job(first.id) == before


@pytest.mark.req("R3.1")
def test_keys_are_per_target(engine: Engine) -> None:
    register(engine, declaration("a.job.one"), declaration("a.job.two"))
    assert engine.enqueue("a.job.one", "k").created
    assert engine.enqueue("a.job.two", "k").created


@pytest.mark.req("R3.1")
def test_keys_are_compared_byte_for_byte(engine: Engine) -> None:
    """C18: no collation, no normalisation, no case folding, no trimming."""
    register(engine)
    keys = [
        "\u00e9",
        "e\u0301",
        "A",
        "a",
        " a",
        "a ",
        "\u00a0",
        "\u200b",
        "a\u00adb",
        "ab",
        "ß",
        "ss",
    ]
    ids = {engine.enqueue(TARGET, key).id for key in keys}
    assert len(ids) == len(keys)
    assert sorted(row.key or "" for row in engine.jobs()) == sorted(keys)


@pytest.mark.req("R3.1")
@pytest.mark.parametrize("key", ["", " ", "\t", "\n\r", " \t\n\v\f\r ", "x" * 1025, "é" * 513])
def test_bad_key_is_refused(engine: Engine, raw: Raw, key: str) -> None:
    register(engine)
    with pytest.raises(InvalidKey):
        engine.enqueue(TARGET, key)
    assert raw.count("job") == 0


@pytest.mark.req("R3.1")
@pytest.mark.parametrize("key", ["x", "v", "rnft\\", "\u00a0", "x" * 1024, "é" * 512, "😀" * 256])
def test_key_of_1_to_1024_bytes_is_kept_exactly(engine: Engine, key: str) -> None:
    register(engine)
    row = engine.get_job(engine.enqueue(TARGET, key).id)
    assert row is not None
    assert row.key == key


@pytest.mark.req("R3.1")
@pytest.mark.parametrize("key", ["a\x00b", "\ud800", "a\udfffb"])
def test_key_that_no_database_can_hold_is_refused(engine: Engine, raw: Raw, key: str) -> None:
    """C43, C44."""
    register(engine)
    with pytest.raises(InvalidKey):
        engine.enqueue(TARGET, key)
    assert raw.count("job") == 0


@pytest.mark.req("R7.1")
def test_reserved_key_is_refused(engine: Engine, raw: Raw) -> None:
    register(engine)
    with pytest.raises(ReservedName):
        engine.enqueue(TARGET, "__dever_x")
    assert raw.count("job") == 0


@pytest.mark.req("R3.6")
def test_unknown_job_is_refused(engine: Engine, raw: Raw) -> None:
    with pytest.raises(UnknownJob, match="no_such_job"):
        engine.enqueue("shop.order.job.no_such_job", "k")
    assert raw.count("job") == 0


@pytest.mark.req("R3.6")
def test_payload_that_does_not_fit_is_refused_by_field(engine: Engine, raw: Raw) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    with pytest.raises(InvalidPayload, match=r"payload\.order_id"):
        engine.enqueue(TARGET, "k", '{"order_id": "seven", "email": "a"}')
    assert raw.count("job") == 0


@pytest.mark.req("R3.6")
def test_payload_value_is_never_in_the_message(engine: Engine) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    with pytest.raises(InvalidPayload) as caught:
        engine.enqueue(TARGET, "k", '{"order_id": "hunter2", "email": "hunter2"}')
    assert "hunter2" not in f"{caught.value} {caught.value.detail} {caught.value.hint}"


@pytest.mark.req("R3.6")
@pytest.mark.parametrize(
    ("key", "payload", "error"),
    [
        ("k", '{"order_id": 1}', InvalidPayload),
        ("", RECEIPT, InvalidKey),
        ("k", "{", InvalidPayload),
    ],
)
def test_checks_come_before_deduplication(
    engine: Engine, key: str, payload: str, error: type[Exception]
) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    engine.enqueue(TARGET, "k", RECEIPT)
    with pytest.raises(error):
        engine.enqueue(TARGET, key, payload)


@pytest.mark.req("R2.4")
@pytest.mark.parametrize("payload", [None, "null", " null "])
def test_job_without_input_stores_null(engine: Engine, payload: str | None) -> None:
    register(engine)
    row = engine.get_job(engine.enqueue(TARGET, "k", payload).id)
    assert row is not None
    assert row.payload == "null"


@pytest.mark.req("R2.4")
@pytest.mark.parametrize("payload", ["{}", "[]", "0", '""', "false"])
def test_job_without_input_takes_no_payload(engine: Engine, payload: str) -> None:
    register(engine)
    with pytest.raises(InvalidPayload):
        engine.enqueue(TARGET, "k", payload)


@pytest.mark.req("R3.6")
def test_job_with_input_needs_a_payload(engine: Engine) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    with pytest.raises(InvalidPayload):
        engine.enqueue(TARGET, "k")


@pytest.mark.req("R3.3")
def test_enqueue_is_due_at_once(engine: Engine) -> None:
    contracts = register(engine)
    done = engine.enqueue(TARGET, "k")
    assert [job.id for job in claim(engine, contracts, expect=1)] == [done.id]


@pytest.mark.req("R3.3")
def test_enqueue_at_is_claimable_exactly_from_run_at(engine: Engine, clock: Clock) -> None:
    contracts = register(engine)
    run_at = START + timedelta(hours=6)
    done = engine.enqueue(TARGET, "k", None, run_at)
    assert state(engine, done.id) == "scheduled"
    clock.set(run_at - MICROSECOND)
    assert claim(engine, contracts) == []
    assert state(engine, done.id) == "scheduled"
    clock.set(run_at)
    assert state(engine, done.id) == "ready"
    assert claim_one(engine, contracts).run_at == run_at


@pytest.mark.req("R3.3")
def test_run_at_in_the_past_is_kept_and_due(engine: Engine) -> None:
    contracts = register(engine)
    run_at = START - timedelta(days=400)
    engine.enqueue(TARGET, "k", None, run_at)
    assert claim_one(engine, contracts).run_at == run_at


@pytest.mark.req("R3.3")
def test_run_at_keeps_microseconds_and_comes_back_in_utc(engine: Engine) -> None:
    register(engine)
    zone = timezone(timedelta(hours=10, minutes=30))
    run_at = datetime(2030, 1, 1, 0, 0, 0, 123457, tzinfo=zone)
    row = engine.get_job(engine.enqueue(TARGET, "k", None, run_at).id)
    assert row is not None
    assert row.run_at == run_at
    assert row.run_at.utcoffset() == timedelta(0)


@pytest.mark.req("R3.3")
@pytest.mark.parametrize(
    "run_at",
    [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
)
def test_run_at_at_the_ends_of_time(engine: Engine, run_at: datetime) -> None:
    register(engine)
    row = engine.get_job(engine.enqueue(TARGET, "k", None, run_at).id)
    assert row is not None
    assert row.run_at == run_at


@pytest.mark.req("R3.3")
@pytest.mark.parametrize(
    "run_at",
    [
        datetime(2030, 1, 1),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-1))),
    ],
    ids=["naive", "before year 1", "after year 9999"],
)
def test_bad_run_at_is_refused(engine: Engine, raw: Raw, run_at: datetime) -> None:
    register(engine)
    with pytest.raises(InvalidArgument):
        engine.enqueue(TARGET, "k", None, run_at)
    assert raw.count("job") == 0


# Batches


@pytest.mark.req("R3.7")
def test_batch_answers_per_row_in_order(engine: Engine) -> None:
    register(engine)
    old = engine.enqueue(TARGET, "b")
    done = engine.enqueue_many(TARGET, ["c", "b", "a"])
    assert [one.created for one in done] == [True, False, True]
    assert done[1].id == old.id
    keys = {row.id: row.key for row in engine.jobs()}
    assert [keys[one.id] for one in done] == ["c", "b", "a"]


@pytest.mark.req("R3.7")
def test_key_twice_in_one_batch_is_one_job(engine: Engine) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    other = '{"order_id": 8, "email": "b"}'
    first, second = engine.enqueue_many(TARGET, ["k", "k"], [RECEIPT, other])
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    row = engine.get_job(first.id)
    assert row is not None
    assert json.loads(row.payload or "")["order_id"] == 7


@pytest.mark.req("R3.7")
def test_batch_rows_have_their_own_payload_and_run_at(engine: Engine) -> None:
    register(engine, declaration(schema=record_of_one_int()))
    run_ats = [START + timedelta(minutes=i) if i % 2 else None for i in range(6)]
    done = engine.enqueue_many(
        TARGET, [f"k{i}" for i in range(6)], [f'{{"n": {i}}}' for i in range(6)], run_ats
    )
    for i, one in enumerate(done):
        row = engine.get_job(one.id)
        assert row is not None
        assert row.run_at == (run_ats[i] or START)
        assert json.loads(row.payload or "") == {"n": i}


def record_of_one_int() -> dict[str, object]:
    return {"kind": "record", "name": "One", "fields": [{"name": "n", "type": {"kind": "int"}}]}


@pytest.mark.req("R3.7")
def test_thousands_in_one_call(engine: Engine, raw: Raw) -> None:
    register(engine)
    done = engine.enqueue_many(TARGET, [f"k{i}" for i in range(5000)])
    assert len({one.id for one in done}) == 5000
    assert all(one.created for one in done)
    assert raw.count("job") == 5000
    again = engine.enqueue_many(TARGET, [f"k{i}" for i in range(5000)])
    assert [one.id for one in again] == [one.id for one in done]
    assert not any(one.created for one in again)


@pytest.mark.req("R3.7")
def test_empty_batch_is_nothing(engine: Engine) -> None:
    register(engine)
    assert engine.enqueue_many(TARGET, []) == []


@pytest.mark.req("R3.7")
def test_one_bad_row_stores_nothing_of_the_batch(engine: Engine, raw: Raw) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA))
    with pytest.raises(InvalidPayload):
        engine.enqueue_many(TARGET, ["a", "b", "c"], [RECEIPT, RECEIPT, "{}"])
    with pytest.raises(InvalidKey):
        engine.enqueue_many(TARGET, ["a", "b", " "], [RECEIPT, RECEIPT, RECEIPT])
    assert raw.count("job") == 0


@pytest.mark.req("R3.7")
def test_batch_arrays_of_unequal_length_are_refused(engine: Engine, raw: Raw) -> None:
    register(engine)
    with pytest.raises(InvalidArgument):
        engine.enqueue_many(TARGET, ["a", "b"], ["null"])
    with pytest.raises(InvalidArgument):
        engine.enqueue_many(TARGET, ["a"], ["null"], [None, None])
    assert raw.count("job") == 0


# enqueue_as


@pytest.mark.req("R3.6", "R2.6")
def test_enqueue_as_stamps_that_contract(engine: Engine) -> None:
    old, new = declaration(schema=NULL_SCHEMA), declaration(schema=RECEIPT_SCHEMA)
    register(engine, old)
    register(engine, new)
    (done,) = engine.enqueue_as(TARGET, fingerprint(NULL_SCHEMA), ["k"], ["null"])
    row = engine.get_job(done.id)
    assert row is not None
    assert row.fingerprint == fingerprint(NULL_SCHEMA)


@pytest.mark.req("R3.6")
@pytest.mark.parametrize("target", [TARGET, "shop.order.job.no_such_job"])
def test_enqueue_as_with_unknown_fingerprint_is_refused(
    engine: Engine, raw: Raw, target: str
) -> None:
    register(engine)
    with pytest.raises(UnknownJob):
        engine.enqueue_as(target, "0" * 64, ["k"], ["null"])
    assert raw.count("job") == 0


@pytest.mark.req("R3.1")
def test_enqueue_as_and_enqueue_share_the_key(engine: Engine) -> None:
    contracts = register(engine)
    done = engine.enqueue(TARGET, "k")
    assert engine.enqueue_as(TARGET, fingerprint(NULL_SCHEMA), ["k"], ["null"]) == [
        Enqueued(done.id, False)
    ]
    job = claim_one(engine, contracts)
    engine.complete([job.id], [job.token])
    assert engine.enqueue_as(TARGET, fingerprint(NULL_SCHEMA), ["k"], ["null"])[0].created


@pytest.mark.req("R3.1")
def test_job_is_stamped_with_the_declared_policy(engine: Engine) -> None:
    contracts = register(engine, declaration(queue="mail", retry=7))
    done = engine.enqueue(TARGET, "k")
    row = engine.get_job(done.id)
    assert row is not None
    assert (row.queue, row.max_attempts) == ("mail", 7)
    assert claim(engine, contracts, queue="default") == []
    assert claim_one(engine, contracts, queue="mail", lease=LEASE).max_attempts == 7
