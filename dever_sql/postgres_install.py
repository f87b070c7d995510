"""Installing and upgrading Dever SQL in a PostgreSQL database: which files, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .errors import InstallError, SchemaVersion
from .postgres_pool import Session
from .sql_files import schema_version, sql_directory

INSTALL_LOCK: Final = 1_145_394_770
"""The advisory lock of everybody who installs; `deploy.sql` takes the same."""


def installed_version(session: Session) -> str | None:
    """The version in the session's database, None when there is none."""
    found = session.execute(
        "select pg_catalog.to_regprocedure('dever.version()') is not null"
    ).fetchone()
    if not found or not found[0]:
        return None
    row = session.execute("select dever.version()").fetchone()
    return None if row is None else row[0]


def install(session: Session) -> str:
    """Install, upgrade or do nothing, in one transaction under a lock; the version (R4.1)."""
    directory = sql_directory("postgresql")
    brought = schema_version()
    with session.transaction():
        session.execute("select pg_catalog.pg_advisory_xact_lock(%s::bigint)", [INSTALL_LOCK])
        installed = installed_version(session)
        if installed != brought:
            if installed is not None:
                _refuse_extension(session)
            for path in _scripts(directory, installed, brought):
                session.execute(path.read_bytes(), prepare=False)
    return brought


def _scripts(directory: Path, installed: str | None, brought: str) -> list[Path]:
    """The files that lead from the installed version to the one this package brings."""
    if installed is None:
        return [directory / f"dever--{brought}.sql"]
    steps: dict[str, tuple[str, Path]] = {}
    for path in directory.glob("dever--*--*.sql"):
        _, before, after = path.stem.split("--")
        steps[before] = (after, path)
    found: list[Path] = []
    version = installed
    while version != brought:
        if version not in steps or len(found) > len(steps):
            raise SchemaVersion(
                f"version {installed} of Dever SQL is installed, and this package, which brings"
                f" {brought}, does not know it",
                hint="update dever-sql to at least the installed version",
            )
        version, path = steps[version]
        found.append(path)
    return found


def _refuse_extension(session: Session) -> None:
    row = session.execute(
        "select exists (select from pg_catalog.pg_extension where extname = 'dever')"
    ).fetchone()
    if row and row[0]:
        raise InstallError(
            "Dever SQL was installed here as an extension", hint="alter extension dever update"
        )
