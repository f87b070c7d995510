"""`dever sql`: print, install, upgrade, check, contracts (R9.1)."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from dever_sql import database
from dever_sql.credentials import hide_credentials
from dever_sql.declare import all_jobs
from dever_sql.engine import Engine
from dever_sql.errors import InstallError, InvalidArgument, SchemaVersion
from dever_sql.postgres import PostgresEngine
from dever_sql.postgres_install import install_lock
from dever_sql.settings import find_settings
from dever_sql.sql_files import install_script, schema_version, upgrade_scripts

from .output import Column, json_option, print_json, print_table, wants_json
from .parser import Commands
from .place import not_installed, opened, sqlite_file
from .program import Program, load_program, use_settings

# A registration without a worker is never live; the verb wants a duration all the same.
_ALIVE = timedelta(minutes=1)


def add_command(commands: Commands) -> None:
    """Add `dever sql` and its subcommands."""
    sql = commands.add(
        "sql",
        help="print, install and check the database schema; register a program's jobs",
        examples=(
            "  dever sql print > dever.sql                      for a pipeline, needs no server\n"
            "  dever sql print --from 0.1.0 > upgrade.sql\n"
            "  dever sql install postgresql://app@localhost/app\n"
            "  dever sql check sqlite:///app.db\n"
            "  dever sql contracts shop postgresql://app@localhost/app"
        ),
        run=None,
    )
    actions = Commands(sql, title="actions")
    show = actions.add(
        "print",
        help="write the install or upgrade script to standard output; needs no server",
        description=(
            "Write the script that installs Dever SQL, or with --from the one that upgrades it:"
            " that is one transaction, and refuses a database that has another version."
        ),
        examples=(
            "  dever sql print | psql --single-transaction -v ON_ERROR_STOP=1 -d app\n"
            "  dever sql print --from 0.1.0 | psql -v ON_ERROR_STOP=1 -d app\n"
            "  dever sql print --engine sqlite | sqlite3 -bail app.db"
        ),
        run=_print,
    )
    show.add_argument(
        "--engine",
        choices=("postgresql", "sqlite"),
        default="postgresql",
        help="which database (default: postgresql)",
    )
    show.add_argument(
        "--from",
        metavar="VERSION",
        dest="before",
        help="upgrade from this version (default: install)",
    )
    show.add_argument(
        "--to", metavar="VERSION", dest="after", help="to this version (default: this program's)"
    )
    for name, help in (
        ("install", "install Dever SQL, upgrade an older one, or do nothing where it is there"),
        ("upgrade", "bring an installed Dever SQL to this program's version"),
    ):
        action = actions.add(
            name,
            help=help,
            examples=(
                f"  dever sql {name} sqlite:///app.db\n"
                f"  dever sql {name} postgresql://app@localhost/app\n"
                f"  dever sql {name} postgresql://app@localhost/app --dry-run"
            ),
            run=_install,
            parents=(json_option(),),
        )
        action.add_argument("url", metavar="URL")
        action.add_argument(
            "--dry-run", action="store_true", help="print the SQL that would be run; change nothing"
        )
        action.set_defaults(action=name)
    check = actions.add(
        "check",
        help="say which version is installed; exit 0 this one, 1 another, 3 none",
        examples="  dever sql check postgresql://app@localhost/app --json",
        run=_check,
        parents=(json_option(),),
    )
    check.add_argument("url", metavar="URL")
    contracts = actions.add(
        "contracts",
        help="register a program's jobs, so that SQL can enqueue before a worker ran",
        description=(
            "Register the jobs of a program in the database at URL. Without a URL: print the SQL"
            " that does it."
        ),
        examples=(
            "  dever sql contracts tasks.py sqlite:///tasks.db\n"
            "  dever sql contracts shop | psql -v ON_ERROR_STOP=1 -d app"
        ),
        run=_contracts,
        parents=(json_option(),),
    )
    contracts.add_argument("module", metavar="FILE_OR_MODULE")
    contracts.add_argument("url", metavar="URL", nargs="?")


def _print(arguments: argparse.Namespace) -> int:
    after = arguments.after or schema_version()
    try:
        script = _script(arguments.engine, arguments.before, after)
    except FileNotFoundError:
        raise InvalidArgument(
            f"this program does not bring Dever SQL {after}, but {schema_version()}",
            hint="leave --to away, or use the release of dever-sql that brings it",
        ) from None
    except SchemaVersion:
        script = ""
    if not script:
        raise InvalidArgument(
            f"there is no upgrade from {arguments.before} to {after} here",
            hint="dever sql check URL says which version is installed",
        )
    sys.stdout.write(script)
    return 0


def _script(kind: Literal["postgresql", "sqlite"], before: str | None, after: str) -> str:
    """What leads from `before` (None: nothing) to `after`; empty when they are the same."""
    scripts = [install_script(kind, after)]
    if before is not None:
        scripts = upgrade_scripts(kind, before, after)
    if not scripts:
        return ""
    if kind == "sqlite":
        # psql has --single-transaction, the sqlite3 shell has not (but stop it with -bail).
        return "\n".join(("begin immediate;\n", *scripts, "commit;\n"))
    if before is None:
        return scripts[0]
    begin = "begin transaction isolation level read committed read write;\n"
    return "\n".join((begin, install_lock(), *scripts, "commit;\n"))


def _install(arguments: argparse.Namespace) -> int:
    new = arguments.action == "install"
    if arguments.dry_run:
        return _dry_run(arguments.url, new)
    with opened(arguments.url, create=new) as engine:
        before = engine.version()
        if before is None and not new:
            raise not_installed(arguments.url)
        version = engine.install()
    if wants_json(arguments):
        print_json({"before": before, "version": version})
    elif before == version:
        print(f"Dever SQL {version} is already installed; nothing to do")
    elif before is None:
        print(f"installed Dever SQL {version} in {hide_credentials(arguments.url)}")
    else:
        print(f"upgraded Dever SQL {before} to {version} in {hide_credentials(arguments.url)}")
    return 0


def _dry_run(url: str, new: bool) -> int:
    """Print what `install` (`new`) or `upgrade` would run."""
    file = sqlite_file(url)
    kind: Literal["postgresql", "sqlite"] = "postgresql" if file is None else "sqlite"
    installed: str | None = None
    if file is None or file.exists():
        with opened(url) as engine:
            installed = engine.version()
            if installed not in (None, schema_version()) and is_extension(engine):
                raise InstallError(
                    "Dever SQL was installed here as an extension",
                    hint="alter extension dever update",
                )
    if installed is None and not new:
        raise not_installed(url)
    script = _script(kind, installed, schema_version())
    sys.stdout.write(script or f"-- Dever SQL {installed} is already installed, nothing to do\n")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    file = sqlite_file(arguments.url)
    installed: str | None = None
    extension = False
    if file is None or file.exists():
        with opened(arguments.url) as engine:
            installed = engine.version()
            extension = installed is not None and is_extension(engine)
    expected = schema_version()
    if wants_json(arguments):
        print_json({"installed": installed, "expected": expected, "ok": installed == expected})
    elif installed == expected:
        print(f"Dever SQL {installed} is installed, as this program expects")
    elif installed is None:
        print(
            "Dever SQL is not installed\n"
            f"hint: dever sql install '{hide_credentials(arguments.url)}'",
            file=sys.stderr,
        )
    else:
        hint = version_hint(
            installed, expected, f"'{hide_credentials(arguments.url)}'", extension=extension
        )
        print(
            f"Dever SQL {installed} is installed, this program expects {expected}\nhint: {hint}",
            file=sys.stderr,
        )
    if installed is None:
        return 3
    return 0 if installed == expected else 1


def is_extension(engine: Engine) -> bool:
    """Whether Dever SQL is an extension there, which only its own command upgrades."""
    if not isinstance(engine, PostgresEngine):
        return False
    return engine.catalogue(
        "select exists (select from pg_catalog.pg_extension as e"
        " where e.extname operator(pg_catalog.=) 'dever')"
    )[0][0]


def version_hint(installed: str, expected: str, url: str, *, extension: bool) -> str:
    """What to do about a schema of another version than the program's."""
    if _numbers(installed) > _numbers(expected):
        return f"update dever-sql to at least {installed}"
    if extension:
        return "alter extension dever update"
    return f"dever sql upgrade {url}"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", version)]


