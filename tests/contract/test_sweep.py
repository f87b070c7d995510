"""Sweep: what no claim may touch is moved out of the way by itself (R4.6, R5.4, R5.7)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from engines import MICROSECOND, START, Clock, Raw
from samples import (
    LEASE,
    RECEIPT,
    RECEIPT_SCHEMA,
    TARGET,
    claim,
    claim_one,
    declaration,
    fingerprint,
    register,
    running,
    state,
)

from dever_sql.engine import Engine, JobRow

BLOCK_AFTER = timedelta(minutes=10)
DAY = timedelta(days=1)
FOREVER = timedelta(days=36_500)


def sweep(engine: Engine, n: int = 1000) -> Counter[str]:
    """Sweeps until a whole round finds nothing more."""
    total: Counter[str] = Counter()
    idle = 0
    for _ in range(1000):
        found = engine.sweep(n)
        assert all(rows > 0 for rows in found.values())
        total += Counter(found)
        idle = 0 if found else idle + 1
        if idle == 3:
            return total
    raise AssertionError("sweep never came to an end")


def _row(engine: Engine, id: int) -> JobRow:
    row = engine.get_job(id)
    assert row is not None
    return row


@pytest.mark.req("R4.6")
def test_nothing_to_do_is_nothing(engine: Engine) -> None:
    assert engine.sweep() == {}


@pytest.mark.req("R4.6")
def test_exhausted_exactly_at_the_end_of_the_last_lease(engine: Engine, clock: Clock) -> None:
    job = running(engine, retry=1)
    clock.set(job.lease_until - MICROSECOND)
    assert sweep(engine) == {}
    assert state(engine, job.id) == "running"
    clock.set(job.lease_until)
    assert sweep(engine) == {"exhausted": 1}
    row = _row(engine, job.id)
    assert (row.state, row.reason, row.finished_at) == ("dead", "attempts_exhausted", clock.now)


@pytest.mark.req("R4.6", "R4.4")
def test_late_result_after_exhaustion_changes_nothing(engine: Engine, clock: Clock) -> None:
    job = running(engine, retry=1)
    clock.set(job.lease_until)
    sweep(engine)
    assert engine.complete([job.id], [job.token])[0].ok is False
    assert state(engine, job.id) == "dead"


@pytest.mark.req("R4.6")
def test_lapsed_lease_with_attempts_left_is_left_alone(engine: Engine, clock: Clock) -> None:
    job = running(engine, retry=2)
    clock.set(job.lease_until)
    assert sweep(engine) == {}
    assert claim_one(engine, register(engine, declaration(retry=2))).attempt == 2


@pytest.mark.req("R4.6")
def test_many_exhausted_jobs_are_moved_in_bounded_passes(engine: Engine, clock: Clock) -> None:
    contracts = register(engine, declaration(retry=1))
    engine.enqueue_many(TARGET, [f"k{i}" for i in range(120)])
    claim(engine, contracts, n=120, expect=120)
    clock.advance(LEASE)
    assert sum(engine.sweep(10).values()) <= 100
    sweep(engine, 10)
    assert len(engine.jobs(state="dead", limit=200)) == 120


@pytest.mark.req("R7.3")
def test_message_expires_exactly_at_its_instant(engine: Engine, clock: Clock) -> None:
    id = engine.send("mail", "1", expires=timedelta(seconds=30))
    assert _row(engine, id).expires_at == START + timedelta(seconds=30)
    clock.advance(timedelta(seconds=30) - MICROSECOND)
    assert sweep(engine) == {}
    clock.advance(MICROSECOND)
    assert claim(engine, None, queue="mail") == []
    assert sweep(engine) == {"expired": 1}
    row = _row(engine, id)
    assert (row.state, row.reason, row.attempt) == ("dead", "expired", 0)


@pytest.mark.req("R7.3")
def test_message_is_claimable_until_it_expires(engine: Engine, clock: Clock) -> None:
    engine.send("mail", "1", expires=timedelta(seconds=30))
    clock.advance(timedelta(seconds=30) - MICROSECOND)
    claim_one(engine, None, queue="mail")


@pytest.mark.req("R7.3")
def test_claimed_message_may_finish_after_it_expired(engine: Engine, clock: Clock) -> None:
    engine.send("mail", "1", expires=timedelta(seconds=30))
    job = claim_one(engine, None, queue="mail")
    clock.advance(31)
    assert sweep(engine) == {}
    assert engine.complete([job.id], [job.token])[0].ok


@pytest.mark.req("R7.3")
def test_lapsed_claim_of_an_expired_message_is_dead(engine: Engine, clock: Clock) -> None:
    id = engine.send("mail", "1", expires=timedelta(seconds=30))
    claim_one(engine, None, queue="mail")
    clock.advance(LEASE)
    assert claim(engine, None, queue="mail") == []
    assert sweep(engine) == {"expired": 1}
    row = _row(engine, id)
    assert (row.state, row.reason, row.attempt) == ("dead", "expired", 1)


@pytest.mark.req("R7.3")
def test_retried_message_expires_while_it_waits(engine: Engine, clock: Clock) -> None:
    id = engine.send("mail", "1", expires=timedelta(seconds=30))
    job = claim_one(engine, None, queue="mail")
    engine.retry([job.id], [job.token], ["x"], None, [timedelta(seconds=60)])
    clock.advance(60)
    assert claim(engine, None, queue="mail") == []
    sweep(engine)
    assert _row(engine, id).reason == "expired"


# Blocking what nobody can run


@pytest.mark.req("R5.4")
def test_due_job_that_nobody_runs_is_blocked_after_the_queues_time(
    engine: Engine, clock: Clock
) -> None:
    register(engine, worker=None)
    done = engine.enqueue(TARGET, "k")
    clock.set(START + BLOCK_AFTER - MICROSECOND)
    assert sweep(engine) == {}
    assert state(engine, done.id) == "ready"
    clock.set(START + BLOCK_AFTER)
    assert sweep(engine) == {"blocked": 1}
    row = _row(engine, done.id)
    assert (row.state, row.reason, row.run_at) == ("blocked", "unknown_target", START)


@pytest.mark.req("R5.4")
def test_block_after_is_per_queue(engine: Engine, clock: Clock) -> None:
    engine.configure_queue("slow", block_after=timedelta(hours=1))
    register(
        engine,
        declaration("a.job.one", queue="slow"),
        declaration("a.job.two", queue="default"),
        worker=None,
    )
    slow, fast = engine.enqueue("a.job.one", "k"), engine.enqueue("a.job.two", "k")
    clock.advance(BLOCK_AFTER)
    sweep(engine)
    assert (state(engine, slow.id), state(engine, fast.id)) == ("ready", "blocked")
    clock.set(START + timedelta(hours=1))
    sweep(engine)
    assert state(engine, slow.id) == "blocked"


@pytest.mark.req("R5.4")
def test_time_counts_from_the_end_of_the_last_worker(engine: Engine, clock: Clock) -> None:
    register(engine, alive=timedelta(hours=1))
    done = engine.enqueue(TARGET, "k")
    clock.set(START + timedelta(hours=1) + BLOCK_AFTER - MICROSECOND)
    assert sweep(engine)["blocked"] == 0
    clock.advance(MICROSECOND)
    sweep(engine)
    assert state(engine, done.id) == "blocked"


@pytest.mark.req("R5.4")
def test_live_worker_keeps_its_jobs_pending_for_ever(engine: Engine, clock: Clock) -> None:
    register(engine, alive=timedelta(days=9))
    done = engine.enqueue(TARGET, "k")
    clock.advance(timedelta(days=8))
    assert sweep(engine) == {}
    assert state(engine, done.id) == "ready"


@pytest.mark.req("R5.4")
def test_job_that_is_not_due_is_not_blocked(engine: Engine, clock: Clock) -> None:
    register(engine, worker=None)
    done = engine.enqueue(TARGET, "k", None, START + DAY)
    clock.advance(timedelta(hours=23))
    assert sweep(engine) == {}
    clock.set(START + DAY)
    sweep(engine)
    assert state(engine, done.id) == "blocked"


@pytest.mark.req("R5.4")
def test_other_schema_of_a_live_target_is_a_schema_mismatch(engine: Engine, clock: Clock) -> None:
    register(engine, declaration(schema=RECEIPT_SCHEMA), worker=None)
    done = engine.enqueue(TARGET, "k", RECEIPT)
    register(engine, declaration(), worker="new")
    clock.advance(BLOCK_AFTER)
    sweep(engine)
    assert _row(engine, done.id).reason == "schema_mismatch"


@pytest.mark.req("R5.4")
def test_api_process_is_not_a_worker(engine: Engine, clock: Clock) -> None:
    register(engine, worker=None)
    done = engine.enqueue(TARGET, "k")
    clock.advance(BLOCK_AFTER - timedelta(seconds=1))
    register(engine, worker=None)
    clock.advance(1)
    sweep(engine)
    assert state(engine, done.id) == "blocked"


@pytest.mark.req("R5.4")
def test_paused_queue_blocks_nothing(engine: Engine, clock: Clock) -> None:
    register(engine, worker=None)
    done = engine.enqueue(TARGET, "k")
    engine.pause_queue("default")
    clock.advance(DAY)
    assert sweep(engine) == {}
    engine.resume_queue("default")
    sweep(engine)
    assert state(engine, done.id) == "blocked"


@pytest.mark.req("R5.4")
def test_running_job_is_never_blocked(engine: Engine, clock: Clock) -> None:
    contracts = register(engine, alive=timedelta(seconds=1))
    engine.enqueue(TARGET, "k")
    job = claim_one(engine, contracts, lease=DAY)
    clock.advance(timedelta(hours=23))
    assert sweep(engine)["blocked"] == 0
    assert engine.complete([job.id], [job.token])[0].ok


@pytest.mark.req("R5.4")
def test_messages_are_never_blocked(engine: Engine, clock: Clock) -> None:
    id = engine.send("mail", "1")
    clock.advance(timedelta(days=400))
    assert sweep(engine) == {}
    assert state(engine, id) == "ready"


@pytest.mark.req("R5.4")
@pytest.mark.parametrize("fault", ["unknown_target", "schema_mismatch"])
def test_blocked_job_comes_back_with_a_worker_that_runs_it(
    engine: Engine, clock: Clock, fault: str
) -> None:
    register(engine, worker=None)
    done = engine.enqueue(TARGET, "k")
    if fault == "schema_mismatch":
        register(engine, declaration(schema=RECEIPT_SCHEMA), worker="other")
    clock.advance(BLOCK_AFTER)
    sweep(engine)
    assert _row(engine, done.id).reason == fault
    contracts = register(engine, worker="w1")
    assert sweep(engine) == {"unblocked": 1}
    row = _row(engine, done.id)
    assert (row.state, row.run_at, row.attempt) == ("ready", START, 0)
    assert claim_one(engine, contracts).id == done.id


@pytest.mark.req("R5.4")
@pytest.mark.parametrize("reason", ["unknown_target", "schema_mismatch"])
def test_job_that_a_worker_blocked_comes_back_too(
    engine: Engine, clock: Clock, reason: str
) -> None:
    job = running(engine)
    engine.block([job.id], [job.token], [reason])
    assert sweep(engine) == {"unblocked": 1}
    assert state(engine, job.id) == "ready"


@pytest.mark.req("R5.3", "R5.4")
@pytest.mark.parametrize("reason", ["invalid_payload", "invalid_policy"])
def test_broken_jobs_stay_blocked(engine: Engine, clock: Clock, reason: str) -> None:
    job = running(engine)
    engine.block([job.id], [job.token], [reason])
    clock.advance(DAY)
    register(engine, worker="w9")
    assert sweep(engine)["unblocked"] == 0
    assert state(engine, job.id) == "blocked"


@pytest.mark.req("R5.4")
def test_old_worker_leaves_new_jobs_to_new_workers(engine: Engine, clock: Clock) -> None:
    """A rolling deploy: both schemas are served as long as somebody runs them."""
    old_one, new_one = declaration(), declaration(schema=RECEIPT_SCHEMA)
    (old,) = register(engine, old_one, worker="old")
    first = engine.enqueue(TARGET, "first")
    (new,) = register(engine, new_one, worker="new")
    second = engine.enqueue(TARGET, "second", RECEIPT)
    assert _row(engine, second.id).fingerprint == fingerprint(RECEIPT_SCHEMA)
    assert [job.id for job in claim(engine, [old], worker="old", expect=1)] == [first.id]
    assert [job.id for job in claim(engine, [new], worker="new", expect=1)] == [second.id]


@pytest.mark.req("R5.4")
def test_mixed_causes_in_one_sweep(engine: Engine, clock: Clock) -> None:
    """C14: the good ones are recovered, the bad ones set aside, none stands in another's way."""
    contracts = register(engine, declaration("a.job.good", retry=1))
    register(engine, declaration("a.job.lost"), worker=None)
    engine.enqueue_many("a.job.good", [f"k{i}" for i in range(500)])
    lost = engine.enqueue("a.job.lost", "k")
    assert len(claim(engine, contracts, n=500, expect=500)) == 500
    clock.advance(BLOCK_AFTER)
    assert sweep(engine, 100) == {"exhausted": 500, "blocked": 1}
    assert _row(engine, lost.id).reason == "unknown_target"


