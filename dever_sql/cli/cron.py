"""`dever cron`: when a spec fires. Needs no database."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

from dever_sql.cron import preview

from .output import Column, json_option, print_json, print_table, wants_json
from .parser import Commands
from .relative import relative


def add_command(commands: Commands) -> None:
    """Add `dever cron`."""
    cron = commands.add(
        "cron",
        help="show when a schedule spec fires, in UTC",
        description=(
            "Check a spec and show its next instants in UTC. A spec is five fields (minute, hour,\n"
            "day of month, month, day of week) or @every <n><s|m|h|d>, counted from --after."
        ),
        examples=(
            '  dever cron "0 3 * * mon-fri"\n'
            '  dever cron "*/15 * * * *" --after 2027-01-31T08:00:00Z -n 10\n'
            '  dever cron "@every 90s"'
        ),
        run=_show,
        parents=(json_option(),),
    )
    cron.add_argument("spec", metavar="SPEC", help="in quotes, or the shell expands its stars")
    cron.add_argument(
        "--after", type=instant, metavar="T", help="RFC 3339, UTC without a zone (default: now)"
    )
    cron.add_argument("-n", type=int, default=5, metavar="N", help="how many (default: 5)")


def instant(text: str) -> datetime:
    """Parse an instant; for argparse's `type=`."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an instant; write it like 2027-01-31T08:30:00Z"
        ) from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def print_instants(
    instants: Sequence[datetime], now: datetime, arguments: argparse.Namespace
) -> None:
    """Print instants and how far they lie from now."""
    if wants_json(arguments):
        print_json(instants)
        return
    columns: Sequence[Column] = (
        ("NEXT (UTC)", lambda instant: instant),
        ("DAY", lambda instant: instant.strftime("%a")),
        ("FROM NOW", lambda instant: relative(instant, now)),
    )
    print_table(instants, columns, empty="none asked for")


def _show(arguments: argparse.Namespace) -> int:
    now = datetime.now(UTC)
    after = now if arguments.after is None else arguments.after
    print_instants(preview(arguments.spec, after, arguments.n), now, arguments)
    return 0