def _contracts(arguments: argparse.Namespace) -> int:
    program = load_program(arguments.module)
    jobs = all_jobs()
    if not jobs:
        raise InvalidArgument(
            f"{program.name} declares no job", hint="declare one with @jobs.job(retry=, timeout=)"
        )
    contracts = [job.contract(**_backoff(program)) for job in jobs]
    if arguments.url is None:
        print(_register_statement(contracts))
        return 0
    with opened(arguments.url, create=True) as engine:
        if engine.version() is None:
            if engine.kind != "sqlite":
                raise not_installed(arguments.url)
            engine.install()
        registered = engine.register(None, contracts, _ALIVE)
    if wants_json(arguments):
        print_json(registered)
    else:
        columns: Sequence[Column] = (
            ("JOB", lambda row: row.target),
            ("CONTRACT", lambda row: row.contract_id),
            ("FINGERPRINT", lambda row: row.fingerprint[:16]),
        )
        print_table(registered, columns, empty="no jobs")
    return 0


def _register_statement(contracts: Sequence[dict[str, Any]]) -> str:
    """The call for psql; a dollar tag that the JSON does not hold quotes it."""
    text = json.dumps(contracts, indent=4)
    tag = "$contracts$"
    while tag in text:
        tag = f"$contracts_{secrets.token_hex(4)}$"
    return (
        "select target, contract_id\n"
        f"from dever.register(null, {tag}{text}{tag}::jsonb, interval '1 minute');"
    )


def _backoff(program: Program) -> dict[str, Any]:
    """The backoff of the program's settings; the documented defaults where it has none."""
    if program.script is None and find_settings(Path.cwd()) is None:
        return {}
    use_settings(program, None)
    return database.backoff_settings()
