"""An upgrade waits for a lock only for a moment, tries again, and says who holds it (R9.1)."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from upgrade.databases import FIRST, ROOT, schema_upgrade, sqlite_database
from upgrade.ways import REPEATABLE, Done, command_line, deploy, environment, install_schema, psql

from dever_sql import postgres_install, sqlite_file
from dever_sql.database import open_engine
from dever_sql.errors import DatabaseUnavailable, InstallError
from dever_sql.sql_files import install_script, schema_version, upgrade_scripts
from dever_sql.sqlite import SQLiteEngine

VERSION = schema_version()
LOCK = "select from dever.installation for update /* secret */"
Session = psycopg.Connection[Any]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_install, "PATIENCE", 0.0)


def holder(url: str) -> Session:
    """Somebody who is in the way, in an open transaction."""
    session = psycopg.connect(url, application_name="nightly report")
    session.execute(LOCK)
    return session


def version(url: str) -> str | None:
    engine = open_engine(url)
    try:
        return engine.version()
    finally:
        engine.close()


@pytest.mark.req("R9.1")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "way",
    [deploy, command_line, lambda url: install_schema(url, "--wait", "0")],
    ids=["deploy.sql", "dever sql", "install-schema"],
)
def test_who_holds_the_lock_is_named(old_url: str, way: Callable[[str], Done]) -> None:
    with holder(old_url) as session:
        done = way(old_url)
        pid = session.info.backend_pid
    assert done.code == 3
    expected = (
        f"dever.installation is in use by pid {pid} (nightly report, idle in transaction, for "
    )
    assert expected in done.said
    assert "secret" not in done.said
    assert version(old_url) == FIRST


@pytest.mark.req("R9.1", "R9.3")
@pytest.mark.usefixtures("impatient")
def test_a_holder_that_may_not_be_looked_at_is_named_all_the_same(no_url: str) -> None:
    with psycopg.connect(no_url, autocommit=True) as admin:
        admin.execute("create role dever_upgrade_plain login")
        try:
            database = sql.Identifier(admin.info.dbname)
            admin.execute(
                sql.SQL("grant create on database {} to dever_upgrade_plain").format(database)
            )
            plain = no_url.replace("//postgres@", "//dever_upgrade_plain@")
            with psycopg.connect(plain) as owner:
                owner.execute(install_script("postgresql", FIRST).encode())
            with holder(no_url) as session:
                said = command_line(plain).said
                assert f"pid {session.info.backend_pid} (nightly report, state not visible" in said
        finally:
            admin.execute("drop owned by dever_upgrade_plain cascade")
            admin.execute("drop role dever_upgrade_plain")


@pytest.mark.req("R9.1")
def test_it_is_tried_again_until_the_lock_is_free(
    old_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = holder(old_url)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        session.close()

    monkeypatch.setattr(postgres_install.time, "sleep", sleep)
    engine = open_engine(old_url)
    with caplog.at_level(logging.WARNING, logger="dever"):
        assert engine.install() == VERSION
    engine.close()
    assert pauses == [1.0]
    (line,) = caplog.messages
    assert "trying again" in line
    assert "nightly report" in line


@pytest.mark.req("R9.1")
def test_pauses_grow_and_patience_ends(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    class Time:
        monotonic = staticmethod(lambda: now)

    Time.sleep = staticmethod(sleep)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(postgres_install, "time", Time)
    monkeypatch.setattr(postgres_install, "PATIENCE", 20.0)
    engine = open_engine(old_url)
    with holder(old_url), pytest.raises(InstallError, match="gave up after 20 s"):
        engine.install()
    engine.close()
    assert pauses == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.req("R9.1")
def test_install_schema_tries_again(old_url: str) -> None:
    session = holder(old_url)
    command = [ROOT / "scripts" / "install-schema", old_url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        session.close()
        assert running.wait(timeout=60) == 0
    assert "nightly report" in line
    assert "trying again in 1 s" in line
    assert version(old_url) == VERSION


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("other", REPEATABLE)
def test_two_upgrades_at_once(old_url: str, other: str) -> None:
    """Whoever comes second finds nothing to do."""
    at_once = threading.Barrier(2)

    def run(way: Callable[[str], Done]) -> Done:
        at_once.wait()
        return way(old_url)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, [deploy, REPEATABLE[other]]))
    assert [each.code for each in done] == [0, 0], done
    assert version(old_url) == VERSION


@pytest.mark.req("R4.1")
def test_the_second_upgrade_sees_what_the_first_one_did(old_url: str) -> None:
    """Also in a database where transactions are stricter by default."""
    with psycopg.connect(old_url, autocommit=True) as session:
        session.execute(
            f"alter database {session.info.dbname}"
            " set default_transaction_isolation = 'serializable'".encode()
        )
    with psycopg.connect(old_url) as first, ThreadPoolExecutor(1) as pool:
        first.execute("set transaction isolation level read committed")
        first.execute(postgres_install.install_lock().encode())
        second = pool.submit(deploy, old_url)
        waiting = "select from pg_locks where locktype = 'advisory' and not granted"
        while not first.execute(waiting).fetchall():
            assert not second.done()
        for script in upgrade_scripts("postgresql", FIRST):
            first.execute(script.encode())
        first.commit()
        done = second.result(timeout=30)
    assert done.code == 0
    assert "already installed" in done.said


# An upgrade that changes a view and a table


def upgrade_with_locks() -> str:
    """One that changes nothing of the first release but these two."""
    old = install_script("postgresql", FIRST)
    new = old.replace(
        "create view dever.locks as\nselect", "create view dever.locks as\nselect distinct"
    ).replace(f"values ('{FIRST}',", f"values ('{VERSION}',")
    assert "select distinct" in new
    script: str = schema_upgrade.postgres_upgrade(
        schema_upgrade.Change(
            before=FIRST,
            after=VERSION,
            old_script=old,
            new_script=new,
            by_hand=(
                "-- Nothing but the lock matters here.\n-- lock: access exclusive on dever.lock\n"
                "alter table dever.lock set (fillfactor = 90);\n"
            ),
            head=HEAD,
        )
    )
    return script


HEAD = (ROOT / "sql" / "upgrade" / "head.sql").read_text(encoding="utf-8")


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("relation", ["dever.lock", "dever.locks"])
def test_a_reader_is_in_the_way_of_what_it_reads(old_url: str, relation: str) -> None:
    with psycopg.connect(old_url, application_name="pg_dump") as reader:
        reader.execute(f"lock table only {relation} in access share mode".encode())
        done = psql(old_url, "--single-transaction", given=upgrade_with_locks())
    assert done.code == 3
    # A view is locked together with the tables below it.
    assert "is in use by pid" in done.said
    assert "(pg_dump, idle in transaction, for" in done.said
    assert version(old_url) == FIRST


@pytest.mark.req("R9.1")
def test_locks_are_taken_together_or_not_at_all(old_url: str) -> None:
    """The view before the table, and what was had already is given back."""
    with psycopg.connect(old_url) as reader, psycopg.connect(old_url) as upgrade:
        reader.execute("select from dever.lock")
        with pytest.raises(psycopg.errors.LockNotAvailable, match="dever\\.lock is in use"):
            upgrade.execute(upgrade_with_locks().encode())
        reader.execute("select from dever.locks")


@pytest.mark.req("R9.1")
def test_work_goes_on_while_an_upgrade_waits(old_url: str) -> None:
    engine = open_engine(old_url)
    engine.send("mail", "1")
    with psycopg.connect(old_url) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("select from dever.locks")
        upgrading = pool.submit(psql, old_url, "--single-transaction", given=upgrade_with_locks())
        waiting = "select from pg_locks where not granted and locktype = 'relation'"
        while not reader.execute(waiting).fetchall():
            assert not upgrading.done(), upgrading.result().said
        assert len(engine.claim("mail", "w", 1)) == 1
        assert upgrading.result(timeout=30).code == 3
    engine.close()


@pytest.mark.req("R9.1")
def test_with_its_locks_it_upgrades(old_url: str) -> None:
    done = psql(old_url, "--single-transaction", given=upgrade_with_locks())
    assert done.code == 0, done.said
    with psycopg.connect(old_url) as session:
        view = session.execute("select pg_get_viewdef('dever.locks'::regclass)").fetchone()
        options = session.execute(
            "select reloptions from pg_class where oid = 'dever.locks'::regclass"
        ).fetchone()
    assert view is not None
    assert "DISTINCT" in view[0]
    assert options == (None,)


# SQLite


@pytest.mark.req("R4.1")
def test_a_callers_transaction_is_waited_for_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sqlite_database(tmp_path / "jobs.db", FIRST)
    user = sqlite3.connect(path, isolation_level=None)
    user.execute("create table mine (n integer)")
    user.execute("begin immediate")
    user.execute("insert into mine values (1)")
    monkeypatch.setattr(sqlite_file, "_PATIENCE", 0.1)
    engine = SQLiteEngine(path)
    with pytest.raises(DatabaseUnavailable, match="locked"):
        engine.install()
    assert user.in_transaction
    user.execute("rollback")
    assert engine.install() == VERSION
    assert user.execute("select count(*) from mine").fetchone() == (0,)
    user.close()
    engine.close()


@pytest.mark.req("R4.1")
def test_two_upgrades_of_a_file_at_once(tmp_path: Path) -> None:
    path = sqlite_database(tmp_path / "jobs.db", FIRST)
    at_once = threading.Barrier(4)

    def run(_: int) -> str:
        engine = SQLiteEngine(path)
        at_once.wait()
        try:
            return engine.install()
        finally:
            engine.close()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [VERSION] * 4


@pytest.mark.req("R4.1")
def test_a_program_that_has_the_file_open_notices_nothing(tmp_path: Path) -> None:
    path = sqlite_database(tmp_path / "jobs.db", FIRST)
    worker, operator = SQLiteEngine(path), SQLiteEngine(path)
    worker.send("mail", "1")
    (claimed,) = worker.claim("mail", "w", 1)
    assert operator.install() == VERSION
    assert [verdict.ok for verdict in worker.complete([claimed.id], [claimed.token])] == [True]
    worker.close()
    operator.close()
