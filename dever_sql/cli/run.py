"""`dever run`: a program in the mode that its settings name (R8.2)."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from dever_sql.serving import run_program

from .log import log_to_standard_error
from .parser import Commands
from .program import load_program, use_settings


def add_command(commands: Commands) -> None:
    """Add `dever run`."""
    parser = commands.add(
        "run",
        help="run a program in the mode its settings name: api, worker or all",
        description=(
            "Run a program in the mode that runtime.mode of its settings names. The modes api and\n"
            "all serve the ASGI application that is called `application` in MODULE. Ctrl-C or\n"
            "SIGTERM end it after running requests and jobs have ended; a second one, at once."
        ),
        examples="  dever run shop\n  dever run shop.main --settings deploy/config/blue.json",
        run=_run,
    )
    parser.add_argument("module", metavar="MODULE")
    parser.add_argument(
        "--settings",
        metavar="PATH",
        type=Path,
        help="another settings file; overrides no value in it (default: config/setting.json)",
    )


def _run(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.module)
    use_settings(program, arguments.settings)
    log_to_standard_error(logging.INFO)
    return run_program(getattr(program.module, "application", None))
