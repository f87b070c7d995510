"""`dever jobs`: list, show, redrive, cancel, drop (R5.6)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from dever_sql.engine import Engine, JobRow, JobState, Outcome
from dever_sql.errors import InvalidArgument

from .output import (
    Column,
    fields_of,
    json_option,
    print_fields,
    print_json,
    print_table,
    wants_json,
)
from .parser import Commands, Parser, shared_options
from .place import database_options, installed_engine

COLUMNS: Sequence[Column] = (
    ("ID", lambda job: job.id),
    ("STATE", lambda job: job.state),
    ("QUEUE", lambda job: job.queue),
    ("JOB", lambda job: job.target),
    ("KEY", lambda job: job.key),
    ("ATTEMPT", lambda job: f"{job.attempt}/{job.max_attempts}"),
    ("RUN AT (UTC)", lambda job: job.run_at),
    ("REASON", lambda job: job.reason),
)

_PAGE = 500
_UNFINISHED: tuple[JobState, ...] = ("scheduled", "ready", "running", "blocked")
_STOPPED: tuple[JobState, ...] = ("dead", "blocked")


def add_command(commands: Commands) -> None:
    """Add `dever jobs` and its subcommands."""
    shared = (database_options(), json_option())
    jobs = commands.add(
        "jobs",
        help="list jobs and messages, and act on them",
        examples=(
            "  dever jobs                                    the newest 50\n"
            "  dever jobs --state dead --target 'shop.order.job.send_receipt'\n"
            "  dever jobs --file tasks.py --json\n"
            "  dever jobs show 42                            one job, with its payload and error\n"
            "  dever jobs redrive --state dead --queue mail  run dead jobs again"
        ),
        run=_list,
        parents=(*shared, _filters()),
    )
    jobs.add_argument(
        "--limit", type=_positive, default=50, metavar="N", help="how many to list (default: 50)"
    )
    actions = Commands(jobs, title="actions")
    show = actions.add(
        "show",
        help="show one job with its payload, reason and error",
        examples="  dever jobs show 42\n  dever jobs show 42 --json",
        run=_show,
        parents=shared,
    )
    show.add_argument("id", type=int, metavar="ID")
    _add_action(actions, shared, "redrive", "run dead or blocked jobs again", _STOPPED)
    _add_action(actions, shared, "cancel", "cancel unfinished jobs", _UNFINISHED)
    _add_action(actions, shared, "drop", "delete dead or blocked jobs for good", _STOPPED)


def _add_action(
    actions: Commands,
    shared: Sequence[Parser],
    name: str,
    help: str,
    states: tuple[JobState, ...],
) -> None:
    parser = actions.add(
        name,
        help=help,
        description=f"{help.capitalize()}: by ids, or by a filter. States: {', '.join(states)}.",
        examples=(
            f"  dever jobs {name} 42 43\n"
            f"  dever jobs {name} --state {states[0]} --target tasks.greet --dry-run\n"
            f"  dever jobs {name} --queue mail"
        ),
        run=_act,
        parents=(*shared, _filters()),
    )
    parser.add_argument("ids", type=int, nargs="*", metavar="ID")
    parser.add_argument("--limit", type=_positive, metavar="N", help="act on at most N of them")
    parser.add_argument("--dry-run", action="store_true", help="list them and change nothing")
    parser.set_defaults(action=name, states=states)


def _filters() -> Parser:
    parent = shared_options()
    group = parent.add_argument_group("filters")
    group.add_argument("--state", choices=get_args(JobState))
    group.add_argument("--queue", metavar="NAME")
    group.add_argument("--target", metavar="JOB", help="the job's name, such as tasks.greet")
    group.add_argument("--key", metavar="KEY", help="the exact idempotency key")
    return parent


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def _list(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        rows = list(
            _matching(engine, arguments, getattr(arguments, "state", None), arguments.limit)
        )
    if wants_json(arguments):
        print_json(rows)
        return 0
    print_table(rows, COLUMNS, empty="no such jobs")
    if len(rows) == arguments.limit:
        sys.stdout.flush()
        print(f"the newest {len(rows)}; --limit N shows more", file=sys.stderr)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        row = engine.get_job(arguments.id)
    if row is None:
        print(
            f"dever: there is no job {arguments.id}; finished jobs are kept for a set time only\n"
            "hint: dever jobs lists what is there",
            file=sys.stderr,
        )
        return 1
    if wants_json(arguments):
        print_json(row)
    else:
        print_fields(fields_of(row))
    return 0


def _act(arguments: argparse.Namespace) -> int:
    """Redrive, cancel or drop: the ids given, else every job that the filter finds."""
    with installed_engine(arguments) as engine:
        if arguments.dry_run:
            rows = list(_chosen(engine, arguments))
            if wants_json(arguments):
                print_json(rows)
            else:
                print_table(rows, COLUMNS, empty="no such jobs")
                print(f"{len(rows)} would be affected; nothing was changed")
            return 0
        act: Callable[[Sequence[int]], list[Outcome]] = {
            "redrive": engine.redrive,
            "cancel": engine.cancel,
            "drop": engine.drop_jobs,
        }[arguments.action]
        ids = arguments.ids or [row.id for row in _chosen(engine, arguments)]
        outcomes = [
            outcome
            for start in range(0, len(ids), _PAGE)
            for outcome in act(ids[start : start + _PAGE])
        ]
    if wants_json(arguments):
        print_json(outcomes)
    else:
        print_table(
            outcomes,
            (("ID", lambda row: row.id), ("OUTCOME", lambda row: row.outcome)),
            empty="no such jobs",
        )
    failed = {"not_found", "key_in_use", "finished"}
    return 1 if any(outcome.outcome in failed for outcome in outcomes) else 0


def _chosen(engine: Engine, arguments: argparse.Namespace) -> Iterator[JobRow]:
    if arguments.ids:
        rows = (engine.get_job(id) for id in arguments.ids)
        yield from (row for row in rows if row is not None and row.state in arguments.states)
        return
    named: JobState | None = getattr(arguments, "state", None)
    if named is None and not any(hasattr(arguments, name) for name in ("queue", "target", "key")):
        raise InvalidArgument(
            f"dever jobs {arguments.action} needs ids or a filter",
            hint=f"name ids, or for all of them: --state {arguments.states[0]}",
        )
    if named is not None and named not in arguments.states:
        raise InvalidArgument(
            f"dever jobs {arguments.action} does not act on {named} jobs",
            hint=f"--state is one of: {', '.join(arguments.states)}",
        )
    left: int | None = arguments.limit
    for state in (named,) if named else arguments.states:
        for row in _matching(engine, arguments, state, left):
            yield row
            left = left - 1 if left is not None else None
        if left == 0:
            return


def _matching(
    engine: Engine, arguments: argparse.Namespace, state: JobState | None, limit: int | None
) -> Iterator[JobRow]:
    """The jobs that the filter finds, newest first, read page by page."""
    before: int | None = None
    while limit is None or limit > 0:
        size = _PAGE if limit is None else min(limit, _PAGE)
        rows = engine.jobs(
            state=state,
            queue=getattr(arguments, "queue", None),
            target=getattr(arguments, "target", None),
            key=getattr(arguments, "key", None),
            limit=size,
            before=before,
        )
        yield from rows
        if len(rows) < size:
            return
        before = rows[-1].id
        limit = None if limit is None else limit - len(rows)
