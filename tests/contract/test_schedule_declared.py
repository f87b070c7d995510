"""Declared cron: the schedule of the policy in force (R6.3, R6.5, R6.6)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from engines import START, Clock

from dever_sql.engine import Engine, ScheduleRow
from dever_sql.errors import InvalidSpec

MINUTE = timedelta(minutes=1)
ALIVE = timedelta(days=30)


def declaration(
    spec: str | None, *, target: str = "shop.job.nightly", missed: str = "catch_up", retry: int = 3
) -> dict[str, Any]:
    return {
        "target": target,
        "fingerprint": "f" * 64,
        "queue": "default",
        "schema": {"kind": "null"},
        "retry": retry,
        "timeout_ms": 60_000,
        "backoff_base_ms": 1_000,
        "backoff_max_ms": 300_000,
        "schedule": None if spec is None else {"spec": spec, "missed": missed},
    }


def declared(engine: Engine, name: str = "shop.job.nightly") -> ScheduleRow:
    return next(row for row in engine.schedules() if row.name == name and row.target == name)


@pytest.mark.req("R6.3", "R6.5")
def test_a_declared_cron_gets_its_cursor_when_it_is_registered(
    engine: Engine, clock: Clock
) -> None:
    clock.set(START + timedelta(seconds=59))
    engine.register("w", [declaration("* * * * *", missed="latest")], ALIVE)
    row = declared(engine)
    assert (row.next_at, row.queue, row.missed) == (START + MINUTE, "default", "latest")
    assert row.status == "active"
    assert engine.tick() == []
    clock.set(START + MINUTE)
    (fired,) = engine.tick()
    job = engine.get_job(fired.job_id)
    assert job is not None
    assert (job.target, job.queue, job.max_attempts) == ("shop.job.nightly", "default", 3)
    assert (job.payload, job.fingerprint) == ("null", "f" * 64)


@pytest.mark.req("R6.5")
def test_a_restart_and_another_spelling_change_nothing(engine: Engine, clock: Clock) -> None:
    engine.register("w1", [declaration("*/10 * * * *")], ALIVE)
    clock.advance(timedelta(minutes=25))
    engine.register("w2", [declaration("00,10,20,30,40,50 * * * *")], ALIVE)
    assert declared(engine).next_at == START + timedelta(minutes=10)
    assert len(engine.tick()) == 2
    assert declared(engine).skipped == 0


@pytest.mark.req("R6.5")
def test_a_changed_cron_takes_effect_at_its_next_window(engine: Engine, clock: Clock) -> None:
    engine.register("w1", [declaration("* * * * *")], ALIVE)
    engine.leave("w1")
    clock.advance(timedelta(minutes=3, seconds=5))
    engine.register("w2", [declaration("*/7 * * * *")], ALIVE)
    row = declared(engine)
    assert row.next_at == START + timedelta(minutes=7)
    assert (row.fired, row.skipped) == (0, 3)


@pytest.mark.req("R6.6")
def test_a_cron_that_nobody_declares_any_more_is_orphaned_and_silent(
    engine: Engine, clock: Clock
) -> None:
    engine.register("old", [declaration("* * * * *")], ALIVE)
    engine.leave("old")
    engine.register("new", [declaration(None, target="shop.job.other")], ALIVE)
    clock.advance(5 * MINUTE)
    assert engine.tick() == []
    assert declared(engine).status == "orphaned"
    assert engine.next_tick_at() is None


@pytest.mark.req("R6.6", "R7.4")
def test_what_is_declared_can_be_removed_only_when_it_is_orphaned(
    engine: Engine, clock: Clock
) -> None:
    engine.register("old", [declaration("* * * * *")], ALIVE)
    assert engine.unschedule("shop.job.nightly") is False
    engine.leave("old")
    engine.register("new", [declaration(None, target="shop.job.other")], ALIVE)
    assert engine.unschedule("shop.job.nightly") is True
    assert engine.schedules() == []
    clock.advance(5 * MINUTE)
    engine.register("old", [declaration("* * * * *")], ALIVE)
    assert declared(engine).next_at == START + 6 * MINUTE


@pytest.mark.req("R6.6")
def test_a_job_that_lost_its_schedule_is_orphaned(engine: Engine, clock: Clock) -> None:
    engine.register("old", [declaration("* * * * *")], ALIVE)
    engine.leave("old")
    engine.register("new", [declaration(None)], ALIVE)
    clock.advance(5 * MINUTE)
    assert engine.tick() == []
    assert declared(engine).status == "orphaned"


@pytest.mark.req("R6.6")
def test_while_everybody_is_down_the_windows_wait(engine: Engine, clock: Clock) -> None:
    engine.register("w1", [declaration("* * * * *")], ALIVE)
    engine.leave("w1")
    clock.advance(5 * MINUTE)
    engine.register("w2", [declaration("* * * * *")], ALIVE)
    assert len(engine.tick()) == 5


@pytest.mark.req("R5.4", "R6.5")
def test_old_and_new_workers_side_by_side_do_not_flap(engine: Engine, clock: Clock) -> None:
    engine.register("old", [declaration("* * * * *")], ALIVE)
    engine.register("new", [declaration("*/5 * * * *")], ALIVE)
    for _ in range(6):
        engine.register("old", [declaration("* * * * *")], ALIVE)
        clock.advance(timedelta(seconds=50))
        engine.tick()
        engine.register("new", [declaration("*/5 * * * *")], ALIVE)
    row = declared(engine)
    assert (row.spec, row.fired) == ("*/5 * * * *", 1)


@pytest.mark.req("R7.4", "R6.4")
def test_a_schedule_of_the_same_name_is_another_one(engine: Engine, clock: Clock) -> None:
    engine.register("w", [declaration("* * * * *")], ALIVE)
    engine.schedule("shop.job.nightly", "@every 30s", "q")
    assert len(engine.schedules()) == 2
    clock.advance(MINUTE)
    assert len(engine.tick()) == 3
    assert engine.unschedule("shop.job.nightly") is True
    assert [row.target for row in engine.schedules()] == ["shop.job.nightly"]


@pytest.mark.req("R6.6")
def test_a_declared_cron_can_be_paused(engine: Engine, clock: Clock) -> None:
    engine.register("w", [declaration("* * * * *")], ALIVE)
    assert engine.pause_schedule("shop.job.nightly") is True
    engine.register("w2", [declaration("* * * * *")], ALIVE)
    clock.advance(3 * MINUTE)
    assert engine.tick() == []
    assert declared(engine).status == "paused"
    assert engine.resume_schedule("shop.job.nightly") is True
    assert declared(engine).skipped == 3


@pytest.mark.req("R6.1", "R6.3")
@pytest.mark.parametrize("spec", ["@every 5m", "@daily", "0 0 30 2 *", "* * * *", ""])
def test_register_refuses_what_is_not_five_field_cron(engine: Engine, spec: str) -> None:
    with pytest.raises(InvalidSpec):
        engine.register("w", [declaration(spec)], ALIVE)
    assert engine.schedules() == []
    assert engine.workers() == []


@pytest.mark.req("R6.4")
def test_one_key_a_window(engine: Engine, clock: Clock) -> None:
    engine.register("w", [declaration("* * * * *")], ALIVE)
    clock.advance(3 * MINUTE)
    keys = {engine.get_job(one.job_id).key for one in engine.tick()}  # type: ignore[union-attr]
    assert keys == {
        f"__dever_cron:shop.job.nightly:{int((START + n * MINUTE).timestamp())}000000"
        for n in range(1, 4)
    }
