"""`dever workers`: which processes are registered to work, and until when they count as live."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .output import Column, json_option, print_json, print_table, wants_json
from .parser import Commands
from .place import database_options, installed_engine

COLUMNS: Sequence[Column] = (
    ("WORKER", lambda worker: worker.worker),
    ("HOST", lambda worker: worker.host),
    ("PID", lambda worker: worker.pid),
    ("VERSION", lambda worker: worker.version),
    ("STARTED (UTC)", lambda worker: worker.started_at),
    ("ALIVE UNTIL (UTC)", lambda worker: worker.alive_until),
    ("JOBS", lambda worker: worker.jobs),
)


def add_command(commands: Commands) -> None:
    """Add `dever workers`."""
    commands.add(
        "workers",
        help="list the workers that are registered",
        examples="  dever workers\n  dever workers --file tasks.py --json",
        run=_list,
        parents=(database_options(), json_option()),
    )


def _list(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        rows = engine.workers()
    if wants_json(arguments):
        print_json(rows)
    else:
        print_table(rows, COLUMNS, empty="no workers: dever worker FILE_OR_MODULE starts one")
    return 0
