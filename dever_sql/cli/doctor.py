"""`dever doctor`: is anything wrong, and what to do about it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from dever_sql.engine import Engine
from dever_sql.sql_files import schema_version

from .bloat import check_bloat
from .diagnosis import Check
from .output import json_option, print_json, show, wants_json
from .parser import Commands
from .place import database_options, installed_engine
from .rights import check_rights
from .schedules import ADVICE
from .sql import is_extension, version_hint

_CLOCK_LIMIT = timedelta(seconds=5)
_WAITING_SECONDS = 60
_LOOK_AT = 500
_SHOWN = 10


def add_command(commands: Commands) -> None:
    """Add `dever doctor`."""
    commands.add(
        "doctor",
        help="check version, rights, clock, workers, queues, blocked and dead jobs, bloat;"
        " say what to do",
        examples="  dever doctor\n  dever doctor --file tasks.py --json",
        run=_doctor,
        parents=(database_options(), json_option()),
    )


def _doctor(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        checks = list(_checks(engine))
    if wants_json(arguments):
        print_json(checks)
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'LOOK'}  {show(check.check)}: {show(check.found)}")
            if check.hint:
                print(f"      hint: {show(check.hint)}")
        sys.stdout.flush()
    return 0 if all(check.ok for check in checks) else 1


def _checks(engine: Engine) -> Iterator[Check]:
    yield _version(engine)
    rights = check_rights(engine)
    if rights:
        yield rights
    yield _clock(engine)
    # Without the right to observe nothing below can be seen but the statistics.
    if rights is None or rights.ok:
        yield from _workers_and_queues(engine)
        yield from _schedules(engine)
        yield _blocked(engine)
        yield _dead(engine)
    yield check_bloat(engine)


def _version(engine: Engine) -> Check:
    installed, expected = engine.version(), schema_version()
    found = f"{engine.kind}, Dever SQL {installed}"
    if installed == expected:
        return Check("version", True, found)
    hint = version_hint(installed or "", expected, "URL", extension=is_extension(engine))
    return Check("version", False, f"{found}, this program expects {expected}", hint)


def _clock(engine: Engine) -> Check:
    difference = abs(engine.clock() - datetime.now(UTC))
    found = f"{difference.total_seconds():.1f} s from this machine's"
    hint = "due times and leases follow the database's clock; set both by NTP"
    ok = difference <= _CLOCK_LIMIT
    return Check("clock", ok, found, None if ok else hint)


def _workers_and_queues(engine: Engine) -> Iterator[Check]:
    now = engine.clock()
    live = sum(worker.alive_until > now for worker in engine.workers())
    queues = engine.queues()
    late = [queue for queue in queues if (queue.oldest_ready_seconds or 0) > _WAITING_SECONDS]
    yield Check(
        "workers",
        live > 0 or not late,
        f"{live} live",
        None if live or not late else "jobs are waiting; start one: dever worker FILE_OR_MODULE",
    )
    late.sort(key=lambda queue: queue.oldest_ready_seconds or 0, reverse=True)
    for queue in late[:_SHOWN]:
        waiting = f"{queue.ready} ready, the oldest for {queue.oldest_ready_seconds:.0f} s"
        hint = (
            f"it is paused: dever queues resume {shlex.quote(queue.queue)}"
            if queue.paused
            else "start more workers, or look at what the running jobs wait for"
        )
        yield Check(f"queue {queue.queue}", False, waiting, hint)
    if len(late) > _SHOWN:
        found = f"{len(late) - _SHOWN} more of {len(queues)} wait longer than a minute"
        yield Check("queues", False, found, "dever queues lists them")
    if not late:
        yield Check("queues", True, f"{len(queues)}, nothing waits longer than a minute")


def _schedules(engine: Engine) -> Iterator[Check]:
    schedules = engine.schedules()
    silent = [schedule for schedule in schedules if schedule.status in ADVICE]
    for schedule in silent[:_SHOWN]:
        hint = ADVICE[schedule.status].format(name=shlex.quote(schedule.name))
        yield Check(f"schedule {schedule.name}", False, schedule.status, hint)
    if not silent:
        yield Check("schedules", True, f"{len(schedules)}, none is silent")


def _blocked(engine: Engine) -> Check:
    reasons = Counter(
        f"{job.reason} ({job.target or job.queue})"
        for job in engine.jobs(state="blocked", limit=_LOOK_AT)
    )
    if not reasons:
        return Check("blocked jobs", True, "none")
    found = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(5))
    return Check(
        "blocked jobs",
        False,
        found,
        "start a worker of the program that has these jobs; or dever jobs drop --state blocked",
    )


def _dead(engine: Engine) -> Check:
    jobs = engine.jobs(state="dead", limit=_LOOK_AT)
    if not jobs:
        return Check("dead jobs", True, "none")
    reasons = Counter(f"{job.reason} ({job.target or job.queue})" for job in jobs)
    found = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(5))
    return Check(
        "dead jobs",
        False,
        found,
        "dever jobs show ID says why; then dever jobs redrive --state dead, or drop",
    )
