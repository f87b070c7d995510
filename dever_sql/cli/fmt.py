"""`dever fmt`: job declarations in one canonical form."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dever_sql.errors import InvalidArgument

from .parser import Commands

_MARK = "\ufeff"  # what some editors write at the beginning of a file


def add_command(commands: Commands) -> None:
    """Add `dever fmt`."""
    parser = commands.add(
        "fmt",
        help="rewrite job declarations to one canonical form",
        examples="  dever fmt\n  dever fmt --check shop",
        run=_format,
    )
    parser.add_argument(
        "path", nargs="?", type=Path, default=Path(), help="a file or directory (default: here)"
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 where something would change"
    )


def _format(arguments: argparse.Namespace) -> int:
    from dever_sql.check import source_files
    from dever_sql.check.configuration import find_configuration
    from dever_sql.fmt import format_source

    path: Path = arguments.path
    if not path.exists():
        raise InvalidArgument(f"there is no {path}", hint="name a file or a directory")
    changed = unreadable = 0
    for file in sorted(source_files(path.resolve(), find_configuration(path))):
        try:
            before = file.read_bytes().decode("utf-8")
            text = before.removeprefix(_MARK)
            after = before.removesuffix(text) + format_source(text, file)
        except (SyntaxError, ValueError, RecursionError) as error:
            unreadable += 1
            print(f"{_shown(file)}: this file cannot be read: {error}", file=sys.stderr)
            continue
        if after != before:
            changed += 1
            if arguments.check:
                print(f"{_shown(file)} would change")
            else:
                file.write_bytes(after.encode("utf-8"))
                print(f"{_shown(file)} changed")
    if not changed and not unreadable:
        print("nothing to change")
    return 1 if unreadable or (changed and arguments.check) else 0


def _shown(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)
