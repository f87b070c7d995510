"""Rows in front that a worker may not run cost one full scan, and then no more."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest
from samples import TARGET, claim, claim_one, declaration, register

from dever_sql import sqlite_head
from dever_sql.engine import Verdict
from dever_sql.sqlite import SQLiteEngine
from dever_sql.sqlite_file import Transaction

OTHERS = "shop.order.job.others"


class Measured:
    """How much work each claim was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: list[int] = []
        original = Transaction.run_measured

        def run_measured(run: Transaction, steps: object) -> object:
            result, work = original(run, steps)  # pyright: ignore[reportArgumentType]
            self.work.append(work)
            return result, work

        monkeypatch.setattr(Transaction, "run_measured", run_measured)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    return Measured(monkeypatch)


@pytest.fixture
def engine(tmp_path: Path) -> SQLiteEngine:
    engine = SQLiteEngine(tmp_path / "jobs.db", synchronous="off")
    engine.install()
    return engine


@pytest.fixture
def contracts(engine: SQLiteEngine) -> list[int]:
    """Of the worker, behind 20,000 due jobs of another."""
    mine, _ = register(engine, declaration(), declaration(OTHERS))
    for part in range(4):
        engine.enqueue_many(OTHERS, [f"{part}-{number}" for number in range(5_000)])
    return [mine]


def enqueue_before_now(engine: SQLiteEngine) -> None:
    """A job that lies below the head of any claim that comes: the clock counts in milliseconds."""
    engine.enqueue(TARGET, "k", None, engine.clock() - timedelta(seconds=1))


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that stays, however fast the machine."""
    monkeypatch.setattr(sqlite_head, "_TIMES", 1_000_000)


@pytest.mark.req("R4.7")
@pytest.mark.usefixtures("long")
def test_looks_behind_other_workers_jobs_are_cheap_after_the_first(
    engine: SQLiteEngine, contracts: list[int], measured: Measured
) -> None:
    for _ in range(5):
        assert claim(engine, contracts) == []
    first, *later = measured.work
    assert first > 100
    assert max(later) < 10


@pytest.mark.req("R3.3", "R4.7")
@pytest.mark.usefixtures("long")
def test_what_is_enqueued_behind_the_head_is_found_at_once(
    engine: SQLiteEngine, contracts: list[int], measured: Measured
) -> None:
    assert claim(engine, contracts) == []
    ids = [row.id for row in engine.enqueue_many(TARGET, [f"k{number}" for number in range(30)])]
    found = [row.id for _ in range(3) for row in claim(engine, contracts, n=10)]
    assert found == ids
    assert max(measured.work[1:]) < 20


@pytest.mark.req("R4.5")
def test_a_released_job_below_the_head_waits_for_the_next_full_scan(
    engine: SQLiteEngine, contracts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_before_now(engine)
    claimed = claim_one(engine, contracts)
    monkeypatch.setattr(sqlite_head, "_TIMES", 1_000_000)
    assert claim(engine, contracts) == []
    assert engine.release([claimed.id], [claimed.token]) == [Verdict(claimed.id, True)]
    assert claim(engine, contracts) == []
    # Another process, or this one when the time has passed.
    engine._heads = sqlite_head.Heads()
    assert claim_one(engine, contracts).id == claimed.id


@pytest.mark.req("R4.5")
def test_a_full_scan_comes_again_by_itself(
    engine: SQLiteEngine, contracts: list[int], measured: Measured
) -> None:
    enqueue_before_now(engine)
    claimed = claim_one(engine, contracts)
    engine.release([claimed.id], [claimed.token])
    assert claim_one(engine, contracts).id == claimed.id
    assert measured.work[-1] > 100, "found by a full scan"


@pytest.mark.req("R4.5")
def test_a_healthy_file_keeps_no_head(engine: SQLiteEngine) -> None:
    contracts = register(engine)
    engine.enqueue_many(TARGET, [f"k{number}" for number in range(500)])
    while claim(engine, contracts, n=100):
        pass
    assert engine._heads._heads == {}


@pytest.mark.req("R4.7")
@pytest.mark.usefixtures("long")
def test_other_contracts_and_queues_have_heads_of_their_own(
    engine: SQLiteEngine, contracts: list[int]
) -> None:
    assert claim(engine, contracts) == []
    assert len(claim(engine, [1, 2])) == 10
    engine.send("mail", "1")
    assert len(claim(engine, None, queue="mail")) == 1


@pytest.mark.req("R4.5")
@pytest.mark.usefixtures("long")
def test_a_claim_of_nothing_does_not_move_the_head(
    engine: SQLiteEngine, contracts: list[int]
) -> None:
    assert claim(engine, contracts) == []
    enqueued = engine.enqueue(TARGET, "k", None)
    instant = engine.clock()
    while engine.clock() == instant:
        pass
    assert claim(engine, contracts, n=0) == []
    assert claim_one(engine, contracts).id == enqueued.id


@pytest.mark.req("R4.5")
def test_a_scan_during_which_the_process_stood_still_is_not_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(sqlite_head, "time", SimpleNamespace(monotonic=lambda: now))
    heads = sqlite_head.Heads()
    heads.scanned("mail", 10, 7, [], work=10_000, seconds=3_600.0)
    assert heads.place("mail") == (7, 0)
    now += 21
    assert heads.place("mail") == sqlite_head.FRONT


class Interrupted(BaseException):
    """What a KeyboardInterrupt is, raised by a signal of the test's own."""


@pytest.mark.req("R4.7")
def test_what_a_signal_raises_ends_a_long_look_as_it_is(
    engine: SQLiteEngine, contracts: list[int]
) -> None:
    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is Transaction.run_measured.__code__:
                raise Interrupted
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    def look_until_interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True:
            engine._heads = sqlite_head.Heads()
            claim(engine, contracts)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            look_until_interrupted()
    finally:
        signal.signal(signal.SIGALRM, before)
    engine.enqueue(TARGET, "k", None)
    assert claim_one(engine, contracts).attempt == 1
