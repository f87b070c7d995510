"""Where the SQL of both engines lies, and how one of its files is read.

The SQL is data: `sql/` and `sqlite_port/` stand beside this package in a checkout and inside it
after an installation.
"""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import Literal

from .errors import SchemaVersion

_DIRECTORY_NAMES = {"postgresql": "sql", "sqlite": "sqlite_port"}
_NAME_MARK = "-- name:"
_UPGRADE_NAME = re.compile(r"dever--(\d+\.\d+\.\d+)--(\d+\.\d+\.\d+)\.sql")


@cache
def sql_directory(engine: Literal["postgresql", "sqlite"]) -> Path:
    """The directory with the SQL of `engine`: inside the package, else beside it (a checkout)."""
    name = _DIRECTORY_NAMES[engine]
    package = Path(__file__).resolve().parent
    for directory in (package / name, package.parent / name):
        if directory.is_dir():
            return directory
    raise FileNotFoundError(
        f"the SQL files of the {engine} engine are missing: neither {package / name} nor "
        f"{package.parent / name} exists; install dever-sql again"
    )


@cache
def schema_version() -> str:
    """The version of the database schema that this package brings, on both engines alike."""
    control = (sql_directory("postgresql") / "dever.control").read_text(encoding="utf-8")
    found = re.search(r"^default_version\s*=\s*'([^']+)'", control, re.MULTILINE)
    if found is None:
        raise FileNotFoundError("dever.control names no default_version; install dever-sql again")
    return found[1]


def install_script(engine: Literal["postgresql", "sqlite"], version: str | None = None) -> str:
    """The built script that installs a version, this package's by default, where there is none."""
    name = f"dever--{version or schema_version()}.sql"
    return (sql_directory(engine) / name).read_text(encoding="utf-8")


def upgrade_scripts(
    engine: Literal["postgresql", "sqlite"], before: str, after: str | None = None
) -> list[str]:
    """The scripts that lead from one version to a newer one, this package's by default, in order.

    Raises SchemaVersion, which names both versions, when there is no way.
    """
    wanted = after or schema_version()
    steps = {
        found[1]: (found[2], path)
        for path in sql_directory(engine).glob("dever--*--*.sql")
        if (found := _UPGRADE_NAME.fullmatch(path.name))
    }
    scripts: list[str] = []
    version = before
    while version != wanted:
        if version not in steps:
            raise SchemaVersion(
                f"the database has Dever SQL {before}, this package brings {wanted} and knows no"
                " way from there",
                hint="use a newer dever-sql for a newer database; nothing was changed",
            )
        version, path = steps[version]
        scripts.append(path.read_text(encoding="utf-8"))
    return scripts


def split_statements(text: str) -> list[str]:
    """The statements of an SQLite script, one by one, each without its final semicolon.

    SQLite itself decides where a statement ends, so that bodies of triggers stay whole.
    """
    statements: list[str] = []
    pending = ""
    for line in text.splitlines(keepends=True):
        if not pending and (not line.strip() or line.lstrip().startswith("--")):
            continue
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            statements.append(pending.strip().removesuffix(";"))
            pending = ""
    if pending.strip():
        raise ValueError(f"unfinished statement: {pending.strip().splitlines()[0]}")
    return statements


@cache
def named_statements() -> dict[str, str]:
    """The statements that the SQLite engine runs, by name.

    In the files of `sqlite_port/` a block that starts with a line `-- name: claim_pick` and ends
    at the next such line, or at the end of the file, holds one statement. What stands before the
    first of them is the definition of tables, views and triggers, which goes into the install
    script.
    """
    found: dict[str, str] = {}
    for path in sorted(sql_directory("sqlite").glob("[0-9]*.sql")):
        for name, statement in _named_blocks(path.read_text(encoding="utf-8")):
            if name in found:
                raise ValueError(f"{path.name}: a second statement is named {name}")
            found[name] = statement
    return found


def _named_blocks(text: str) -> list[tuple[str, str]]:
    blocks: list[tuple[str, str]] = []
    for block in ("\n" + text).split("\n" + _NAME_MARK)[1:]:
        name, _, body = block.partition("\n")
        statements = split_statements(body)
        if len(statements) != 1:
            raise ValueError(f"{name.strip()}: {len(statements)} statements, one is expected")
        blocks.append((name.strip(), statements[0]))
    return blocks


def definitions(text: str) -> str:
    """The part of a `sqlite_port` file that the install script consists of."""
    return ("\n" + text).split("\n" + _NAME_MARK)[0].strip("\n") + "\n"
