"""`dever check`: the layout, role, declaration and enqueue rules, read from the source."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dever_sql.errors import InvalidArgument

from .parser import Commands


def add_command(commands: Commands) -> None:
    """Add `dever check`."""
    parser = commands.add(
        "check",
        help="check roles, jobs, schedules and transactions without running the program",
        examples=(
            "  dever check\n"
            "  dever check shop --format github\n"
            "  dever check --explain DEV201\n\n"
            "a finding that was looked at: # dever: ignore[DEV201] and the reason, on its line"
        ),
        run=_check,
    )
    parser.add_argument(
        "path", nargs="?", type=Path, default=Path(), help="a file or directory (default: here)"
    )
    parser.add_argument(
        "--format", choices=("text", "json", "github"), default="text", help="default: text"
    )
    parser.add_argument(
        "--explain",
        metavar="CODE",
        nargs="?",
        const="all",
        help="show a rule with a wrong and a right example, or the list of rules",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="read everything again, and keep nothing"
    )


def _check(arguments: argparse.Namespace) -> int:
    if arguments.explain is not None:
        return _explain(arguments.explain.upper())
    from dever_sql.check import check
    from dever_sql.check.report import FORMATS

    findings = check(arguments.path, use_cache=not arguments.no_cache)
    text = FORMATS[arguments.format](findings)
    if text:
        print(text)
    return 1 if findings else 0


def _explain(code: str) -> int:
    from dever_sql.check.catalogue import RULES, explain

    if code == "ALL":
        for rule in RULES.values():
            print(f"{rule.code}  {rule.title}")
    elif code in RULES:
        sys.stdout.write(explain(RULES[code]))
    else:
        raise InvalidArgument(
            f"there is no rule {code}", hint="dever check --explain shows all of them"
        )
    return 0