# Retention


@pytest.mark.req("R5.7")
@pytest.mark.parametrize(
    ("outcome", "kept"),
    [("succeeded", DAY), ("dead", timedelta(days=30)), ("cancelled", DAY)],
)
def test_default_retention(engine: Engine, clock: Clock, outcome: str, kept: timedelta) -> None:
    job = running(engine)
    _finish(engine, job.id, job.token, outcome)
    clock.set(START + kept - MICROSECOND)
    assert sweep(engine)["pruned"] == 0
    clock.set(START + kept + MICROSECOND)
    assert sweep(engine)["pruned"] == 1
    assert engine.get_job(job.id) is None


def _finish(engine: Engine, id: int, token: int, outcome: str) -> None:
    if outcome == "succeeded":
        assert engine.complete([id], [token])[0].ok
    elif outcome == "dead":
        assert engine.bury([id], [token], ["x"])[0].ok
    else:
        assert engine.cancel([id])[0].outcome == "cancelled"


@pytest.mark.req("R5.7")
@pytest.mark.parametrize("outcome", ["succeeded", "dead", "cancelled"])
def test_retention_of_zero_stores_nothing(engine: Engine, raw: Raw, outcome: str) -> None:
    job = running(engine)
    zero = timedelta(0)
    engine.configure_queue("default", keep_succeeded=zero, keep_dead=zero, keep_cancelled=zero)
    _finish(engine, job.id, job.token, outcome)
    assert (raw.count("job"), raw.count("finished")) == (0, 0)
    assert engine.get_job(job.id) is None


