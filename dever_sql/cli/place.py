"""Which database a command works on: one rule for all commands.

--url URL         this database
--file PATH       an SQLite file; or a one-file script, then the database its worker uses:
                  that of config/setting.json here, without one <stem>.db beside the script
--settings PATH   the database that this settings file names
nothing           config/setting.json in the working directory
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Generator
from pathlib import Path
from urllib.parse import unquote

from dever_sql.credentials import hide_credentials
from dever_sql.database import open_engine
from dever_sql.engine import Engine
from dever_sql.errors import InstallError, InvalidArgument
from dever_sql.settings import (
    SETTINGS_FILE,
    find_settings,
    load_settings,
    program_settings,
    project_directory,
    sqlite_url,
)

from .parser import Parser, shared_options


def database_options() -> Parser:
    """The options that choose a database, as a parent of parsers."""
    parent = shared_options()
    group = parent.add_argument_group(
        "which database (default: config/setting.json in the working directory)"
    )
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--url", metavar="URL", help="sqlite:///path.db or postgresql://user@host/name"
    )
    one.add_argument(
        "--file",
        metavar="PATH",
        type=Path,
        help="a one-file script (uses <stem>.db beside it) or an SQLite file",
    )
    one.add_argument("--settings", metavar="PATH", type=Path, help="another settings file")
    group.add_argument(
        "--database", metavar="NAME", help="logical database in the settings (default: default)"
    )
    return parent


def database_url(arguments: argparse.Namespace) -> str:
    """The URL that the options of `database_options` name. Raises InvalidArgument if none does."""
    url: str | None = getattr(arguments, "url", None)
    if url is not None:
        return url
    file: Path | None = getattr(arguments, "file", None)
    if file is not None:
        if not file.exists():
            raise InvalidArgument(f"there is no file {file}", hint="check the path after --file")
        if file.suffix != ".py":
            return sqlite_url(file)
    path: Path | None = getattr(arguments, "settings", None)
    if path is not None:
        settings, project = load_settings(path), project_directory(path)
    elif file is None and find_settings(Path.cwd()) is None:
        raise InvalidArgument(
            f"no database named, and there is no {SETTINGS_FILE} in this directory",
            hint="give --url URL, --file tasks.py or --settings PATH, or run it in the project",
        )
    else:
        settings, project = program_settings(Path.cwd(), file)
    return settings.database_url(getattr(arguments, "database", "default"), project)


@contextlib.contextmanager
def installed_engine(arguments: argparse.Namespace) -> Generator[Engine]:
    """The engine of the chosen database. Raises InstallError when Dever SQL is not in it."""
    url = database_url(arguments)
    with opened(url) as engine:
        if engine.version() is None:
            raise not_installed(url)
        yield engine


@contextlib.contextmanager
def opened(url: str, *, create: bool = False) -> Generator[Engine]:
    """The engine at `url`, closed afterwards. Only `create` makes a new SQLite file."""
    file = sqlite_file(url)
    if file is not None and not create and not file.exists():
        raise not_installed(url)
    engine = open_engine(url)
    try:
        yield engine
    finally:
        engine.close()


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for another kind of URL."""
    scheme, _, path = url.partition(":///")
    return Path(unquote(path)) if scheme == "sqlite" else None


def not_installed(url: str) -> InstallError:
    """The error of a database without Dever SQL."""
    shown = hide_credentials(url)
    return InstallError(
        f"Dever SQL is not installed in {shown}",
        hint=f"run: dever sql install '{shown}'",
    )
