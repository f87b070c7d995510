"""`dever top`: queues, workers and what runs, redrawn until Ctrl-C (R9.4)."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dever_sql.engine import Engine
from dever_sql.errors import DatabaseUnavailable

from .jobs import COLUMNS as JOB_COLUMNS
from .output import drawn_table, show
from .parser import Commands
from .place import database_options, installed_engine
from .queues import COLUMNS as QUEUE_COLUMNS
from .workers import COLUMNS as WORKER_COLUMNS

_ROWS = 15


def add_command(commands: Commands) -> None:
    """Add `dever top`."""
    parser = commands.add(
        "top",
        help="live view of queues, workers and running jobs; Ctrl-C ends it",
        examples="  dever top\n  dever top --file tasks.py --interval 0.5",
        run=_top,
        parents=(database_options(),),
    )
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="SECONDS", help="default: 1"
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.1 <= value <= 3_600:
        raise argparse.ArgumentTypeError(f"{text} is not within 0.1 and 3600 seconds")
    return value


def _top(arguments: argparse.Namespace) -> int:
    with installed_engine(arguments) as engine:
        if not sys.stdout.isatty():  # once, for a file or a pipe
            Console().print(_picture(engine))
            return 0
        with (
            contextlib.suppress(KeyboardInterrupt),
            Live(_picture(engine), screen=True, auto_refresh=False) as live,
        ):
            while True:
                time.sleep(arguments.interval)
                try:
                    live.update(_picture(engine), refresh=True)
                except DatabaseUnavailable as error:
                    live.update(Text(f"{error.message}\ntrying again", "red"), refresh=True)
    return 0


def _picture(engine: Engine) -> Group:
    now = engine.clock()
    live = [worker for worker in engine.workers() if worker.alive_until > now]
    running = engine.jobs(state="running", limit=_ROWS)
    dead = engine.jobs(state="dead", limit=5)
    return Group(
        Text(f"Dever SQL {engine.version()} on {engine.kind}   {show(now)} UTC", "bold"),
        drawn_table(engine.queues(), QUEUE_COLUMNS, title="queues"),
        drawn_table(live, WORKER_COLUMNS, title="live workers"),
        drawn_table(running, JOB_COLUMNS, title=f"running (the newest {_ROWS})"),
        drawn_table(dead, JOB_COLUMNS, title="dead (the newest 5)"),
    )
