"""What the command prints: a table for a person, JSON for a program."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .durations import show_duration
from .parser import Parser, shared_options

Column: TypeAlias = tuple[str, Callable[[Any], Any]]
"""A table's heading, and how its cell is read from a row."""


def json_option() -> Parser:
    """`--json`, as a parent of parsers."""
    parent = shared_options()
    parent.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print JSON; its keys are the columns of the SQL view",
    )
    return parent


def wants_json(arguments: argparse.Namespace) -> bool:
    """Whether `--json` was given, before or after a subcommand."""
    return bool(getattr(arguments, "json", False))


def print_json(value: Any) -> None:
    """Print `value` (rows, or lists and mappings of plain values) as JSON."""
    print(json.dumps(_plain(value), ensure_ascii=False, indent=2))


def print_table(rows: Iterable[Any], columns: Sequence[Column], *, empty: str) -> None:
    """Print rows as a table: drawn on a terminal, plain aligned text in a pipe or a file."""
    rows = list(rows)
    if not rows:
        print(empty)
    elif sys.stdout.isatty():
        Console().print(drawn_table(rows, columns))
    else:
        headings = [heading for heading, _ in columns]
        cells = [[show(read(row)) for _, read in columns] for row in rows]
        for line in _aligned([headings, *cells]):
            print(line)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one thing, a field a line."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        print(f"{name:<{width}}  {show(value)}".rstrip())


def fields_of(row: Any) -> dict[str, Any]:
    """The columns of a row, by name."""
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


def show(value: Any) -> str:
    """A value as a person reads it. Control characters are shown, never sent to the terminal."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, timedelta):
        return show_duration(value)
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def drawn_table(
    rows: Iterable[Any], columns: Sequence[Column], *, title: str | None = None
) -> Table:
    """Rows as a table for a terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for heading, _ in columns:
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [show(read(row)) for _, read in columns]
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in cells))
    return table


_STYLES = {"dead": "red", "blocked": "yellow", "running": "cyan", "succeeded": "green"}


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {name: _plain(item) for name, item in fields_of(value).items()}
        if isinstance(plain.get("payload"), str):  # rows carry JSON text
            plain["payload"] = json.loads(plain["payload"])
        return plain
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}  # pyright: ignore
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]  # pyright: ignore
    return value
