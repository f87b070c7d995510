"""Messages of a queue and the queue's settings (R7.2, R7.3)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from engines import MICROSECOND, START, Clock, Raw
from samples import TARGET, claim, claim_one, declaration, register

from dever_sql.engine import Engine, JobRow
from dever_sql.errors import InvalidArgument

SECOND = timedelta(seconds=1)


def _row(engine: Engine, id: int) -> JobRow:
    row = engine.get_job(id)
    assert row is not None
    return row


@pytest.mark.req("R7.2")
def test_defaults_are_stamped_when_sent(engine: Engine, clock: Clock) -> None:
    id = engine.send("mail", '{"a": 1}')
    row = _row(engine, id)
    assert (row.queue, row.target, row.key, row.fingerprint) == ("mail", None, None, None)
    assert (row.state, row.attempt, row.max_attempts) == ("ready", 0, 3)
    assert (row.run_at, row.expires_at) == (START, None)
    assert json.loads(row.payload or "") == {"a": 1}
    job = claim_one(engine, None, queue="mail", lease=None)
    assert job.lease_until == START + timedelta(seconds=300)
    waits = []
    for _ in range(2):
        engine.retry([job.id], [job.token], ["x"])
        waits.append(_row(engine, id).run_at - clock.now)
        clock.set(_row(engine, id).run_at)
        job = claim_one(engine, None, queue="mail")
    assert waits == [timedelta(seconds=5), timedelta(seconds=10)]
    assert engine.retry([job.id], [job.token], ["x"])[0].outcome == "dead"


@pytest.mark.req("R7.2")
def test_backoff_of_messages_doubles_up_to_an_hour(engine: Engine, raw: Raw) -> None:
    id = engine.send("mail", "1", max_attempts=100)
    raw.change_job(id, attempt=40)
    job = claim_one(engine, None, queue="mail")
    engine.retry([job.id], [job.token], ["x"])
    assert _row(engine, id).run_at == START + timedelta(hours=1)


@pytest.mark.req("R7.2")
def test_queue_settings_are_stamped_and_later_ones_do_not_reach_back(engine: Engine) -> None:
    engine.configure_queue(
        "mail",
        visibility=7 * SECOND,
        max_attempts=9,
        backoff_base=3 * SECOND,
        backoff_max=4 * SECOND,
    )
    first = engine.send("mail", "1")
    engine.configure_queue("mail", visibility=99 * SECOND, max_attempts=1)
    job = claim_one(engine, None, queue="mail", lease=None)
    assert (job.id, job.max_attempts, job.lease_until) == (first, 9, START + 7 * SECOND)
    engine.retry([job.id], [job.token], ["x"])
    assert _row(engine, first).run_at == START + 3 * SECOND
    assert _row(engine, engine.send("mail", "1")).max_attempts == 1


@pytest.mark.req("R7.2")
def test_delay_wins_over_run_at(engine: Engine) -> None:
    id = engine.send("mail", "1", delay=5 * SECOND, run_at=START + timedelta(days=9))
    assert _row(engine, id).run_at == START + 5 * SECOND
    id = engine.send("mail", "1", delay=timedelta(0), run_at=START + timedelta(days=9))
    assert _row(engine, id).state == "ready"


@pytest.mark.req("R7.2")
@pytest.mark.parametrize("delay", [timedelta(0), -SECOND, timedelta(days=-36_500)])
def test_delay_of_nothing_is_due_at_once(engine: Engine, delay: timedelta) -> None:
    row = _row(engine, engine.send("mail", "1", delay=delay))
    assert (row.state, row.run_at) == ("ready", START)


@pytest.mark.req("R7.2", "R3.3")
def test_message_is_claimable_exactly_from_its_delay(engine: Engine, clock: Clock) -> None:
    engine.send("mail", "1", delay=5 * SECOND)
    clock.advance(5 * SECOND - MICROSECOND)
    assert claim(engine, None, queue="mail") == []
    clock.advance(MICROSECOND)
    claim_one(engine, None, queue="mail")


@pytest.mark.req("R7.2")
def test_run_at(engine: Engine) -> None:
    row = _row(engine, engine.send("mail", "1", run_at=START + SECOND))
    assert (row.state, row.run_at) == ("scheduled", START + SECOND)


@pytest.mark.req("R7.2", "R7.3")
@pytest.mark.parametrize("expires", [timedelta(0), -SECOND, timedelta(days=36_501)])
def test_bad_expiry_is_refused(engine: Engine, raw: Raw, expires: timedelta) -> None:
    with pytest.raises(InvalidArgument):
        engine.send("mail", "1", expires=expires)
    assert raw.count("job") == 0


@pytest.mark.req("R7.2")
@pytest.mark.parametrize("max_attempts", [0, -1, 2**31, 2**63, -(2**31) - 1])
def test_bad_max_attempts_is_refused(engine: Engine, raw: Raw, max_attempts: int) -> None:
    with pytest.raises(InvalidArgument):
        engine.send("mail", "1", max_attempts=max_attempts)
    assert raw.count("job") == 0


@pytest.mark.req("R7.2")
def test_too_long_a_delay_is_refused(engine: Engine, raw: Raw) -> None:
    with pytest.raises(InvalidArgument):
        engine.send("mail", "1", delay=timedelta(days=36_501))
    assert raw.count("job") == 0


@pytest.mark.req("R7.2")
def test_key_is_unique_among_the_queues_unfinished_messages(engine: Engine) -> None:
    first = engine.send("mail", '"a"', "k")
    assert engine.send("mail", '"b"', "k") == first
    assert engine.send("post", '"c"', "k") != first
    assert _row(engine, first).payload == '"a"'
    job = claim_one(engine, None, queue="mail")
    assert engine.send("mail", '"d"', "k") == first
    engine.complete([job.id], [job.token])
    assert engine.send("mail", '"e"', "k") != first


@pytest.mark.req("R7.2")
def test_message_key_and_job_key_are_apart(engine: Engine) -> None:
    register(engine)
    job = engine.enqueue(TARGET, "k")
    assert engine.send("default", "1", "k") != job.id


@pytest.mark.req("R7.2", "R3.7")
def test_send_many(engine: Engine) -> None:
    ids = engine.send_many("mail", [f'"{i}"' for i in range(1000)])
    assert len(set(ids)) == 1000
    claimed = claim(engine, None, queue="mail", n=1000, expect=1000)
    assert [job.id for job in claimed] == sorted(ids)
    payloads = {job.id: job.payload for job in claimed}
    assert [payloads[id] for id in ids] == [f'"{i}"' for i in range(1000)]
    assert engine.send_many("mail", []) == []


@pytest.mark.req("R7.2")
def test_consumer_may_give_its_own_reason(engine: Engine) -> None:
    id = engine.send("mail", "1")
    job = claim_one(engine, None, queue="mail")
    engine.bury([job.id], [job.token], ["no such recipient, é😀"])
    assert _row(engine, id).reason == "no such recipient, é😀"


# Settings of a queue


@pytest.mark.req("R7.2", "R5.7")
def test_new_queue_shows_the_defaults(engine: Engine) -> None:
    row = engine.configure_queue("mail")
    assert (row.queue, row.paused, row.max_attempts) == ("mail", False, 3)
    assert (row.visibility, row.backoff_base, row.backoff_max) == (
        300 * SECOND,
        5 * SECOND,
        timedelta(hours=1),
    )
    assert (row.keep_succeeded, row.keep_dead, row.keep_cancelled, row.block_after) == (
        timedelta(days=1),
        timedelta(days=30),
        timedelta(days=1),
        timedelta(minutes=10),
    )


@pytest.mark.req("R7.2", "R5.7")
def test_configure_changes_what_is_given_and_leaves_the_rest(engine: Engine) -> None:
    engine.configure_queue("mail", visibility=9 * SECOND, keep_dead=timedelta(0))
    row = engine.configure_queue("mail", max_attempts=7)
    assert (row.visibility, row.max_attempts, row.keep_dead) == (9 * SECOND, 7, timedelta(0))
    assert row.keep_succeeded == timedelta(days=1)
    assert engine.queues() == [row]


@pytest.mark.req("R7.2")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("visibility", timedelta(0)),
        ("visibility", -SECOND),
        ("visibility", timedelta(days=36_501)),
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 2**31),
        ("backoff_base", timedelta(0)),
        ("backoff_max", timedelta(0)),
        ("backoff_base", timedelta(days=2)),
        ("keep_succeeded", -SECOND),
        ("keep_dead", -SECOND),
        ("keep_cancelled", timedelta(days=999_999)),
        ("block_after", timedelta(0)),
        ("block_after", -SECOND),
    ],
)
def test_bad_setting_is_refused_and_changes_nothing(
    engine: Engine, setting: str, value: object
) -> None:
    before = engine.configure_queue("mail", visibility=9 * SECOND)
    with pytest.raises(InvalidArgument):
        engine.configure_queue("mail", **{setting: value})  # type: ignore[arg-type]
    assert engine.queues() == [before]


@pytest.mark.req("R7.2")
def test_pause_and_resume_of_a_queue(engine: Engine) -> None:
    engine.send("mail", "1")
    assert engine.pause_queue("mail")
    assert engine.queues()[0].paused
    assert claim(engine, None, queue="mail") == []
    engine.send("mail", "2")
    assert engine.resume_queue("mail")
    assert len(claim(engine, None, queue="mail", expect=2)) == 2


@pytest.mark.req("R9.4")
def test_queue_counts(engine: Engine, clock: Clock) -> None:
    contracts = register(engine, declaration(queue="mail"))
    engine.enqueue_many(TARGET, [f"k{i}" for i in range(7)])
    engine.enqueue(TARGET, "later", None, START + timedelta(days=1))
    a, b, c, d = claim(engine, contracts, queue="mail", n=4, expect=4)
    engine.block([a.id], [a.token], ["invalid_payload"])
    engine.bury([b.id], [b.token], ["x"])
    engine.complete([c.id], [c.token])
    clock.advance(30)
    (row,) = engine.queues()
    assert (row.queue, row.ready, row.scheduled, row.running, row.blocked, row.dead) == (
        "mail",
        3,
        1,
        1,
        1,
        1,
    )
    assert row.exact
    assert row.oldest_ready_seconds == pytest.approx(30)
    assert d.attempt == 1
