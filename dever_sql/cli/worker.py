"""`dever worker`: work the jobs of a script or a package until a signal, or until idle."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Collection
from pathlib import Path

from dever_sql import database
from dever_sql.declare import all_jobs
from dever_sql.engine import Engine
from dever_sql.errors import SettingsError
from dever_sql.serving import serve_program

from .log import log_to_standard_error
from .parser import Commands
from .program import load_program, use_settings
from .progress import Progress


def add_command(commands: Commands) -> None:
    """Add `dever worker`."""
    parser = commands.add(
        "worker",
        help="work the jobs of a one-file script or of a package",
        description=(
            "Work the jobs of a one-file script or of a package until Ctrl-C or SIGTERM, which\n"
            "let running jobs end. Settings: config/setting.json in the working directory. A\n"
            "script without one runs on defaults and <stem>.db beside it."
        ),
        examples=(
            "  dever worker tasks.py\n"
            "  dever worker shop                           every job.py of the package\n"
            "  dever worker tasks.py --until-idle          work what is due now, then end"
        ),
        run=_work,
    )
    parser.add_argument("program", metavar="FILE_OR_MODULE")
    parser.add_argument(
        "--until-idle",
        action="store_true",
        help="end when nothing is due; exit 1 when a job became dead meanwhile",
    )
    parser.add_argument("--settings", metavar="PATH", type=Path, help="another settings file")


def _work(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.program)
    settings, project = use_settings(program, arguments.settings)
    if settings.runtime.mode == "api":
        raise SettingsError(
            'runtime.mode is "api": a process with these settings works no jobs',
            hint='set runtime.mode to "worker" or "all", or pass --settings with another file',
        )
    log_to_standard_error(logging.WARNING if arguments.until_idle else logging.INFO)
    if not arguments.until_idle:
        return serve_program()
    served: dict[str, set[str]] = {}
    for job in all_jobs():
        served.setdefault(job.database, set()).add(job.queue)
    for name in served:  # so that what is missing is said, or installed, before anything is shown
        database.engine_for(name)
    with contextlib.ExitStack() as stack:
        watched: list[tuple[Engine, Collection[str]]] = []
        for name, queues in served.items():
            engine = database.open_engine(settings.database_url(name, project))
            stack.callback(engine.close)
            chosen = settings.job.queues if settings.job is not None else None
            watched.append((engine, chosen or queues))
        progress = stack.enter_context(Progress(watched))
        code = serve_program(until_idle=True)
    return code or int(progress.dead > 0)
