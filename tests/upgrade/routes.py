"""The routes by which Dever SQL gets into a database and out of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from postgres_server import find_binaries

from dever_sql.sql_files import schema_version, sql_directory

SQL = sql_directory("postgresql")
VERSION = schema_version()

FIRST = "0.1.0"
"""The first version that was released."""

GRANTS = """
grant usage on schema dever to {role};
grant execute on function dever.enqueue(text, text, jsonb, timestamptz) to {role};
grant execute on function dever.version() to {role} with grant option;
grant select on dever.jobs to {role};
grant select (id) on dever.job to {role};
grant usage on sequence dever.token_seq to {role};
grant execute on function dever.protocol() to public;
"""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A client program of the server under test; its output, warnings included."""
    bindir = find_binaries()
    assert bindir is not None
    return subprocess.run(
        [bindir / program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )


def psql(file: str | Path, url: str) -> subprocess.CompletedProcess[str]:
    return run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", SQL / file, url)


def execute(url: str, text: str) -> None:
    """Runs a script in a transaction of its own."""
    with psycopg.connect(url) as session:
        session.execute(text.encode())


def rows(url: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as session:
        return session.execute(query.encode(), values).fetchall()


def plain(url: str, version: str = VERSION) -> None:
    execute(url, (SQL / f"dever--{version}.sql").read_text(encoding="utf-8"))


def extension(url: str, version: str = VERSION) -> None:
    execute(url, f"create extension dever version '{version}'")


def updated(url: str) -> None:
    extension(url, FIRST)
    execute(url, "alter extension dever update")


def adopt(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("create extension dever version 'unpackaged'")
        session.execute("alter extension dever update")


def adopted(url: str) -> None:
    plain(url)
    adopt(url)


INSTALLS: dict[str, Callable[[str], None]] = {
    "plain": plain,
    "extension": extension,
    "updated": updated,
    "adopted": adopted,
}

EXTENSIONS = [name for name in INSTALLS if name != "plain"]
