"""The ways to bring a database to this release; each returns an exit code and what it said."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from postgres_server import find_binaries
from upgrade.databases import FIRST, ROOT

from dever_sql.cli import main


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    said: str


def environment() -> dict[str, str]:
    """One in which psql is that of the server under test."""
    bindir = find_binaries()
    assert bindir is not None
    return {**os.environ, "PATH": f"{bindir}:{os.environ['PATH']}"}


def run(*command: str, given: str = "") -> Done:
    done = subprocess.run(
        command,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        env=environment(),
    )
    return Done(done.returncode, done.stdout)


def psql(url: str, *arguments: str, given: str = "") -> Done:
    return run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *arguments, url, given=given)


def dever(*words: str) -> Done:
    """The command line, in this process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(words)
    return Done(code, said.getvalue())


def deploy(url: str) -> Done:
    return psql(url, "-f", str(ROOT / "sql" / "deploy.sql"))


def command_line(url: str) -> Done:
    return dever("sql", "install", url)


def printed(url: str) -> Done:
    """`dever sql print --from 0.1.0 | psql`, which only upgrades."""
    return psql(url, given=dever("sql", "print", "--from", FIRST).said)


def install_schema(url: str, *options: str) -> Done:
    return run(str(ROOT / "scripts" / "install-schema"), *options, url)


REPEATABLE: dict[str, Callable[[str], Done]] = {
    "deploy.sql": deploy,
    "dever sql": command_line,
    "install-schema": install_schema,
}
"""From any state; the same again does nothing."""

WAYS: dict[str, Callable[[str], Done]] = {**REPEATABLE, "print": printed}
"""From the first release to this one, over every version between."""
