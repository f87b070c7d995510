"""Schedules on SQLite: the decisions of `sql/src/80_schedule.sql`, over the same statements.

Differs by necessity: SQLite has no stored functions, so what PL/pgSQL computes from compiled
bitmaps is asked of `cron.py` here. Every function runs inside one write transaction of the engine;
`run` executes a named statement of `sqlite_port/80_schedule.sql` and returns its rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, cast

from dever_sql.arguments import check
from dever_sql.cron import Cron, Every, parse, parse_schedule
from dever_sql.engine import Fired, Missed, ScheduleRow
from dever_sql.errors import InvalidArgument, InvalidSpec

Run: TypeAlias = Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]
Rule: TypeAlias = Cron | Every

MAX_CATCH_UP: Final = 64
ON_TIME: Final = timedelta(minutes=1)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_log: Final = logging.getLogger("dever")


def check_declared(contracts: Sequence[Mapping[str, Any]]) -> None:
    """Refuse declarations with a spec that is not five-field cron (R6.3). Raises InvalidSpec."""
    for contract in contracts:
        declared = contract.get("schedule")
        spec = cast("dict[str, Any]", declared).get("spec") if isinstance(declared, dict) else None
        if spec is not None:
            parse(spec)


def declare_schedules(run: Run) -> None:
    """Give every declared cron its row and cursor; register and tick call it.

    An unchanged rule keeps its cursor, a new or changed one starts at the first window after now.
    """
    for target, spec, missed in run("schedule_undeclared", {}):
        rule = _valid_rule(spec)
        if rule is None:
            continue
        _store(run, target, True, rule, None, "null", missed, None, None)


def schedule(
    run: Run,
    name: str,
    spec: str,
    queue: str,
    payload: str,
    missed: str,
    expires_us: int | None,
    max_attempts: int | None,
) -> ScheduleRow:
    """Store a schedule under a name that the caller has checked, like the queue's (R7.4)."""
    check({"spec": spec, "missed": missed, "max_attempts": max_attempts})
    rule = parse_schedule(spec)
    if missed not in ("catch_up", "latest", "skip"):
        raise InvalidArgument(
            "missed is not a policy for missed windows", hint="write catch_up, latest or skip"
        )
    if max_attempts is not None and max_attempts < 1:
        raise InvalidArgument(
            "max_attempts is below 1",
            hint="it is the total number of deliveries, the first included",
        )
    run("schedule_check_message", {"payload": payload})
    run("schedule_queue", {"queue": queue})
    _store(run, name, False, rule, queue, payload, missed, expires_us, max_attempts)
    return next(row for row in schedules(run) if row.name == name and row.target is None)


def tick(run: Run, n: int) -> list[Fired]:
    """Fire what is due of up to `n` schedules and move their cursors (R6.4)."""
    if n <= 0:
        return []
    declare_schedules(run)
    fired: list[Fired] = []
    now = _now(run)
    for name, declared, spec, next_us, paused, missed, fault in run(
        "schedule_due", {"now": _microseconds(now), "n": n}
    ):
        key = {"name": name, "declared": declared}
        rule = _valid_rule(spec)
        if rule is None:
            if fault is None:
                run("schedule_damaged", key)
                _log.warning("schedule %r does not fire: its stored spec is damaged", name)
            continue
        cursor = _instant(next_us)
        windows = [] if paused else _due_windows(rule, cursor, now, missed)
        created = _fire(run, key, windows, now)
        fired.extend(Fired(name, window, job_id) for window, job_id in created)
        run(
            "schedule_move",
            {
                **key,
                "next_at": _microseconds(rule.following(cursor, now)),
                "last_at": _microseconds(windows[-1]) if windows else None,
                "fired": len(created),
                "skipped": _pending(rule, cursor, now) - len(windows),
            },
        )
    return fired


def next_tick_at(run: Run) -> datetime | None:
    """When the next tick has something to do; None: never, as things are."""
    instant = run("next_tick_at", {})[0][0]
    return None if instant is None else _instant(instant)


def unschedule(run: Run, name: str) -> bool:
    """Remove a schedule, a declared one only when it is orphaned; what it has fired stays."""
    return bool(run("unschedule", {"name": name}))


def pause_schedule(run: Run, name: str) -> bool:
    """While paused, windows that pass are skipped (R6.6)."""
    return bool(run("pause_schedule", {"name": name}))


def resume_schedule(run: Run, name: str) -> bool:
    """Start a paused schedule at the first window after now."""
    now = _now(run)
    rows = run("schedules_named", {"name": name})
    for declared, spec, next_us, paused in rows:
        rule, cursor = _valid_rule(spec), _instant(next_us)
        if not paused or rule is None:
            continue
        moved = max(cursor, rule.following(cursor, now))
        _set_cursor(run, name, declared, moved, False, _pending(rule, cursor, now))
    return bool(rows)


