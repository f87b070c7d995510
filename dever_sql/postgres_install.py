"""Installing and upgrading Dever SQL in a PostgreSQL database."""

from __future__ import annotations

import time
from typing import Final

from psycopg import errors

from .errors import InstallError, MissingRight
from .events import log_event
from .postgres_pool import Session
from .sql_files import install_script, schema_version, sql_directory, upgrade_scripts

PATIENCE: Final = 60.0
"""Seconds for which an upgrade tries again when another session holds a lock that it needs."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 8.0
"""Seconds between attempts: long, because each of them may hold up the workers for a second."""


def installed_version(session: Session) -> str | None:
    """The version in the session's database, None when there is none."""
    found = session.execute(
        "select pg_catalog.to_regprocedure('dever.version()') is not null"
    ).fetchone()
    if not found or not found[0]:
        return None
    row = session.execute("select dever.version()").fetchone()
    return None if row is None else row[0]


def install_lock() -> str:
    """The statements that let one installer at a time pass; `deploy.sql` runs the same."""
    return (sql_directory("postgresql") / "install_lock.sql").read_text(encoding="utf-8")


def install(session: Session) -> str:
    """Install, upgrade or do nothing, in one transaction under a lock; the version (R4.1).

    An upgrade waits for a lock only for a moment, because workers wait behind it, and is tried
    again for a minute. Raises InstallError after that or without the rights, SchemaVersion for
    an unknown version.
    """
    deadline = time.monotonic() + PATIENCE
    pause = _FIRST_PAUSE
    while True:
        try:
            return _attempt(session)
        except errors.InsufficientPrivilege as error:
            raise MissingRight(
                f"the role may not do that: {error.diag.message_primary}",
                hint=error.diag.message_hint
                or "install as the owner of the database, upgrade as who installed",
            ) from None
        except errors.DuplicateSchema as error:
            raise InstallError(
                f"{error.diag.message_primary}, and it is not Dever SQL's",
                hint="see whose it is; rename or drop it, or install in another database",
            ) from None
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            reason = error.diag.message_primary or "a lock is held"
            left = deadline - time.monotonic()
            if left < pause:
                raise InstallError(
                    f"gave up after {PATIENCE:.0f} s: {reason}",
                    hint="nothing was changed; try again later, or end that transaction",
                ) from None
        log_event(
            "warning",
            "the schema cannot be upgraded yet, trying again",
            because=reason,
            pause_s=pause,
            left_s=round(left),
        )
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _attempt(session: Session) -> str:
    brought = schema_version()
    with session.transaction():
        # A stricter isolation would not see what the installer before this one did.
        session.execute("set transaction isolation level read committed, read write")
        session.execute(install_lock().encode(), prepare=False)
        installed = installed_version(session)
        if installed is None:
            scripts = [install_script("postgresql")]
        else:
            scripts = upgrade_scripts("postgresql", installed)
        if installed is not None and scripts:
            _refuse_extension(session)
        for script in scripts:
            session.execute(script.encode(), prepare=False)
    return brought


def _refuse_extension(session: Session) -> None:
    row = session.execute(
        "select exists (select from pg_catalog.pg_extension where extname = 'dever')"
    ).fetchone()
    if row and row[0]:
        raise InstallError(
            "Dever SQL was installed here as an extension", hint="alter extension dever update"
        )
