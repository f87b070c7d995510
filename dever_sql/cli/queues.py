"""`dever queues`: list, pause, resume, configure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dever_sql.engine import QueueRow
from dever_sql.errors import InvalidArgument

from .durations import duration
from .output import (
    Column,
    fields_of,
    json_option,
    print_fields,
    print_json,
    print_table,
    wants_json,
)
from .parser import Commands
from .place import database_options, installed_engine


def _count(name: str) -> Column:
    def read(queue: QueueRow) -> str:
        return f"{getattr(queue, name)}{'' if queue.exact else '+'}"

    return (name.upper(), read)


COLUMNS: Sequence[Column] = (
    ("QUEUE", lambda queue: queue.queue),
    ("PAUSED", lambda queue: queue.paused),
    *(_count(name) for name in ("ready", "scheduled", "running", "blocked", "dead")),
    ("OLDEST READY (S)", lambda queue: queue.oldest_ready_seconds),
)

_DURATIONS = {
    "visibility": "lease of a claim that names none",
    "backoff_base": "pause after the first failed attempt; doubles",
    "backoff_max": "longest pause between attempts",
    "keep_succeeded": "how long succeeded jobs are kept; 0 and forever are allowed",
    "keep_dead": "how long dead jobs are kept",
    "keep_cancelled": "how long cancelled jobs are kept",
    "block_after": "how long a due job waits for a worker that can run it before it is blocked",
}


def add_command(commands: Commands) -> None:
    """Add `dever queues` and its subcommands."""
    shared = (database_options(), json_option())
    queues = commands.add(
        "queues",
        help="list queues, and pause, resume or configure one",
        examples=(
            "  dever queues\n"
            "  dever queues pause mail\n"
            "  dever queues resume mail\n"
            "  dever queues configure mail --keep-dead 90d --block-after 1h"
        ),
        run=_list,
        parents=shared,
    )
    actions = Commands(queues, title="actions")
    for name, help in (
        ("pause", "claim nothing from a queue until it is resumed"),
        ("resume", "claim from a paused queue again"),
    ):
        parser = actions.add(
            name,
            help=help,
            examples=f"  dever queues {name} mail",
            run=_pause,
            parents=shared,
        )
        parser.add_argument("queue", metavar="QUEUE")
        parser.set_defaults(action=name)
    configure = actions.add(
        "configure",
        help="change a queue's settings; what is not named stays",
        examples=(
            "  dever queues configure mail --keep-dead 90d\n"
            "  dever queues configure mail --max-attempts 5 --backoff-base 10s --backoff-max 1h"
        ),
        run=_configure,
        parents=shared,
    )
    configure.add_argument("queue", metavar="QUEUE")
    configure.add_argument("--max-attempts", type=int, metavar="N", help="attempts of a message")
    for name, help in _DURATIONS.items():
        configure.add_argument(
            f"--{name.replace('_', '-')}", type=duration, metavar="DURATION", help=help
        )


def _list(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        rows = engine.queues()
    if wants_json(arguments):
        print_json(rows)
    else:
        print_table(rows, COLUMNS, empty="no queues yet: the first enqueue creates one")
    return 0


def _pause(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        act = engine.pause_queue if arguments.action == "pause" else engine.resume_queue
        known = act(arguments.queue)
    if wants_json(arguments):
        print_json({"queue": arguments.queue, "paused": arguments.action == "pause" and known})
    elif known:
        print(f"queue {arguments.queue}: {arguments.action}d")
    if not known:
        print(
            f"dever: there is no queue {arguments.queue!r}\nhint: dever queues lists them",
            file=sys.stderr,
        )
    return 0 if known else 1


def _configure(arguments: argparse.Namespace) -> int:
    values = {name: getattr(arguments, name) for name in ("max_attempts", *_DURATIONS)}
    if all(value is None for value in values.values()):
        raise InvalidArgument(
            "dever queues configure needs a setting to change",
            hint="for example: dever queues configure mail --keep-dead 90d",
        )
    with installed_engine(arguments) as engine:
        row = engine.configure_queue(arguments.queue, **values)
    if wants_json(arguments):
        print_json(row)
    else:
        print_fields(fields_of(row))
    return 0
