"""Claim, lease and fencing (R4): who may act on a job, judged to the microsecond."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from engines import MICROSECOND, START, Clock, Raw
from samples import LEASE, TARGET, claim, claim_one, declaration, register, running, state

from dever_sql.engine import Claimed, Engine
from dever_sql.errors import InvalidArgument, InvalidName

# Every verb of a worker, reduced to "did it act".
VERBS: dict[str, Callable[[Engine, Claimed], bool | None]] = {
    "renew": lambda engine, job: engine.renew([job.id], [job.token], LEASE)[0].ok,
    "complete": lambda engine, job: engine.complete([job.id], [job.token])[0].ok,
    "retry": lambda engine, job: (
        engine.retry([job.id], [job.token], ["handler_failed"])[0].outcome != "lost"
    ),
    "bury": lambda engine, job: engine.bury([job.id], [job.token], ["handler_failed"])[0].ok,
    "block": lambda engine, job: engine.block([job.id], [job.token], ["invalid_payload"])[0].ok,
    "release": lambda engine, job: engine.release([job.id], [job.token])[0].ok,
}

each_verb = pytest.mark.parametrize("verb", VERBS)


@pytest.mark.req("R4.3")
def test_claim_counts_the_attempt(engine: Engine) -> None:
    contracts = register(engine)
    done = engine.enqueue(TARGET, "k")
    job = claim_one(engine, contracts, worker="w1")
    row = engine.get_job(done.id)
    assert (job.id, job.target, job.key, job.attempt, job.max_attempts) == (
        done.id,
        TARGET,
        "k",
        1,
        3,
    )
    assert (job.payload, job.run_at, job.lease_until) == ("null", START, START + LEASE)
    assert job.token > 0
    assert row is not None
    assert (row.state, row.attempt, row.token, row.worker, row.lease_until) == (
        "running",
        1,
        job.token,
        "w1",
        START + LEASE,
    )


@pytest.mark.req("R4.3", "R4.5")
def test_a_crashed_worker_has_used_its_attempt(engine: Engine, clock: Clock) -> None:
    contracts = register(engine)
    engine.enqueue(TARGET, "k")
    for attempt in (1, 2, 3):
        assert claim_one(engine, contracts).attempt == attempt
        clock.advance(LEASE)
    assert claim(engine, contracts) == []


@pytest.mark.req("R4.5")
def test_a_running_lease_is_claimed_again_exactly_at_its_end(engine: Engine, clock: Clock) -> None:
    contracts = register(engine)
    engine.enqueue(TARGET, "k")
    first = claim_one(engine, contracts, worker="w1")
    clock.set(START + LEASE - MICROSECOND)
    assert claim(engine, contracts, worker="w2") == []
    clock.set(START + LEASE)
    second = claim_one(engine, contracts, worker="w2")
    assert second.id == first.id
    assert second.token > first.token
    assert second.attempt == 2


@pytest.mark.req("R4.4")
@each_verb
def test_verb_acts_until_one_microsecond_before_the_lease_ends(
    engine: Engine, clock: Clock, verb: str
) -> None:
    job = running(engine)
    clock.set(job.lease_until - MICROSECOND)
    assert VERBS[verb](engine, job) is True


@pytest.mark.req("R4.4")
@each_verb
def test_verb_is_refused_at_the_end_of_the_lease(engine: Engine, clock: Clock, verb: str) -> None:
    job = running(engine)
    clock.set(job.lease_until)
    before = engine.get_job(job.id)
    assert VERBS[verb](engine, job) is False
    assert engine.get_job(job.id) == before


@pytest.mark.req("R4.4")
@each_verb
def test_stale_token_changes_nothing(engine: Engine, clock: Clock, verb: str) -> None:
    first = running(engine)
    clock.set(first.lease_until)
    contracts = register(engine)
    second = claim_one(engine, contracts, worker="w2")
    before = engine.get_job(first.id)
    assert VERBS[verb](engine, first) is False
    assert engine.get_job(first.id) == before
    assert VERBS[verb](engine, second) is True


@pytest.mark.req("R4.4")
@each_verb
def test_wrong_token_changes_nothing(engine: Engine, verb: str) -> None:
    job = running(engine)
    before = engine.get_job(job.id)
    for token in (job.token - 1, job.token + 1, 0, -1, 2**63 - 1):
        wrong = job._replace(token=token)
        assert VERBS[verb](engine, wrong) is False
    assert engine.get_job(job.id) == before


@pytest.mark.req("R4.4")
@each_verb
def test_unclaimed_job_is_nobodys(engine: Engine, verb: str) -> None:
    """A job that was never claimed has token 0: that token must not act on it."""
    register(engine)
    done = engine.enqueue(TARGET, "k")
    before = engine.get_job(done.id)
    forged = Claimed(done.id, 0, TARGET, "k", 0, 3, "", "null", START, START)
    assert VERBS[verb](engine, forged) is False
    assert engine.get_job(done.id) == before


@pytest.mark.req("R4.4")
@each_verb
@pytest.mark.parametrize("first", ["complete", "retry", "bury", "block", "release"])
def test_a_claim_ends_with_its_first_outcome(engine: Engine, first: str, verb: str) -> None:
    job = running(engine)
    assert VERBS[first](engine, job) is True
    before = engine.get_job(job.id)
    assert VERBS[verb](engine, job) is False
    assert engine.get_job(job.id) == before


@pytest.mark.req("R4.4")
@each_verb
def test_unknown_job_is_lost(engine: Engine, verb: str) -> None:
    register(engine)
    forged = Claimed(2**62, 1, TARGET, "k", 1, 3, "", "null", START, START)
    assert VERBS[verb](engine, forged) is False


@pytest.mark.req("R4.4")
def test_tokens_grow_over_all_jobs_and_queues(engine: Engine, clock: Clock) -> None:
    contracts = register(
        engine, declaration("a.job.one", queue="one"), declaration("a.job.two", queue="two")
    )
    engine.enqueue_many("a.job.one", [f"k{i}" for i in range(5)])
    engine.enqueue_many("a.job.two", [f"k{i}" for i in range(5)])
    tokens: list[int] = []
    for _ in range(3):
        for queue in ("one", "two"):
            claimed = [job.token for job in claim(engine, contracts, queue=queue, expect=5)]
            assert len(set(claimed)) == 5
            assert min(claimed) > max(tokens, default=0)
            tokens += claimed
        clock.advance(LEASE)


@pytest.mark.req("R4.4")
def test_renew_gives_a_full_new_lease(engine: Engine, clock: Clock) -> None:
    job = running(engine)
    clock.advance(LEASE - MICROSECOND)
    assert engine.renew([job.id], [job.token], timedelta(seconds=10))[0].ok
    row = engine.get_job(job.id)
    assert row is not None
    assert row.lease_until == clock.now + timedelta(seconds=10)
    assert (row.token, row.attempt) == (job.token, 1)


@pytest.mark.req("R4.4", "R4.8")
def test_batch_has_one_verdict_per_row(engine: Engine, clock: Clock) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, ["a", "b", "c"])
    a, b, c = claim(engine, contracts, expect=3)
    verdicts = engine.renew(
        [c.id, 999_999_999, a.id, b.id], [c.token, 1, a.token + 99, b.token], LEASE
    )
    assert {one.id: one.ok for one in verdicts} == {
        c.id: True,
        999_999_999: False,
        a.id: False,
        b.id: True,
    }


@pytest.mark.req("R4.4")
@pytest.mark.parametrize("verb", ["renew", "complete", "retry", "bury", "block", "release"])
def test_duplicate_ids_get_one_verdict(engine: Engine, verb: str) -> None:
    job = running(engine)
    ids, tokens = [job.id, job.id], [job.token, job.token]
    call: dict[str, Callable[[], list[object]]] = {
        "renew": lambda: list(engine.renew(ids, tokens, LEASE)),
        "complete": lambda: list(engine.complete(ids, tokens)),
        "retry": lambda: list(engine.retry(ids, tokens, ["handler_failed"] * 2)),
        "bury": lambda: list(engine.bury(ids, tokens, ["handler_failed"] * 2)),
        "block": lambda: list(engine.block(ids, tokens, ["invalid_payload"] * 2)),
        "release": lambda: list(engine.release(ids, tokens)),
    }
    verdicts = call[verb]()
    assert len(verdicts) == 1
    assert getattr(verdicts[0], "ok", True) is True
    assert getattr(verdicts[0], "outcome", "retried") == "retried"


@pytest.mark.req("R4.4")
def test_arrays_of_unequal_length_are_refused(engine: Engine) -> None:
    job = running(engine)
    calls: list[Callable[[], object]] = [
        lambda: engine.renew([job.id], [], LEASE),
        lambda: engine.complete([job.id], [job.token, 1]),
        lambda: engine.retry([job.id], [job.token], []),
        lambda: engine.retry([job.id], [job.token], ["x"], ["a", "b"]),
        lambda: engine.retry([job.id], [job.token], ["x"], None, [None, None]),
        lambda: engine.bury([job.id], [job.token], ["x", "y"]),
        lambda: engine.block([], [job.token], ["x"]),
        lambda: engine.release([job.id, job.id], [job.token]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()
    assert state(engine, job.id) == "running"


@pytest.mark.req("R4.4")
def test_empty_arrays_are_nothing(engine: Engine) -> None:
    assert engine.renew([], [], LEASE) == []
    assert engine.complete([], []) == []
    assert engine.retry([], [], []) == []
    assert engine.bury([], [], []) == []
    assert engine.block([], [], []) == []
    assert engine.release([], []) == []


@pytest.mark.req("R4.7")
def test_order_is_run_at_then_id(engine: Engine, clock: Clock) -> None:
    contracts = register(engine)
    minutes = [5, 1, 3, 1, 4, 1, 0, 5]
    done = engine.enqueue_many(
        TARGET,
        [f"k{i}" for i in range(8)],
        None,
        [START + timedelta(minutes=m) for m in minutes],
    )
    clock.advance(3600)
    expected = [
        one.id for _, one in sorted(zip(minutes, done, strict=True), key=lambda p: (p[0], p[1].id))
    ]
    got = [job.id for _ in range(4) for job in claim(engine, contracts, n=2, expect=2)]
    assert got == expected


@pytest.mark.req("R4.7")
@pytest.mark.parametrize("n", [0, -1, -(2**31)])
def test_claiming_none_is_nothing(engine: Engine, n: int) -> None:
    contracts = register(engine)
    engine.enqueue(TARGET, "k")
    assert claim(engine, contracts, n=n) == []


@pytest.mark.req("R4.7")
def test_n_is_bounded(engine: Engine) -> None:
    contracts = register(engine)
    engine.enqueue(TARGET, "k")
    with pytest.raises(InvalidArgument):
        claim(engine, contracts, n=10_001)
    assert len(claim(engine, contracts, n=10_000, expect=1)) == 1


@pytest.mark.req("R4.7")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_claim_takes_at_most_n(engine: Engine, n: int) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, ["a", "b", "c", "d"])
    assert len(claim(engine, contracts, n=n, expect=n)) == n


@pytest.mark.req("R4.5")
@pytest.mark.parametrize("lease", [timedelta(0), timedelta(seconds=-1), timedelta(days=36501)])
def test_bad_lease_is_refused(engine: Engine, lease: timedelta) -> None:
    contracts = register(engine)
    done = engine.enqueue(TARGET, "k")
    with pytest.raises(InvalidArgument):
        claim(engine, contracts, lease=lease)
    assert state(engine, done.id) == "ready"
    job = claim_one(engine, contracts)
    with pytest.raises(InvalidArgument):
        engine.renew([job.id], [job.token], lease)


@pytest.mark.req("R4.5", "R7.2")
def test_without_a_lease_the_rows_own_visibility_counts(engine: Engine) -> None:
    engine.configure_queue("mail", visibility=timedelta(seconds=7))
    engine.send("mail", "1")
    job = claim_one(engine, None, queue="mail", lease=None)
    assert job.lease_until == START + timedelta(seconds=7)


@pytest.mark.req("R5.4")
def test_worker_claims_only_its_contracts(engine: Engine) -> None:
    one, two = register(engine, declaration("a.job.one"), declaration("a.job.two"))
    engine.enqueue("a.job.one", "k")
    engine.enqueue("a.job.two", "k")
    engine.send("default", "1")
    assert [job.target for job in claim(engine, [one], expect=1)] == ["a.job.one"]
    assert [job.target for job in claim(engine, [one, two], expect=1)] == ["a.job.two"]
    message = claim_one(engine, None)
    assert (message.target, message.fingerprint, message.key) == (None, None, None)


@pytest.mark.req("R5.4")
def test_no_contracts_means_nothing_to_claim(engine: Engine) -> None:
    register(engine)
    engine.enqueue(TARGET, "k")
    engine.send("default", "1")
    assert claim(engine, []) == []


@pytest.mark.req("R4.6")
@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_last_attempt_is_never_claimed_again(
    engine: Engine, clock: Clock, max_attempts: int
) -> None:
    contracts = register(engine, declaration(retry=max_attempts))
    done = engine.enqueue(TARGET, "k")
    for _ in range(max_attempts):
        claim_one(engine, contracts)
        clock.advance(LEASE)
    assert claim(engine, contracts) == []
    engine.sweep()
    row = engine.get_job(done.id)
    assert row is not None
    assert (row.state, row.reason, row.attempt) == ("dead", "attempts_exhausted", max_attempts)


@pytest.mark.req("R4.6")
def test_exhausted_jobs_hide_nothing(engine: Engine, clock: Clock) -> None:
    contracts = register(engine, declaration(retry=1))
    engine.enqueue_many(TARGET, [f"old{i}" for i in range(300)])
    assert len(claim(engine, contracts, n=300, expect=300)) == 300
    clock.advance(LEASE)
    fresh = engine.enqueue(TARGET, "fresh")
    assert [job.id for job in claim(engine, contracts, n=1, expect=1)] == [fresh.id]


@pytest.mark.req("R7.1")
def test_claim_checks_the_queue_name(engine: Engine) -> None:
    with pytest.raises(InvalidName):
        engine.claim(" ", "w1", 1, LEASE, None)


@pytest.mark.req("R4.5")
def test_unknown_queue_has_nothing(engine: Engine) -> None:
    assert engine.claim("never heard of", "w1", 1, LEASE, None) == []


@pytest.mark.req("R5.4")
def test_paused_queue_is_not_claimed(engine: Engine) -> None:
    contracts = register(engine)
    engine.enqueue(TARGET, "k")
    assert engine.pause_queue("default")
    assert claim(engine, contracts) == []
    assert engine.resume_queue("default")
    claim_one(engine, contracts)


@pytest.mark.req("R4.4")
def test_paused_queue_lets_running_jobs_finish(engine: Engine) -> None:
    job = running(engine)
    engine.pause_queue("default")
    assert engine.renew([job.id], [job.token], LEASE)[0].ok
    assert engine.complete([job.id], [job.token])[0].ok


@pytest.mark.req("R4.5", "R4.4")
def test_clock_that_goes_back_takes_nothing_from_anybody(
    engine: Engine, clock: Clock, raw: Raw
) -> None:
    job = running(engine)
    clock.advance(-3600)
    assert claim(engine, register(engine)) == []
    assert engine.complete([job.id], [job.token])[0].ok


@pytest.mark.req("R7.1")
def test_of_two_bad_names_a_claim_refuses_the_queue_first(engine: Engine) -> None:
    with pytest.raises(InvalidName):
        engine.claim("", "__dever_w", 1)
