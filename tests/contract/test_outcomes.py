"""What becomes of an attempt: retry with backoff, dead, blocked, released (R5)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from engines import MICROSECOND, START, Clock, Raw
from samples import LEASE, TARGET, claim, claim_one, declaration, register, running, state

from dever_sql.engine import Engine, JobRow
from dever_sql.errors import InvalidArgument


def _row(engine: Engine, id: int) -> JobRow:
    row = engine.get_job(id)
    assert row is not None
    return row


@pytest.mark.req("R4.2")
def test_complete_succeeds(engine: Engine, clock: Clock, raw: Raw) -> None:
    job = running(engine)
    clock.advance(5)
    assert engine.complete([job.id], [job.token])[0].ok
    row = _row(engine, job.id)
    assert (row.state, row.attempt, row.reason, row.error) == ("succeeded", 1, None, None)
    assert (row.finished_at, row.lease_until) == (START + timedelta(seconds=5), None)
    assert raw.count("job") == 0


@pytest.mark.req("R4.2")
def test_finished_job_keeps_what_it_was(engine: Engine, clock: Clock) -> None:
    job = running(engine, "k")
    before = _row(engine, job.id)
    clock.advance(5)
    engine.complete([job.id], [job.token])
    after = _row(engine, job.id)
    for column in (
        *("id", "queue", "target", "key", "attempt", "max_attempts", "run_at", "created_at"),
        *("worker", "token", "fingerprint", "expires_at", "payload"),
    ):
        assert getattr(after, column) == getattr(before, column), column


def _backoff(base_ms: int, max_ms: int, attempt: int) -> timedelta:
    return timedelta(milliseconds=min(base_ms * 2 ** (attempt - 1), max_ms))


@pytest.mark.req("R5.1")
@pytest.mark.parametrize("attempt", [1, 2, 3, 9, 10, 31, 32, 33, 62, 63, 64, 65, 99])
@pytest.mark.parametrize(
    ("base_ms", "max_ms"), [(1_000, 300_000), (1, 86_400_000), (86_400_000, 86_400_000), (7, 7_001)]
)
def test_backoff_is_exact_at_every_attempt(
    engine: Engine, raw: Raw, attempt: int, base_ms: int, max_ms: int
) -> None:
    contracts = register(
        engine, declaration(retry=100, backoff_base_ms=base_ms, backoff_max_ms=max_ms)
    )
    done = engine.enqueue(TARGET, "k")
    raw.change_job(done.id, attempt=attempt - 1)
    job = claim_one(engine, contracts)
    assert job.attempt == attempt
    assert engine.retry([job.id], [job.token], ["handler_failed"])[0].outcome == "retried"
    row = _row(engine, job.id)
    assert row.run_at - START == _backoff(base_ms, max_ms, attempt)
    assert (row.state, row.attempt, row.reason, row.lease_until) == (
        "scheduled",
        attempt,
        "handler_failed",
        None,
    )


@pytest.mark.req("R5.1")
def test_backoff_does_not_overflow_at_the_largest_attempts(engine: Engine, raw: Raw) -> None:
    largest = 2**31 - 1
    contracts = register(engine, declaration(backoff_base_ms=1, backoff_max_ms=86_400_000))
    done = engine.enqueue(TARGET, "k")
    raw.change_job(done.id, attempt=largest - 2, max_attempts=largest)
    job = claim_one(engine, contracts)
    assert engine.retry([job.id], [job.token], ["handler_failed"])[0].outcome == "retried"
    assert _row(engine, job.id).run_at == START + timedelta(days=1)
    raw.change_job(done.id, run_at=START)
    job = claim_one(engine, contracts)
    assert job.attempt == largest
    assert engine.retry([job.id], [job.token], ["handler_failed"])[0].outcome == "dead"
    assert _row(engine, job.id).attempt == largest


@pytest.mark.req("R5.1")
def test_retry_is_claimable_exactly_when_its_backoff_ends(engine: Engine, clock: Clock) -> None:
    job = running(engine)
    engine.retry([job.id], [job.token], ["handler_failed"])
    contracts = register(engine)
    clock.advance(timedelta(seconds=1) - MICROSECOND)
    assert claim(engine, contracts) == []
    clock.advance(MICROSECOND)
    again = claim_one(engine, contracts)
    assert (again.attempt, again.token > job.token) == (2, True)


@pytest.mark.req("R5.1")
def test_failure_at_the_last_attempt_is_dead(engine: Engine) -> None:
    job = running(engine, retry=1)
    verdict = engine.retry([job.id], [job.token], ["handler_timeout"], ["boom at x.py:1"])[0]
    row = _row(engine, job.id)
    assert verdict.outcome == "dead"
    assert (row.state, row.reason, row.error) == ("dead", "handler_timeout", "boom at x.py:1")


@pytest.mark.req("R5.1")
def test_attempts_over_a_whole_life(engine: Engine, clock: Clock) -> None:
    contracts = register(engine, declaration(retry=4, backoff_base_ms=1_000, backoff_max_ms=3_000))
    done = engine.enqueue(TARGET, "k")
    waits: list[timedelta] = []
    for attempt in (1, 2, 3, 4):
        job = claim_one(engine, contracts)
        assert job.attempt == attempt
        outcome = engine.retry([job.id], [job.token], ["handler_failed"])[0].outcome
        assert outcome == ("dead" if attempt == 4 else "retried")
        if attempt < 4:
            waits.append(_row(engine, done.id).run_at - clock.now)
            clock.set(_row(engine, done.id).run_at)
    assert waits == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=3)]


@pytest.mark.req("R5.1")
def test_jitter_only_shortens_and_stays_within_its_share(engine: Engine) -> None:
    contracts = register(
        engine,
        declaration(backoff_base_ms=10_000, backoff_max_ms=10_000, backoff_jitter=0.5),
    )
    engine.enqueue_many(TARGET, [f"k{i}" for i in range(50)])
    jobs = claim(engine, contracts, n=50, expect=50)
    engine.retry([j.id for j in jobs], [j.token for j in jobs], ["handler_failed"] * 50)
    waits = [_row(engine, j.id).run_at - START for j in jobs]
    assert all(timedelta(seconds=5) <= wait <= timedelta(seconds=10) for wait in waits)
    assert len(set(waits)) > 10


@pytest.mark.req("R5.8")
def test_retry_after_a_given_delay(engine: Engine) -> None:
    job = running(engine)
    delay = timedelta(minutes=7, microseconds=1)
    engine.retry([job.id], [job.token], ["handler_failed"], None, [delay])
    assert _row(engine, job.id).run_at == START + delay


@pytest.mark.req("R5.8", "R7.2")
@pytest.mark.parametrize("delay", [timedelta(0), timedelta(seconds=-5)])
def test_retry_with_no_delay_is_due_at_once(engine: Engine, delay: timedelta) -> None:
    job = running(engine)
    assert engine.retry([job.id], [job.token], ["x"], None, [delay])[0].outcome == "retried"
    row = _row(engine, job.id)
    assert (row.state, row.run_at) == ("ready", START)
    claim_one(engine, register(engine))


@pytest.mark.req("R5.8")
def test_delay_does_not_go_beyond_the_attempts(engine: Engine) -> None:
    job = running(engine, retry=1)
    delays = [timedelta(seconds=1)]
    assert engine.retry([job.id], [job.token], ["x"], None, delays)[0].outcome == "dead"


@pytest.mark.req("R5.8")
def test_batch_of_retries_with_own_delays_and_errors(engine: Engine) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, ["a", "b"])
    a, b = claim(engine, contracts, expect=2)
    engine.retry(
        [a.id, b.id],
        [a.token, b.token],
        ["handler_failed", "handler_timeout"],
        [None, "late"],
        [timedelta(seconds=9), None],
    )
    first, second = _row(engine, a.id), _row(engine, b.id)
    assert (first.run_at - START, first.reason, first.error) == (
        timedelta(seconds=9),
        "handler_failed",
        None,
    )
    assert (second.run_at - START, second.reason, second.error) == (
        timedelta(seconds=1),
        "handler_timeout",
        "late",
    )


@pytest.mark.req("R5.8")
def test_too_long_a_delay_is_refused(engine: Engine) -> None:
    job = running(engine)
    with pytest.raises(InvalidArgument):
        engine.retry([job.id], [job.token], ["x"], None, [timedelta(days=36_501)])
    assert state(engine, job.id) == "running"


@pytest.mark.req("R5.8")
def test_bury_gives_up_with_a_reason_of_its_own(engine: Engine) -> None:
    job = running(engine)
    assert engine.bury([job.id], [job.token], ["card was refused"], ["PaymentError"])[0].ok
    row = _row(engine, job.id)
    assert (row.state, row.reason, row.error) == ("dead", "card was refused", "PaymentError")
    assert row.attempt == 1


@pytest.mark.req("R5.5", "R5.6")
@pytest.mark.parametrize("end", ["bury", "release at the last attempt", "cancel"])
def test_an_end_without_an_error_keeps_the_one_of_the_attempt_before(
    engine: Engine, end: str
) -> None:
    job = running(engine, retry=2)
    engine.retry([job.id], [job.token], ["handler_failed"], ["boom at x.py:1"], [timedelta(0)])
    if end == "cancel":
        engine.cancel([job.id])
    else:
        again = claim_one(engine, register(engine, declaration(retry=2)))
        ids, tokens = [again.id], [again.token]
        if end == "bury":
            engine.bury(ids, tokens, ["no use"])
        else:
            engine.release(ids, tokens)
    assert _row(engine, job.id).error == "boom at x.py:1"


@pytest.mark.req("R5.3")
@pytest.mark.parametrize(
    "reason", ["unknown_target", "schema_mismatch", "invalid_payload", "invalid_policy"]
)
def test_block_keeps_the_job_diagnosable(engine: Engine, clock: Clock, reason: str) -> None:
    job = running(engine)
    clock.advance(1)
    assert engine.block([job.id], [job.token], [reason], ["payload.a is missing"])[0].ok
    row = _row(engine, job.id)
    assert (row.state, row.reason, row.error) == ("blocked", reason, "payload.a is missing")
    assert (row.run_at, row.finished_at, row.lease_until) == (START, None, None)
    clock.advance(timedelta(days=3000))
    assert claim(engine, register(engine)) == []


@pytest.mark.req("R8.4")
def test_release_is_claimable_at_once_with_the_attempt_used(engine: Engine) -> None:
    job = running(engine)
    assert engine.release([job.id], [job.token])[0].ok
    row = _row(engine, job.id)
    assert (row.state, row.attempt, row.run_at, row.lease_until) == ("ready", 1, START, None)
    assert row.reason != "handler_failed"
    assert claim_one(engine, register(engine)).attempt == 2


@pytest.mark.req("R8.4")
def test_release_at_the_last_attempt_is_dead(engine: Engine) -> None:
    job = running(engine, retry=1)
    assert engine.release([job.id], [job.token])[0].ok
    row = _row(engine, job.id)
    assert (row.state, row.reason) == ("dead", "interrupted")


# Operators


@pytest.mark.req("R5.6")
def test_cancel_of_a_pending_job(engine: Engine) -> None:
    register(engine)
    done = engine.enqueue(TARGET, "k")
    assert [(o.id, o.outcome) for o in engine.cancel([done.id])] == [(done.id, "cancelled")]
    row = _row(engine, done.id)
    assert (row.state, row.reason, row.finished_at) == ("cancelled", "cancelled", START)


@pytest.mark.req("R5.6", "R4.4")
def test_cancel_of_a_running_job_takes_its_lease(engine: Engine) -> None:
    job = running(engine)
    assert engine.cancel([job.id])[0].outcome == "cancelled"
    assert engine.complete([job.id], [job.token])[0].ok is False
    assert engine.renew([job.id], [job.token], LEASE)[0].ok is False
    assert state(engine, job.id) == "cancelled"


@pytest.mark.req("R5.6")
def test_cancel_of_a_blocked_job(engine: Engine) -> None:
    job = running(engine)
    engine.block([job.id], [job.token], ["invalid_payload"])
    assert engine.cancel([job.id])[0].outcome == "cancelled"
    row = _row(engine, job.id)
    assert (row.state, row.run_at) == ("cancelled", START)


@pytest.mark.req("R5.6")
def test_cancel_answers_per_row(engine: Engine) -> None:
    job = running(engine)
    engine.complete([job.id], [job.token])
    fresh = engine.enqueue(TARGET, "fresh")
    outcomes = {o.id: o.outcome for o in engine.cancel([job.id, 999_999_999, fresh.id, fresh.id])}
    assert outcomes == {job.id: "finished", 999_999_999: "not_found", fresh.id: "cancelled"}
    assert engine.cancel([fresh.id])[0].outcome == "finished"
    assert engine.cancel([]) == []


@pytest.mark.req("R5.6")
def test_redrive_of_a_dead_job(engine: Engine, clock: Clock) -> None:
    job = running(engine)
    engine.bury([job.id], [job.token], ["handler_failed"], ["E"])
    clock.advance(100)
    assert engine.redrive([job.id])[0].outcome == "pending"
    row = _row(engine, job.id)
    assert (row.state, row.attempt, row.run_at) == ("ready", 0, clock.now)
    assert (row.key, row.created_at, row.finished_at) == ("k", START, None)
    again = claim_one(engine, register(engine))
    assert (again.id, again.attempt, again.token > job.token) == (job.id, 1, True)


@pytest.mark.req("R5.6")
def test_redrive_of_a_blocked_job(engine: Engine, clock: Clock) -> None:
    job = running(engine)
    engine.block([job.id], [job.token], ["invalid_payload"])
    clock.advance(100)
    assert engine.redrive([job.id])[0].outcome == "pending"
    row = _row(engine, job.id)
    assert (row.state, row.attempt, row.run_at) == ("ready", 0, clock.now)


@pytest.mark.req("R5.6")
def test_redrive_reports_a_key_in_use_and_goes_on(engine: Engine) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, ["a", "b"])
    a, b = claim(engine, contracts, expect=2)
    engine.bury([a.id, b.id], [a.token, b.token], ["x", "x"])
    taken = engine.enqueue(TARGET, "a")
    outcomes = {o.id: o.outcome for o in engine.redrive([a.id, b.id])}
    assert outcomes == {a.id: "key_in_use", b.id: "pending"}
    assert (state(engine, a.id), state(engine, b.id)) == ("dead", "ready")
    engine.cancel([taken.id])
    assert engine.redrive([a.id])[0].outcome == "pending"


@pytest.mark.req("R5.6")
def test_redrive_of_two_dead_jobs_with_one_key(engine: Engine) -> None:
    contracts = register(engine)
    ids = []
    for _ in range(2):
        engine.enqueue(TARGET, "k")
        job = claim_one(engine, contracts)
        engine.bury([job.id], [job.token], ["x"])
        ids.append(job.id)
    outcomes = sorted(o.outcome for o in engine.redrive(ids))
    assert outcomes == ["key_in_use", "pending"]


@pytest.mark.req("R5.6")
def test_redrive_of_anything_else_is_not_found(engine: Engine) -> None:
    job = running(engine)
    fresh = engine.enqueue(TARGET, "fresh")
    cancelled = engine.enqueue(TARGET, "cancelled")
    engine.cancel([cancelled.id])
    outcomes = {o.outcome for o in engine.redrive([job.id, fresh.id, cancelled.id, 999_999_999])}
    assert outcomes == {"not_found"}
    assert state(engine, job.id) == "running"


@pytest.mark.req("R5.6")
def test_drop_jobs(engine: Engine) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, ["dead", "blocked", "running", "ready"])
    dead, blocked, busy = claim(engine, contracts, n=3, expect=3)
    engine.bury([dead.id], [dead.token], ["x"])
    engine.block([blocked.id], [blocked.token], ["invalid_payload"])
    ready = engine.jobs(key="ready")[0]
    asked = [dead.id, blocked.id, busy.id, ready.id, 999_999_999]
    assert {o.id: o.outcome for o in engine.drop_jobs(asked)} == {
        dead.id: "dropped",
        blocked.id: "dropped",
        busy.id: "not_found",
        ready.id: "not_found",
        999_999_999: "not_found",
    }
    assert engine.get_job(dead.id) is None
    assert engine.get_job(blocked.id) is None
    assert engine.enqueue(TARGET, "blocked").created


@pytest.mark.req("R5.6")
def test_dead_jobs_are_listed_newest_first(engine: Engine) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, [f"k{i}" for i in range(5)])
    jobs = claim(engine, contracts, expect=5)
    engine.bury([j.id for j in jobs], [j.token for j in jobs], ["x"] * 5)
    engine.enqueue(TARGET, "other")
    ids = [row.id for row in engine.jobs(state="dead", limit=2)]
    assert ids == [jobs[4].id, jobs[3].id]
    assert [row.id for row in engine.jobs(state="dead", before=ids[-1])] == [
        jobs[2].id,
        jobs[1].id,
        jobs[0].id,
    ]
    assert [row.key for row in engine.jobs(key="k3")] == ["k3"]
    assert engine.jobs(target="nobody") == []


@pytest.mark.req("R5.2", "R4.4")
def test_bury_takes_the_reason_that_came_with_the_current_token(engine: Engine) -> None:
    engine.send("mail", "1")
    (message,) = engine.claim("mail", "w", 1)
    engine.bury(
        [message.id, message.id],
        [message.token - 1, message.token],
        ["stale", "current"],
        ["old", "new"],
    )
    row = engine.get_job(message.id)
    assert row is not None
    assert (row.reason, row.error) == ("current", "new")
