"""The command `dever`. One module per command; each adds its own parser.

To add a command: write a module with `add_command(commands)`, which calls
`commands.add(name, help=..., examples=..., run=...)`, and name the module in `COMMANDS`.
Exit codes: 0 done, 1 finding or failed work, 2 wrong use, 3 cannot reach or not installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from dever_sql.credentials import hide_credentials
from dever_sql.errors import (
    DatabaseUnavailable,
    DeclarationError,
    DeverError,
    InstallError,
    InvalidArgument,
    InvalidKey,
    InvalidName,
    InvalidSpec,
    ReservedName,
    SchemaVersion,
    SettingsError,
)

from .parser import Commands, Parser

COMMANDS = (
    "init",
    "worker",
    "run",
    "check",
    "fmt",
    "jobs",
    "queues",
    "schedules",
    "workers",
    "cron",
    "sql",
    "doctor",
    "top",
    "settings",
)

DONE, FINDING, WRONG_USE, UNREACHABLE = 0, 1, 2, 3

_WRONG_USE = (
    DeclarationError,
    InvalidArgument,
    InvalidKey,
    InvalidName,
    InvalidSpec,
    ReservedName,
    SettingsError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Expected errors print no traceback."""
    words = sys.argv[1:] if argv is None else argv
    # Loading every command takes longer than most of them run.
    parser = _parser(words[:1] if words and words[0] in COMMANDS else COMMANDS)
    try:
        arguments = parser.parse_args(argv)
        if "run" not in arguments:
            parser.print_help(sys.stderr)
            return WRONG_USE
        code = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse: help and version 0, wrong use 2
        return end.code if isinstance(end.code, int) else WRONG_USE
    except DeverError as error:
        print(f"dever: {hide_credentials(str(error))}", file=sys.stderr)
        return exit_code(error)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return 130


def exit_code(error: DeverError) -> int:
    """The exit code that an error ends the command with."""
    if isinstance(error, InstallError | DatabaseUnavailable | SchemaVersion):
        return UNREACHABLE
    return WRONG_USE if isinstance(error, _WRONG_USE) else FINDING


def _parser(names: Sequence[str] = COMMANDS) -> Parser:
    parser = Parser(
        prog="dever",
        description="Durable jobs in the database your application already has.",
        epilog=(
            "first steps:\n"
            "  dever init shop               a small project that runs\n"
            "  dever worker tasks.py         work the jobs of a one-file script\n"
            "  dever jobs --state dead       what failed for good, and why\n\n"
            "exit codes: 0 done, 1 finding or failed work, 2 wrong use,"
            " 3 cannot reach or not installed"
        ),
    )
    parser.add_argument("--version", action="version", version=f"dever {version('dever-sql')}")
    commands = Commands(parser)
    for name in names:
        import_module(f".{name}", __name__).add_command(commands)
    return parser