@pytest.mark.req("R5.7")
@pytest.mark.parametrize("outcome", ["succeeded", "dead", "cancelled"])
def test_retention_for_ever_is_never_pruned(engine: Engine, clock: Clock, outcome: str) -> None:
    job = running(engine)
    engine.configure_queue(
        "default", keep_succeeded=FOREVER, keep_dead=FOREVER, keep_cancelled=FOREVER
    )
    _finish(engine, job.id, job.token, outcome)
    clock.advance(timedelta(days=200 * 365))
    assert sweep(engine)["pruned"] == 0
    assert engine.get_job(job.id) is not None


@pytest.mark.req("R5.7")
def test_pruning_is_bounded_a_pass(engine: Engine, clock: Clock, raw: Raw) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, [f"k{i}" for i in range(50)])
    jobs = claim(engine, contracts, n=50, expect=50)
    engine.complete([j.id for j in jobs], [j.token for j in jobs])
    clock.advance(DAY + MICROSECOND)
    engine.sweep(10)
    assert raw.count("finished") >= 40
    sweep(engine, 10)
    assert raw.count("finished") == 0


@pytest.mark.req("R5.7")
def test_retention_is_per_queue(engine: Engine, clock: Clock) -> None:
    engine.configure_queue("brief", keep_succeeded=timedelta(seconds=1))
    register(engine)
    ids = [engine.send("brief", "1"), engine.send("default", "1")]
    for queue in ("brief", "default"):
        job = claim_one(engine, None, queue=queue)
        engine.complete([job.id], [job.token])
    clock.advance(timedelta(seconds=1) + MICROSECOND)
    sweep(engine)
    assert [engine.get_job(id) is None for id in ids] == [True, False]


@pytest.mark.req("R5.4")
def test_lapsed_workers_are_forgotten_in_the_end(engine: Engine, clock: Clock) -> None:
    register(engine, worker="gone", alive=timedelta(seconds=5))
    register(engine, worker="here", alive=timedelta(days=4000))
    clock.advance(timedelta(days=30))
    sweep(engine)
    assert [row.worker for row in engine.workers()] == ["here"]
