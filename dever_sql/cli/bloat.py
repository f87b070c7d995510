"""What makes the tables grow beyond the work in them, and who keeps it from going away.

On PostgreSQL that is dead rows, which cannot be removed while anybody may still see them; on SQLite
a log that cannot be written back, and free pages.
"""

from __future__ import annotations

import os
import shlex
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dever_sql.engine import Engine
from dever_sql.postgres import PostgresEngine
from dever_sql.sqlite import SQLiteEngine
from dever_sql.sqlite_file import connect

from .diagnosis import Check

_MANY: Final = 10_000
"""Dead rows from which on who keeps them is worth a look; autovacuum begins with 20,000."""
_TOO_MANY: Final = 1_000_000
"""Dead rows that autovacuum should have removed, were it keeping up."""
_OLD_SECONDS: Final = 60.0
_OLD_TRANSACTIONS: Final = 10_000
"""How old a snapshot is when nothing says since when it is held."""
_LARGE_BYTES: Final = 64 * 1024 * 1024
"""Of the log of an SQLite file, which is cut to 16 MiB; and of the free pages in it."""

# Statistics and catalogues only, and no operator but pg_catalog's: the search_path is the caller's.
_TABLE: Final = """
select
    pg_catalog.pg_stat_get_live_tuples(t.oid),
    pg_catalog.pg_stat_get_dead_tuples(t.oid),
    pg_catalog.pg_total_relation_size(t.oid),
    pg_catalog.pg_has_role('pg_read_all_stats', 'usage'),
    pg_catalog.quote_ident(current_user)
from (select pg_catalog.to_regclass('dever.job')::pg_catalog.oid as oid) as t
"""

# Catalogue rows alone are held back by catalog_xmin. A vacuum's own snapshot holds back nothing. Of
# another role's session only the snapshot's age is visible without pg_read_all_stats.
_OLDEST: Final = """
select h.kind, h.name, h.about, h.since, h.active, h.age, pg_catalog.clock_timestamp()
from (
    select
        'session' as kind,
        a.pid::text as name,
        coalesce(a.application_name, pg_catalog.concat('role ', a.usename)) as about,
        a.xact_start as since,
        a.state operator(pg_catalog.=) 'active' as active,
        greatest(pg_catalog.age(a.backend_xmin), pg_catalog.age(a.backend_xid)) as age
    from pg_catalog.pg_stat_activity as a
    where a.pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid()
        and a.leader_pid is null
        and (
            a.datname operator(pg_catalog.=) pg_catalog.current_database()
            or a.backend_type operator(pg_catalog.=) 'walsender'
        )
        and not exists (
            select from pg_catalog.pg_stat_progress_vacuum as v
            where v.pid operator(pg_catalog.=) a.pid
        )
    union all
    select 'slot', s.slot_name, null, null, s.active, pg_catalog.age(s.xmin)
    from pg_catalog.pg_replication_slots as s
    union all
    select
        'prepared', pg_catalog.quote_literal(p.gid), p.owner, p.prepared, false,
        pg_catalog.age(p.transaction)
    from pg_catalog.pg_prepared_xacts as p
    where p.database operator(pg_catalog.=) pg_catalog.current_database()
) as h
where h.age is not null
order by h.age desc, h.kind, h.name
limit 1
"""


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who may still see the oldest rows of the database."""

    kind: str
    name: str
    about: str | None
    since: datetime | None
    active: bool | None
    age: int
    now: datetime

    @property
    def seconds(self) -> float | None:
        return None if self.since is None else (self.now - self.since).total_seconds()

    @property
    def old(self) -> bool:
        if self.seconds is not None:
            return self.seconds >= _OLD_SECONDS
        unused = self.kind == "slot" and not self.active
        return unused or self.age >= _OLD_TRANSACTIONS

    def __str__(self) -> str:
        duration = f"for {self.age} transactions"
        if self.seconds is not None:
            duration = f"for {self.seconds:.0f} s"
        if self.kind == "session":
            state = "active" if self.active else "idle in transaction"
            if self.active is None:
                state = "state not visible to this role"
            return f"pid {self.name} ({self.about or 'unknown program'}, {state}) {duration}"
        if self.kind == "slot":
            state = "in use" if self.active else "not in use"
            return f"replication slot {self.name} ({state}) {duration}"
        return f"prepared transaction {self.name} (of {self.about}) {duration}"

    @property
    def hint(self) -> str:
        if self.kind == "session" and self.active:
            return f"let its query end, or: select pg_cancel_backend({self.name})"
        if self.kind == "session":
            return (
                f"select pg_terminate_backend({self.name}); idle_in_transaction_session_timeout"
                " ends such sessions by itself"
            )
        if self.kind == "slot" and self.active:
            return "look for a long query on that standby, or set hot_standby_feedback = off there"
        if self.kind == "slot":
            return f"its standby is gone? select pg_drop_replication_slot('{self.name}')"
        return f"commit prepared {self.name}, or rollback prepared {self.name}"


def check_bloat(engine: Engine) -> Check:
    """Cheap at any size: statistics, no look at a row."""
    if isinstance(engine, PostgresEngine):
        return _dead_rows(engine)
    assert isinstance(engine, SQLiteEngine)
    return _file(engine)


def _dead_rows(engine: PostgresEngine) -> Check:
    live, dead, size, sees_all, role = engine.catalogue(_TABLE)[0]
    held = [_Holder(*row) for row in engine.catalogue(_OLDEST)]
    found = f"dever.job has {dead} dead rows to {live} live ones, {_megabytes(size)}"
    if dead >= _MANY and held and held[0].old:
        return Check("bloat", False, f"{found}; held back by {held[0]}", held[0].hint)
    hint = None
    if dead >= _MANY and not sees_all:
        hint = f"grant pg_read_all_stats to {role}, to see whether a transaction holds them back"
    elif dead >= _TOO_MANY and dead > live:
        hint = "vacuum dever.job; and see why autovacuum does not keep up with it"
    return Check("bloat", dead < _TOO_MANY or dead <= live, found, hint)


def _file(engine: SQLiteEngine) -> Check:
    # A connection, not the file itself: to close that would drop the locks of this process on it.
    with closing(connect(engine.path, busy_seconds=5)) as connection:
        pages, free, page_size = (
            int(connection.execute(f"pragma {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        try:
            log = os.stat(f"{os.path.realpath(engine.path)}-wal").st_size
        except OSError:
            log = 0
    found = (
        f"{_megabytes(pages * page_size)}, of it {_megabytes(free * page_size)} free;"
        f" log {_megabytes(log)}"
    )
    if log > _LARGE_BYTES:
        hint = (
            "a program keeps a transaction open: end it;"
            " the log is cut when everything in it has been written back"
        )
        return Check("bloat", False, found, hint)
    if free * page_size > _LARGE_BYTES and free * 2 > pages:
        path = shlex.quote(engine.path)
        hint = f"new jobs use it again; for the disk to get it back: sqlite3 {path} vacuum"
        return Check("bloat", False, found, hint)
    return Check("bloat", True, found)


def _megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MiB"