def rewind_schedule(run: Run, name: str) -> bool:
    """Repair a cursor that is ahead of the clock; False when there is nothing to repair (R6.4)."""
    now = _now(run)
    rewound = False
    for declared, spec, next_us, paused in run("schedules_named", {"name": name}):
        rule, cursor = _valid_rule(spec), _instant(next_us)
        if rule is not None and _is_ahead(rule, cursor, now):
            _set_cursor(run, name, declared, rule.following(cursor, now), paused, 0)
            rewound = True
    return rewound


def schedules(run: Run) -> list[ScheduleRow]:
    """The view `dever_schedules`, with the cursors that are ahead of the clock marked."""
    now = _now(run)
    rows: list[ScheduleRow] = []
    for (
        name, spec, queue, target, payload, next_us, last_us, fired, skipped, missed, paused, status
    ) in run("schedules", {}):  # fmt: skip
        cursor = _instant(next_us)
        rule = _valid_rule(spec) if status == "active" else None
        ahead = rule is not None and _is_ahead(rule, cursor, now)
        rows.append(
            ScheduleRow(
                name=name,
                spec=spec,
                queue=queue,
                target=target,
                payload=payload,
                next_at=cursor,
                last_at=None if last_us is None else _instant(last_us),
                fired=fired,
                skipped=skipped,
                missed=cast(Missed, missed),
                paused=bool(paused),
                status="ahead" if ahead else status,
            )
        )
    return rows


def _store(
    run: Run,
    name: str,
    declared: bool,
    rule: Rule,
    queue: str | None,
    payload: str,
    missed: str,
    expires_us: int | None,
    max_attempts: int | None,
) -> None:
    now = _now(run)
    values = {
        "name": name,
        "declared": int(declared),
        "spec": rule.spec,
        "queue": queue,
        "payload": payload,
        "missed": missed,
        "expires_us": expires_us,
        "max_attempts": max_attempts,
    }
    found = run("schedule_find", {"name": name, "declared": int(declared)})
    if not found:
        first = _microseconds(next(rule.after(now)))
        run("schedule_insert", {**values, "next_at": first, "now": _microseconds(now)})
        return
    cursor, stored = _instant(found[0][1]), _valid_rule(found[0][0])
    skipped = 0
    if stored is None or not rule.same_as(stored):
        skipped = 0 if stored is None else _pending(stored, cursor, now)
        cursor = next(rule.after(now))
    run("schedule_update", {**values, "next_at": _microseconds(cursor), "skipped": skipped})


def _due_windows(rule: Rule, cursor: datetime, now: datetime, missed: str) -> list[datetime]:
    """Which windows are fired now, oldest first."""
    if missed == "latest":
        return [rule.last(cursor, now)]
    if missed == "skip":
        # On time is the only window that is due, seen within a minute; the others were missed.
        on_time = _pending(rule, cursor, now) == 1 and now - cursor <= ON_TIME
        return [cursor] if on_time else []
    windows = [cursor]
    for window in rule.after(cursor):
        if window > now or len(windows) == MAX_CATCH_UP:
            break
        windows.append(window)
    return windows


def _fire(
    run: Run, key: Mapping[str, Any], windows: Sequence[datetime], now: datetime
) -> list[tuple[datetime, int]]:
    if not windows:
        return []
    rows = run(
        "schedule_fire",
        {
            **key,
            "windows": json.dumps([_microseconds(window) for window in windows]),
            "now": _microseconds(now),
        },
    )
    # The key of an occurrence ends in its window.
    return sorted((_instant(int(text.rpartition(":")[2])), id) for id, text in rows)


def _set_cursor(
    run: Run, name: str, declared: int, next_at: datetime, paused: bool, skipped: int
) -> None:
    run(
        "schedule_cursor",
        {
            "name": name,
            "declared": declared,
            "next_at": _microseconds(next_at),
            "paused": int(paused),
            "skipped": skipped,
        },
    )


def _pending(rule: Rule, cursor: datetime, now: datetime) -> int:
    """How many windows from the cursor on lie at or before now."""
    return 1 + rule.count(cursor, now) if cursor <= now else 0


def _is_ahead(rule: Rule, cursor: datetime, now: datetime) -> bool:
    """Whether the cursor is ahead of the clock by more than one boundary."""
    following = rule.following(cursor, now)
    return cursor > following and cursor > next(rule.after(following))


def _valid_rule(spec: str) -> Rule | None:
    try:
        return parse_schedule(spec)
    except InvalidSpec:
        return None


def _now(run: Run) -> datetime:
    return _instant(run("clock", {})[0][0])


def _instant(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND
