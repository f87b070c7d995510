"""`dever schedules`: list, preview, pause, resume, rewind."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from dever_sql.cron import parse_schedule
from dever_sql.engine import Engine, ScheduleRow
from dever_sql.errors import InvalidArgument

from .cron import print_instants
from .output import Column, json_option, print_json, print_table, show, wants_json
from .parser import Commands
from .place import database_options, installed_engine
from .relative import relative

_ACTIONS = {
    "pause": ("stop a schedule; the windows that pass meanwhile are skipped", "paused"),
    "resume": ("start a paused schedule at its next window", "resumed"),
    "rewind": ("repair a cursor that is ahead because the clock was set back", "rewound"),
}
ADVICE = {
    "ahead": "its cursor is ahead of the clock, it fires nothing until then: dever schedules"
    " rewind {name}",
    "orphaned": "no current program declares it, it does not fire",
    "damaged": "its stored spec is damaged, it does not fire: store it again",
}


def add_command(commands: Commands) -> None:
    """Add `dever schedules` and its subcommands."""
    shared = (database_options(), json_option())
    schedules = commands.add(
        "schedules",
        help="list schedules, and preview, pause, resume or rewind one",
        examples=(
            "  dever schedules\n"
            "  dever schedules preview nightly -n 10\n"
            "  dever schedules pause nightly\n"
            "  dever schedules resume nightly\n"
            "  dever schedules rewind nightly"
        ),
        run=_list,
        parents=shared,
    )
    actions = Commands(schedules, title="actions")
    actions.add(
        "list",
        help="list schedules (the same as without an action)",
        examples="  dever schedules list --json",
        run=_list,
        parents=shared,
    )
    preview = actions.add(
        "preview",
        help="show the next windows of a stored schedule",
        examples="  dever schedules preview nightly -n 10",
        run=_preview,
        parents=shared,
    )
    preview.add_argument("name", metavar="NAME")
    preview.add_argument("-n", type=int, default=5, metavar="N", help="how many (default: 5)")
    for action, (help, _) in _ACTIONS.items():
        parser = actions.add(
            action,
            help=help,
            examples=f"  dever schedules {action} nightly",
            run=_act,
            parents=shared,
        )
        parser.add_argument("name", metavar="NAME")
        parser.set_defaults(action=action)


def _columns(now: datetime) -> Sequence[Column]:
    return (
        ("NAME", lambda row: row.name),
        ("SPEC", lambda row: row.spec),
        ("QUEUE", lambda row: row.queue),
        ("STATUS", lambda row: row.status),
        ("NEXT (UTC)", lambda row: row.next_at),
        ("", lambda row: relative(row.next_at, now)),
        ("LAST", lambda row: relative(row.last_at, now)),
        ("FIRED", lambda row: row.fired),
        ("SKIPPED", lambda row: row.skipped),
        ("MISSED", lambda row: row.missed),
    )


def _list(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        rows, now = engine.schedules(), engine.clock()
    if wants_json(arguments):
        print_json(rows)
        return 0
    print_table(
        rows,
        _columns(now),
        empty="no schedules: declare one with @jobs.cron, or store one with dever.schedule(...)",
    )
    for row in rows:
        if row.status in ADVICE:
            advice = ADVICE[row.status].format(name=shlex.quote(row.name))
            print(show(f"schedule {row.name}: {advice}"), file=sys.stderr)
    return 0


def _preview(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        found = _find(engine, arguments.name)
        now = engine.clock()
    if not found:
        return _unknown(arguments.name)
    for row in found:
        if row.next_at is None:
            continue
        later = parse_schedule(row.spec).after(row.next_at)
        n = max(0, arguments.n)
        if n > 10_000:
            raise InvalidArgument(f"-n is {n}", hint="ask for at most 10,000")
        print_instants([row.next_at, *islice(later, max(0, n - 1))][:n], now, arguments)
    return 0


def _act(arguments: argparse.Namespace) -> int:
    action, name = arguments.action, arguments.name
    with installed_engine(arguments) as engine:
        act = {
            "pause": engine.pause_schedule,
            "resume": engine.resume_schedule,
            "rewind": engine.rewind_schedule,
        }[action]
        done = act(name)
        found = _find(engine, name)
    if not found:
        return _unknown(name)
    if wants_json(arguments):
        print_json(found)
    elif done:
        print(f"schedule {name}: {_ACTIONS[action][1]}, next at {_next(found[0])}")
    else:
        print(f"schedule {name}: nothing to rewind, its cursor is not ahead of the clock")
    return 0 if done else 1


def _find(engine: Engine, name: str) -> list[ScheduleRow]:
    """A declared schedule and a stored one may have the same name."""
    return [row for row in engine.schedules() if row.name == name]


def _next(row: ScheduleRow) -> str:
    return "-" if row.next_at is None else row.next_at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _unknown(name: str) -> int:
    print(
        f"dever: there is no schedule {name!r}\nhint: dever schedules lists them", file=sys.stderr
    )
    return 1
