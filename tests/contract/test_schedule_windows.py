"""Which windows a schedule fires, and what it counts (R6.4 to R6.6, R7.4, R7.6)."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from engines import START, Clock, Installed

from dever_sql.engine import Engine, Fired, Missed, ScheduleRow
from dever_sql.errors import (
    DeverError,
    InvalidArgument,
    InvalidName,
    InvalidPayload,
    InvalidSpec,
    ReservedName,
)

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def row_of(engine: Engine, name: str) -> ScheduleRow:
    return next(row for row in engine.schedules() if row.name == name)


def windows(fired: list[Fired]) -> list[datetime]:
    return [occurrence.fire_at for occurrence in fired]


@pytest.mark.req("R6.5", "R7.4")
def test_a_new_schedule_fires_nothing_for_the_past_or_the_current_minute(
    engine: Engine, clock: Clock
) -> None:
    clock.set(START + timedelta(seconds=20))
    stored = engine.schedule("minutely", "* * * * *", "q")
    assert (stored.name, stored.spec, stored.queue) == ("minutely", "* * * * *", "q")
    assert stored.next_at == START + MINUTE
    assert stored.target is None
    assert stored.status == "active"
    assert (stored.fired, stored.skipped, stored.missed) == (0, 0, "catch_up")
    assert engine.tick() == []


@pytest.mark.req("R6.4", "R6.6", "R3.3")
def test_a_window_fires_at_its_instant_and_never_before_and_once(
    engine: Engine, clock: Clock
) -> None:
    engine.schedule("minutely", "* * * * *", "q", payload='{"n": 1}')
    clock.set(START + MINUTE - timedelta(microseconds=1))
    assert engine.tick() == []
    clock.set(START + MINUTE)
    fired = engine.tick()
    assert [(one.schedule, one.fire_at) for one in fired] == [("minutely", START + MINUTE)]
    assert engine.tick() == []
    job = engine.get_job(fired[0].job_id)
    assert job is not None
    assert (job.queue, job.state, job.run_at) == ("q", "ready", START + MINUTE)
    assert json.loads(job.payload or "") == {"n": 1}
    assert job.key == f"__dever_cron:minutely:{int((START + MINUTE).timestamp())}000000"
    row = row_of(engine, "minutely")
    assert (row.fired, row.skipped) == (1, 0)
    assert row.last_at == START + MINUTE
    assert row.next_at == START + 2 * MINUTE


@pytest.mark.req("R6.6")
def test_a_fired_row_is_due_now_however_late_its_window_is(engine: Engine, clock: Clock) -> None:
    engine.schedule("hourly", "@every 1h", "q")
    now = clock.advance(HOUR + timedelta(minutes=7))
    (fired,) = engine.tick()
    job = engine.get_job(fired.job_id)
    assert job is not None
    assert fired.fire_at == START + HOUR
    assert job.run_at == now
    assert job.created_at == now


@pytest.mark.req("R6.4")
def test_a_window_is_not_created_again_once_its_message_is_done(
    engine: Engine, clock: Clock
) -> None:
    engine.schedule("minutely", "* * * * *", "q")
    clock.advance(MINUTE)
    assert len(engine.tick()) == 1
    (claimed,) = engine.claim("q", "w", 10)
    assert engine.complete([claimed.id], [claimed.token])[0].ok
    engine.configure_queue("q", keep_succeeded=timedelta(microseconds=1))
    clock.advance(1)
    engine.sweep()
    assert engine.tick() == []


@pytest.mark.req("R6.6")
@pytest.mark.parametrize(
    ("missed", "expected"),
    [("catch_up", list(range(1, 65))), ("latest", [1440]), ("skip", [])],
)
def test_a_day_of_missed_minutes(
    engine: Engine, clock: Clock, missed: Missed, expected: list[int]
) -> None:
    engine.schedule("minutely", "* * * * *", "q", missed=missed)
    clock.advance(DAY)
    fired = engine.tick()
    assert windows(fired) == [START + n * MINUTE for n in expected]
    assert [one.job_id for one in fired] == sorted(one.job_id for one in fired)
    row = row_of(engine, "minutely")
    assert (row.fired, row.skipped) == (len(expected), 1440 - len(expected))
    assert row.next_at == START + DAY + MINUTE
    assert row.missed == missed
    assert engine.tick() == []


@pytest.mark.req("R6.6")
@pytest.mark.parametrize("missed", ["catch_up", "latest", "skip"])
@pytest.mark.parametrize("spec", ["* * * * *", "@every 1m", "@every 1s"])
def test_every_policy_fires_what_is_on_time(
    engine: Engine, clock: Clock, missed: Missed, spec: str
) -> None:
    engine.schedule("s", spec, "q", missed=missed)
    first = row_of(engine, "s").next_at
    assert first is not None
    clock.set(first + timedelta(milliseconds=300))
    assert windows(engine.tick()) == [first]
    assert row_of(engine, "s").skipped == 0


@pytest.mark.req("R6.6")
def test_skip_passes_over_the_only_window_of_an_outage(engine: Engine, clock: Clock) -> None:
    engine.schedule("daily", "0 3 * * *", "q", missed="skip")
    clock.set(datetime(2027, 3, 2, 10, 0, tzinfo=UTC))
    assert engine.tick() == []
    row = row_of(engine, "daily")
    assert (row.fired, row.skipped) == (0, 1)
    assert row.next_at == datetime(2027, 3, 3, 3, 0, tzinfo=UTC)


@pytest.mark.req("R6.6")
@pytest.mark.parametrize(
    ("spec", "gap", "missed_windows"),
    [
        ("@every 1s", timedelta(days=30), 2_592_000),
        ("* * * * *", timedelta(days=1_800), 2_592_000),
        ("*/7 3,9 * * mon-fri", timedelta(days=3_650), 46_944),
    ],
)
@pytest.mark.parametrize("missed", ["catch_up", "latest", "skip"])
def test_any_gap_is_dealt_with_at_once(
    engine: Engine, clock: Clock, spec: str, gap: timedelta, missed_windows: int, missed: Missed
) -> None:
    engine.schedule("s", spec, "q", missed=missed)
    clock.advance(gap)
    started = time.perf_counter()
    fired = engine.tick()
    # The requirement is 100 ms; a shared machine may take the processor away for a while.
    assert time.perf_counter() - started < 0.5
    row = row_of(engine, "s")
    assert row.fired == len(fired) == {"catch_up": 64, "latest": 1, "skip": 0}[missed]
    assert row.fired + row.skipped == missed_windows
    assert row.next_at is not None
    assert row.next_at > clock.now


@pytest.mark.req("R6.6", "R7.4")
def test_a_backlog_of_hours_fires_64_and_keeps_its_phase(engine: Engine, clock: Clock) -> None:
    engine.schedule("hourly", "@every 1h", "q")
    clock.advance(200 * HOUR + timedelta(minutes=10))
    assert len(engine.tick()) == 64
    for _ in range(5):
        clock.advance(timedelta(minutes=9))
        assert engine.tick() == []
    clock.set(START + 201 * HOUR)
    assert windows(engine.tick()) == [START + 201 * HOUR]
    assert row_of(engine, "hourly").skipped == 200 - 64


@pytest.mark.req("R6.6", "R7.4")
def test_five_due_hours_fire_five_and_keep_the_phase(engine: Engine, clock: Clock) -> None:
    engine.schedule("hourly", "@every 1h", "q")
    clock.advance(5 * HOUR + timedelta(minutes=59))
    assert windows(engine.tick()) == [START + n * HOUR for n in range(1, 6)]
    assert row_of(engine, "hourly").next_at == START + 6 * HOUR
    assert row_of(engine, "hourly").skipped == 0


@pytest.mark.req("R6.5", "R7.4")
def test_storing_the_same_schedule_again_changes_nothing(engine: Engine, clock: Clock) -> None:
    engine.schedule("daily", "@every 24h", "q")
    engine.schedule("quarterly", "*/15 * * * *", "q")
    for _ in range(30):
        clock.advance(HOUR)
        engine.schedule("daily", "@every 1440m", "q")
        engine.schedule("quarterly", "45,30,15,0 0-23 * * *", "q")
        engine.tick()
    daily, quarterly = row_of(engine, "daily"), row_of(engine, "quarterly")
    assert (daily.fired, daily.next_at) == (1, START + 2 * DAY)
    assert (quarterly.fired, quarterly.skipped) == (120, 0)
    assert quarterly.spec == "45,30,15,0 0-23 * * *"


@pytest.mark.req("R6.5")
def test_a_changed_schedule_starts_at_its_first_window_after_now(
    engine: Engine, clock: Clock
) -> None:
    engine.schedule("s", "@every 1m", "q")
    clock.advance(timedelta(minutes=3, seconds=30))
    row = engine.schedule("s", "*/10 * * * *", "q")
    assert row.next_at == START + timedelta(minutes=10)
    assert (row.fired, row.skipped) == (0, 3)
    assert engine.tick() == []


@pytest.mark.req("R7.4")
def test_the_boundaries_of_every_do_not_drift(engine: Engine, clock: Clock) -> None:
    engine.schedule("s", "@every 15m", "q")
    seen: list[datetime] = []
    while clock.now < START + DAY:
        clock.advance(7)
        seen += windows(engine.tick())
        if clock.now.minute == 30:
            engine.schedule("s", "@every 15m", "q")
    assert seen == [START + n * 15 * MINUTE for n in range(1, 97)]


@pytest.mark.req("R6.4")
@pytest.mark.parametrize("poll", [0.3, 1, 30, 59, 61])
def test_any_pace_of_ticks_gives_one_row_a_window(
    engine: Engine, clock: Clock, poll: float
) -> None:
    engine.schedule("s", "* * * * *", "q")
    until = START + timedelta(minutes=3 if poll < 5 else 30)
    seen: list[datetime] = []
    while clock.now < until:
        now = clock.advance(poll)
        fired = windows(engine.tick())
        assert all(window <= now for window in fired)
        seen += fired
    assert seen == [START + n * MINUTE for n in range(1, len(seen) + 1)]
    assert len(seen) == (clock.now - START) // MINUTE


@pytest.mark.req("R6.6", "R7.4")
def test_windows_that_pass_while_paused_are_skipped(engine: Engine, clock: Clock) -> None:
    engine.schedule("s", "* * * * *", "q")
    assert engine.pause_schedule("s") is True
    assert row_of(engine, "s").status == "paused"
    clock.advance(5 * MINUTE)
    assert engine.tick() == []
    clock.advance(5 * MINUTE)
    assert engine.resume_schedule("s") is True
    row = row_of(engine, "s")
    assert (row.status, row.paused) == ("active", False)
    assert (row.fired, row.skipped) == (0, 10)
    assert row.next_at == START + 11 * MINUTE
    assert engine.tick() == []
    clock.advance(MINUTE)
    assert windows(engine.tick()) == [START + 11 * MINUTE]


@pytest.mark.req("R7.4")
def test_resuming_what_is_not_paused_loses_no_window(engine: Engine, clock: Clock) -> None:
    engine.schedule("s", "* * * * *", "q")
    clock.advance(2 * MINUTE)
    assert engine.resume_schedule("s") is True
    assert len(engine.tick()) == 2


@pytest.mark.req("R7.4")
def test_unknown_names_are_told(engine: Engine) -> None:
    assert engine.unschedule("nobody") is False
    assert engine.pause_schedule("nobody") is False
    assert engine.resume_schedule("nobody") is False
    assert engine.rewind_schedule("nobody") is False
    engine.schedule("s", "@every 1s", "q")
    assert engine.unschedule("s") is True
    assert engine.unschedule("s") is False
    assert engine.schedules() == []


@pytest.mark.req("R6.4")
def test_a_cursor_ahead_of_the_clock_is_seen_and_repaired(engine: Engine, clock: Clock) -> None:
    engine.schedule("cron", "* * * * *", "q")
    engine.schedule("every", "@every 7m", "q")
    clock.advance(DAY)
    engine.tick()
    clock.set(START + timedelta(seconds=30))
    assert {row.name: row.status for row in engine.schedules()} == {
        "cron": "ahead",
        "every": "ahead",
    }
    assert engine.tick() == []
    assert engine.rewind_schedule("cron") is True
    assert engine.rewind_schedule("every") is True
    assert engine.rewind_schedule("cron") is False
    assert row_of(engine, "cron").next_at == START + MINUTE
    assert row_of(engine, "every").next_at == START + 7 * MINUTE
    assert {row.status for row in engine.schedules()} == {"active"}


@pytest.mark.req("R6.4")
def test_a_clock_that_jitters_at_a_boundary_is_not_ahead(engine: Engine, clock: Clock) -> None:
    engine.schedule("s", "* * * * *", "q")
    clock.advance(MINUTE)
    assert len(engine.tick()) == 1
    clock.set(START + MINUTE - timedelta(seconds=1))
    assert row_of(engine, "s").status == "active"
    assert engine.rewind_schedule("s") is False
    clock.set(START + MINUTE)
    assert engine.tick() == []


@pytest.mark.req("R7.6", "R7.3")
def test_fired_messages_carry_the_queue_s_defaults_with_the_schedule_s_options_over_them(
    engine: Engine, clock: Clock
) -> None:
    engine.configure_queue("q", max_attempts=9, visibility=timedelta(seconds=77))
    engine.schedule("plain", "* * * * *", "q")
    engine.schedule("own", "* * * * *", "q", expires=timedelta(seconds=5), max_attempts=2)
    clock.advance(MINUTE)
    jobs = {one.schedule: engine.get_job(one.job_id) for one in engine.tick()}
    plain, own = jobs["plain"], jobs["own"]
    assert plain is not None
    assert own is not None
    assert (plain.max_attempts, plain.expires_at) == (9, None)
    assert (own.max_attempts, own.expires_at) == (2, clock.now + timedelta(seconds=5))
    (claimed, _) = engine.claim("q", "w", 2)
    assert claimed.lease_until == clock.now + timedelta(seconds=77)


@pytest.mark.req("R6.4")
def test_a_tick_takes_at_most_n_schedules_and_nothing_for_none(
    engine: Engine, clock: Clock
) -> None:
    for n in range(5):
        engine.schedule(f"s{n}", "* * * * *", "q")
    clock.advance(MINUTE)
    assert engine.tick(0) == []
    assert engine.tick(-1) == []
    assert len(engine.tick(2)) == 2
    assert len(engine.tick(2)) == 2
    assert len(engine.tick(2)) == 1


@pytest.mark.req("R5.3", "R6.4")
def test_a_damaged_row_stops_nobody_and_shows_its_state(
    installed: Installed, engine: Engine, clock: Clock
) -> None:
    engine.schedule("bad", "* * * * *", "q")
    for n in range(20):
        engine.schedule(f"good{n}", "* * * * *", "q")
    installed.raw.execute("update {schedule} set spec = 'x' where name = 'bad'")
    for n in range(1, 4):
        clock.advance(MINUTE)
        assert len(engine.tick()) == 20
        assert row_of(engine, "bad").status == "damaged"
        assert row_of(engine, "good0").fired == n
    assert engine.schedule("bad", "* * * * *", "q").status == "active"


@pytest.mark.req("R7.5")
def test_the_next_tick_is_known(engine: Engine, clock: Clock) -> None:
    assert engine.next_tick_at() is None
    engine.schedule("later", "@every 1h", "q")
    engine.schedule("sooner", "@every 5m", "q")
    assert engine.next_tick_at() == START + timedelta(minutes=5)


REFUSED: list[tuple[dict[str, Any], type[DeverError]]] = [
    ({"spec": "@daily"}, InvalidSpec),
    ({"spec": "0 0 30 2 *"}, InvalidSpec),
    ({"spec": "@every 0s"}, InvalidSpec),
    ({"spec": ""}, InvalidSpec),
    ({"name": ""}, InvalidName),
    ({"name": "__dever_s"}, ReservedName),
    ({"queue": " "}, InvalidName),
    ({"queue": "__dever_outbox:o"}, ReservedName),
    ({"missed": "later"}, InvalidArgument),
    ({"expires": timedelta(0)}, InvalidArgument),
    ({"max_attempts": 0}, InvalidArgument),
    ({"payload": '{"a": 1e400}'}, InvalidPayload),
    ({"payload": "[9223372036854775808]"}, InvalidPayload),
]


@pytest.mark.req("R7.1", "R7.4", "R6.1")
@pytest.mark.parametrize(("change", "error"), REFUSED)
def test_what_is_wrong_is_refused_before_anything_is_stored(
    engine: Engine, change: dict[str, Any], error: type[DeverError]
) -> None:
    arguments: dict[str, Any] = {"name": "s", "spec": "* * * * *", "queue": "q", **change}
    with pytest.raises(error):
        engine.schedule(**arguments)
    assert engine.schedules() == []
    assert engine.queues() == []
