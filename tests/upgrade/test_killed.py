"""Killed at any statement of an install or an upgrade: it is the old schema or the new one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import SETTINGS, Cluster, running_cluster
from upgrade.catalogue import snapshot
from upgrade.databases import FIRST, ROOT, Databases, sql_statements, sqlite_database
from upgrade.sqlite_catalogue import sqlite_snapshot
from upgrade.ways import deploy, environment

from dever_sql import sqlite_file
from dever_sql.engine import Statement
from dever_sql.sql_files import install_script, schema_version, upgrade_scripts
from dever_sql.sqlite import SQLiteEngine
from dever_sql.sqlite_file import Rows

VERSION = schema_version()
Session = psycopg.Connection[Any]

CASES = {"install": None, "upgrade": FIRST}
"""From which version."""

# The text of everything that either script may change; quick, for hundreds of looks.
STATE = """
select pg_catalog.md5(pg_catalog.string_agg(what, ',' order by what)) from (
    select p.oid::regprocedure || p.prosrc || coalesce(p.proacl::text, '') as what
    from pg_catalog.pg_proc as p join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = 'dever'
    union all
    select c.relname || coalesce(c.relacl::text, '')
    from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = 'dever'
    union all
    select d.objoid || d.description from pg_catalog.pg_description as d where d.objoid >= 16384
) as s
"""


def scripts(before: str | None) -> list[str]:
    """The statements of the install, or of the upgrade."""
    texts = (
        [install_script("postgresql")] if before is None else upgrade_scripts("postgresql", before)
    )
    return [each.text for text in texts for each in sql_statements.postgres_statements(text)]


def moments(before: str | None) -> list[int]:
    """After how many statements: after each one of an upgrade; of an install, whose hundreds of
    functions and comments are alike, after some of these and each of the rest."""
    statements = scripts(before)
    if before is not None:
        return list(range(1, len(statements) + 1))
    alike = ("create function", "comment on")
    return [
        number
        for number, text in enumerate(statements, start=1)
        if not text.startswith(alike) or number % 25 == 0
    ]


def state(session: Session) -> tuple[Any, ...]:
    (digest,) = session.execute(STATE.encode()).fetchone() or (None,)
    if session.execute("select to_regclass('dever.installation')").fetchone() == (None,):
        return digest, None
    return digest, session.execute("select version from dever.installation").fetchone()


def url_of(request: pytest.FixtureRequest, before: str | None) -> str:
    url: str = request.getfixturevalue("no_url" if before is None else "old_url")
    return url


def gone(watcher: Session, pid: int) -> bool:
    return not watcher.execute("select from pg_stat_activity where pid = %s", [pid]).fetchall()


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("case", CASES)
def test_client_that_vanishes(request: pytest.FixtureRequest, case: str) -> None:
    url = url_of(request, CASES[case])
    statements = scripts(CASES[case])
    with psycopg.connect(url, autocommit=True) as watcher:
        before = state(watcher)
        for number in moments(CASES[case]):
            victim = psycopg.connect(url)
            victim.execute(";".join(statements[:number]).encode())
            pid = victim.info.backend_pid
            victim.pgconn.finish()
            while not gone(watcher, pid):
                pass
            assert state(watcher) == before, statements[number - 1]
    assert deploy(url).code == 0


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("case", CASES)
def test_backend_that_is_terminated(request: pytest.FixtureRequest, case: str) -> None:
    url = url_of(request, CASES[case])
    statements = scripts(CASES[case])
    with psycopg.connect(url, autocommit=True) as watcher:
        before = state(watcher)
        for number in moments(CASES[case]):
            victim = psycopg.connect(url, autocommit=True)
            pid = victim.info.backend_pid
            # One message is one transaction; it is in the middle of it when it is terminated.
            running = [*statements[:number], "select pg_sleep(600)"]
            victim.pgconn.send_query(";".join(running).encode())
            sleeping = "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
            while not watcher.execute(sleeping, [pid]).fetchall():
                assert not gone(watcher, pid), statements[number - 1]
            watcher.execute("select pg_terminate_backend(%s, 10000)", [pid])
            victim.close()
            assert state(watcher) == before, statements[number - 1]
    assert deploy(url).code == 0


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("case", CASES)
def test_psql_that_is_killed_while_it_waits_for_a_lock(
    request: pytest.FixtureRequest, case: str
) -> None:
    url = url_of(request, CASES[case])
    command = ["psql", "-X", "-q", "-f", str(ROOT / "sql" / "deploy.sql"), url]
    with psycopg.connect(url, autocommit=True) as watcher:
        before = snapshot(watcher)
        watcher.execute("select pg_advisory_lock(1145394770)")
        waiting = "select pid from pg_locks where locktype = 'advisory' and not granted"
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        ) as psql:
            while not (found := watcher.execute(waiting).fetchall()):
                assert psql.poll() is None
            psql.kill()
        watcher.execute("select pg_advisory_unlock(1145394770)")
        while not gone(watcher, found[0][0]):
            pass
        assert snapshot(watcher) == before
    assert deploy(url).code == 0


@pytest.fixture(scope="module")
def fragile() -> Iterator[tuple[Cluster, Databases]]:
    """A server of this module alone: it is stopped as by a power cut."""
    # What was committed is there afterwards; the other tests do without.
    with running_cluster({**SETTINGS, "synchronous_commit": "on"}) as cluster:
        yield cluster, Databases(cluster)


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("case", CASES)
def test_server_that_stops_at_once(fragile: tuple[Cluster, Databases], case: str) -> None:
    cluster, databases = fragile
    if cluster.data is None:
        pytest.skip("an outside server is not ours to stop")
    url = databases.fresh("dever_fragile", CASES[case])
    statements = scripts(CASES[case])
    with psycopg.connect(url, autocommit=True) as watcher:
        before = snapshot(watcher)
    for number in sorted({1, len(statements) // 2, len(statements)}):
        victim = psycopg.connect(url)
        victim.execute(";".join(statements[:number]).encode())
        cluster.restart("immediate")
        victim.close()
        with psycopg.connect(url, autocommit=True) as watcher:
            assert snapshot(watcher) == before
    assert deploy(url).code == 0
    cluster.restart("immediate")
    with psycopg.connect(url, autocommit=True) as watcher:
        assert state(watcher)[1] == (VERSION,)


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_seen_of_any_statement_before_the_commit(
    request: pytest.FixtureRequest, case: str
) -> None:
    url = url_of(request, CASES[case])
    with psycopg.connect(url) as installer, psycopg.connect(url, autocommit=True) as other:
        before = state(other)
        for statement in scripts(CASES[case]):
            installer.execute(statement.encode())
            assert state(other) == before, statement
        installer.commit()
        assert state(other)[1] == (VERSION,)


# SQLite


def killed_upgrade(path: Path, deadly: int) -> None:
    count = 0
    original = sqlite_file.execute

    def counting(connection: sqlite3.Connection, statement: Statement) -> Rows:
        nonlocal count
        count += 1
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(connection, statement)

    sqlite_file.execute = counting
    SQLiteEngine(path).install()


def sqlite_state(path: Path) -> tuple[list[str], list[Any]]:
    connection = sqlite3.connect(path)
    try:
        versions = connection.execute("select version from dever_installation").fetchall()
        return sqlite_snapshot(connection), versions
    finally:
        connection.close()


@pytest.mark.req("R4.1")
def test_process_that_is_killed_while_it_upgrades_a_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    new = sqlite_state(sqlite_database(tmp_path / "new.db", VERSION))
    path = sqlite_database(tmp_path / "jobs.db", FIRST)
    old = sqlite_state(path)
    deadly = 0
    while sqlite_state(path) == old:
        deadly += 1
        process = context.Process(target=killed_upgrade, args=(path, deadly))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
    assert process.exitcode == 0
    assert sqlite_state(path) == new
    # The two looks at what is installed, and at least one statement.
    assert deadly > 3
