"""The handle on a queue: send, claim, and what the holder of a message may do (R7.2, R7.3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from engines import START, Clock

from dever_sql.engine import Engine
from dever_sql.errors import InvalidArgument, InvalidKey, InvalidPayload
from dever_sql.queue import Message, Queue

SECOND = timedelta(seconds=1)


@pytest.fixture
def queue(engine: Engine) -> Queue:
    return Queue(engine, "mail")


def claim_one(queue: Queue, **options: Any) -> Message:
    (message,) = queue.claim(1, worker="w", **options)
    return message


@pytest.mark.req("R7.2")
@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        7,
        -(2**63),
        2**63 - 1,
        1.5,
        "text",
        "\U0001f469‍\U0001f467",
        [],
        {},
        {"a": [1, {"b": None}]},
    ],
)
def test_any_json_value_goes_through(queue: Queue, payload: object) -> None:
    id = queue.send(payload)
    message = claim_one(queue)
    assert (message.id, message.payload, message.key) == (id, payload, None)
    assert type(message.payload) is type(payload)


@pytest.mark.req("R2.2", "R7.2")
@pytest.mark.parametrize(
    "payload",
    [float("nan"), float("inf"), 2**63, "a\0b", "\ud800", {"\0": 1}, {1: 2}, b"x", object()],
)
def test_what_is_not_json_is_refused(engine: Engine, queue: Queue, payload: object) -> None:
    with pytest.raises(InvalidPayload):
        queue.send(payload)
    with pytest.raises(InvalidPayload):
        queue.send_many([1, payload])
    assert engine.jobs() == []


@pytest.mark.req("R7.2")
def test_the_defaults_are_stamped_on_the_row(engine: Engine, clock: Clock, queue: Queue) -> None:
    id = queue.send()
    row = engine.get_job(id)
    assert row is not None
    assert (row.queue, row.target, row.state) == ("mail", None, "ready")
    assert (row.max_attempts, row.attempt, row.expires_at) == (3, 0, None)
    # What is configured later does not reach what was sent before.
    engine.configure_queue("mail", visibility=7 * SECOND, max_attempts=9)
    message = claim_one(queue)
    assert message.lease_until == clock.now + 300 * SECOND
    assert message.max_attempts == 3
    queue.send()
    assert claim_one(queue).lease_until == clock.now + 7 * SECOND


@pytest.mark.req("R7.2")
def test_delay_wins_over_run_at_and_none_is_now(engine: Engine, clock: Clock, queue: Queue) -> None:
    def run_at(**options: Any) -> object:
        row = engine.get_job(queue.send(**options))
        assert row is not None
        return row.run_at

    assert run_at() == START
    assert run_at(run_at=START + 9 * SECOND) == START + 9 * SECOND
    assert run_at(delay=2 * SECOND, run_at=START + 9 * SECOND) == START + 2 * SECOND
    assert run_at(delay=timedelta(0), run_at=START + 9 * SECOND) == START
    assert run_at(delay=-SECOND) == START
    assert len(queue.claim(10, worker="w")) == 3
    clock.advance(2)
    assert len(queue.claim(10, worker="w")) == 1


@pytest.mark.req("R7.2", "R3.1")
def test_a_key_is_unique_among_the_unfinished(queue: Queue) -> None:
    first = queue.send(1, key="k")
    assert queue.send(2, key="k") == first
    message = claim_one(queue)
    assert (message.payload, message.key) == (1, "k")
    assert queue.send(3, key="k") == first
    assert message.ack() is True
    assert queue.send(4, key="k") != first


@pytest.mark.req("R7.1", "R7.2")
def test_keys_are_checked(engine: Engine, queue: Queue) -> None:
    for key in ("", " ", "\t\n", "k" * 1025, "a\0b"):
        with pytest.raises(InvalidKey):
            queue.send(key=key)
    assert engine.jobs() == []


@pytest.mark.req("R7.2")
def test_send_many_keeps_the_order(queue: Queue) -> None:
    ids = queue.send_many([{"n": n} for n in range(200)])
    assert ids == sorted(ids)
    claimed = queue.claim(200, worker="w")
    assert [message.payload["n"] for message in claimed] == list(range(200))
    assert queue.send_many([]) == []


@pytest.mark.req("R7.2")
def test_claiming_none_claims_none(queue: Queue) -> None:
    queue.send()
    assert queue.claim(0, worker="w") == []
    assert queue.claim(-3, worker="w") == []
    assert len(queue.claim(3, worker="w")) == 1


@pytest.mark.req("R7.2")
def test_ack_finishes_the_message_once(engine: Engine, queue: Queue) -> None:
    queue.send()
    message = claim_one(queue)
    assert message.ack() is True
    assert message.ack() is False
    assert message.retry() is False
    row = engine.get_job(message.id)
    assert row is not None
    assert row.state == "succeeded"


@pytest.mark.req("R7.2", "R5.1")
def test_retry_follows_the_curve_or_the_delay_until_the_last_attempt(
    engine: Engine, clock: Clock, queue: Queue
) -> None:
    queue.send()
    message = claim_one(queue)
    assert message.retry("no answer") is True
    row = engine.get_job(message.id)
    assert row is not None
    assert (row.state, row.run_at, row.error) == ("scheduled", START + 5 * SECOND, "no answer")
    clock.advance(5)
    assert claim_one(queue).retry(delay=timedelta(0)) is True
    message = claim_one(queue)
    assert message.attempt == 3
    assert message.retry("still none") is True
    row = engine.get_job(message.id)
    assert row is not None
    assert (row.state, row.reason, row.error) == ("dead", "handler_failed", "still none")


@pytest.mark.req("R7.2")
def test_fail_ends_it_whatever_attempts_are_left(engine: Engine, queue: Queue) -> None:
    queue.send()
    message = claim_one(queue)
    assert message.fail("no such address") is True
    assert message.fail("no such address") is False
    row = engine.get_job(message.id)
    assert row is not None
    assert (row.state, row.error, row.attempt) == ("dead", "no such address", 1)


@pytest.mark.req("R7.2", "R5.5")
def test_of_an_exception_the_type_and_place_are_stored(engine: Engine, queue: Queue) -> None:
    queue.send({"password": "hunter2"})
    message = claim_one(queue)
    try:
        raise ValueError("hunter2")
    except ValueError as error:
        message.fail(error)
    row = engine.get_job(message.id)
    assert row is not None
    assert row.error is not None
    assert "ValueError" in row.error
    assert "hunter2" not in row.error


@pytest.mark.req("R7.2")
def test_a_heartbeat_gives_the_row_s_own_visibility(clock: Clock, queue: Queue) -> None:
    queue.send()
    message = claim_one(queue)
    clock.advance(299)
    assert message.heartbeat() is True
    clock.advance(299)
    assert queue.claim(1, worker="other") == []
    clock.advance(1)
    assert message.heartbeat() is False


@pytest.mark.req("R7.2")
def test_a_heartbeat_gives_the_lease_that_was_asked_for(clock: Clock, queue: Queue) -> None:
    queue.send()
    message = claim_one(queue, lease=10 * SECOND)
    assert message.lease_until == clock.now + 10 * SECOND
    clock.advance(9)
    assert message.heartbeat() is True
    clock.advance(9)
    assert message.heartbeat() is True
    clock.advance(10)
    assert message.heartbeat() is False


@pytest.mark.req("R7.2", "R4.4")
def test_a_lost_claim_changes_nothing(engine: Engine, clock: Clock, queue: Queue) -> None:
    queue.send()
    old = claim_one(queue, lease=SECOND)
    clock.advance(1)
    new = claim_one(queue)
    assert new.token > old.token
    assert old.ack() is False
    assert old.retry("x") is False
    assert old.fail("x") is False
    assert old.heartbeat() is False
    row = engine.get_job(new.id)
    assert row is not None
    assert (row.state, row.token, row.error) == ("running", new.token, None)


@pytest.mark.req("R7.3")
def test_an_expired_message_is_never_delivered(engine: Engine, clock: Clock, queue: Queue) -> None:
    waiting = queue.send(expires=10 * SECOND)
    lapsed = queue.send(expires=10 * SECOND)
    (first, second) = queue.claim(2, worker="w", lease=5 * SECOND)
    assert [first.id, second.id] == [waiting, lapsed]
    assert first.retry(delay=timedelta(0)) is True
    clock.advance(10)
    assert queue.claim(2, worker="w") == []
    engine.sweep()
    for id in (waiting, lapsed):
        row = engine.get_job(id)
        assert row is not None
        assert (row.state, row.reason) == ("dead", "expired")


@pytest.mark.req("R7.2")
@pytest.mark.parametrize(
    "options",
    [
        {"expires": timedelta(0)},
        {"expires": -SECOND},
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"delay": timedelta(days=36_501)},
    ],
)
def test_wrong_options_are_refused(engine: Engine, queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        queue.send(**options)
    assert engine.jobs() == []
