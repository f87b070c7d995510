"""`dever doctor` on a real server: what the role may do, and who keeps dead rows (R9.3, R9.4)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hostile_path import build_hostile_schema

from dever_sql.cli import bloat, main
from dever_sql.postgres import PostgresEngine
from dever_sql.sql_files import sql_directory
from dever_sql.sqlite import SQLiteEngine

ROLE = "dever_doctor_patient"
ROLES = (sql_directory("postgresql") / "roles.sql").read_text(encoding="utf-8")

Doctor = Callable[..., dict[str, dict[str, Any]]]
Session = psycopg.Connection[Any]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs it on a URL; its checks by name. The exit code has to say whether all are ok."""

    def doctor(url: str) -> dict[str, dict[str, Any]]:
        code = main(["doctor", "--url", url, "--json"])
        checks = json.loads(capsys.readouterr().out)
        assert code == (0 if all(check["ok"] for check in checks) else 1)
        return {check["check"]: check for check in checks}

    return doctor


@pytest.fixture
def patient(pg_url: str, connect: Callable[..., Session]) -> Iterator[str]:
    """The URL of a role that may log in and nothing else; the roles of roles.sql are there."""
    session = connect()
    session.execute(ROLES.encode())
    session.execute(f"create role {ROLE} login")
    yield pg_url.replace("//postgres@", f"//{ROLE}@")
    session.execute(f"drop owned by {ROLE}")
    session.execute(f"drop role {ROLE}")


def grant(session: Session, *rights: str) -> None:
    for right in rights:
        session.execute(f"grant dever_{right} to {ROLE}")


# Rights


@pytest.mark.req("R9.3")
def test_the_owner_has_every_right(pg_url: str, doctor: Doctor):
    check = doctor(pg_url)["rights"]
    assert check["ok"]
    assert check["found"] == "postgres has enqueue, worker, observe, admin"
    assert check["hint"] is None


@pytest.mark.req("R9.3")
@pytest.mark.parametrize(
    ("rights", "found", "missing"),
    [
        (["observe"], "observe; not enqueue, worker, admin", "enqueue, dever_worker, dever_admin"),
        (["worker"], "enqueue, worker, observe; not admin", "admin"),
        (["enqueue", "observe"], "enqueue, observe; not worker, admin", "worker, dever_admin"),
    ],
)
def test_missing_rights_are_named_with_their_grants(
    patient: str,
    connect: Callable[..., Session],
    doctor: Doctor,
    rights: list[str],
    found: str,
    missing: str,
):
    grant(connect(), *rights)
    checks = doctor(patient)
    assert checks["rights"]["ok"]
    assert checks["rights"]["found"] == f"{ROLE} has {found}"
    assert checks["rights"]["hint"] == f"grant dever_{missing} to {ROLE} (those it needs)"
    assert checks["dead jobs"]["ok"]


@pytest.mark.req("R9.3")
def test_the_grant_of_the_hint_gives_the_right(
    patient: str, connect: Callable[..., Session], doctor: Doctor
):
    session = connect()
    grant(session, "observe")
    statement = doctor(patient)["rights"]["hint"].partition(" (")[0]
    session.execute(statement)
    assert doctor(patient)["rights"]["found"] == f"{ROLE} has enqueue, worker, observe, admin"


@pytest.mark.req("R9.3")
def test_without_the_right_to_observe_it_says_so_and_looks_at_the_rest(
    patient: str, connect: Callable[..., Session], doctor: Doctor
):
    grant(connect(), "enqueue")
    checks = doctor(patient)
    assert not checks["rights"]["ok"]
    assert "needs observe" in checks["rights"]["hint"]
    assert list(checks) == ["version", "rights", "clock", "bloat"]


@pytest.mark.req("R9.3")
def test_without_the_roles_the_hint_is_to_make_them(
    pg_url: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
):
    read = PostgresEngine.catalogue
    monkeypatch.setattr(
        PostgresEngine,
        "catalogue",
        lambda engine, query: (
            [("shop", True, False, True, False, True, False, False, False)]
            if "to_regrole" in query
            else read(engine, query)
        ),
    )
    hint = doctor(pg_url)["rights"]["hint"]
    assert hint == (
        "run sql/roles.sql as the owner, then: grant dever_admin to shop (those it needs)"
    )


# Dead rows


@pytest.fixture
def many_dead_rows(
    connect: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Call it: 100 dead rows then count as many, and a transaction is old at once."""
    monkeypatch.setattr(bloat, "_MANY", 100)
    monkeypatch.setattr(bloat, "_OLD_SECONDS", 0.0)

    def make() -> None:
        session = connect()
        session.execute("select dever.send_many('mail', array_fill('1'::jsonb, array[100]))")
        session.execute("select dever.cancel(array(select id from dever.jobs))")
        session.execute("select pg_stat_force_next_flush()")

    return make


@pytest.mark.req("R9.4")
def test_few_dead_rows_are_fine_whoever_reads(
    pg_url: str, connect: Callable[..., Session], doctor: Doctor
):
    reader = connect("nightly report", autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("select 1")
    assert doctor(pg_url)["bloat"]["ok"]


@pytest.mark.req("R9.4")
def test_an_idle_transaction_that_keeps_dead_rows_is_named(
    pg_url: str,
    connect: Callable[..., Session],
    doctor: Doctor,
    many_dead_rows: Callable[[], None],
):
    reader = connect("nightly report", autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("select 1")
    many_dead_rows()
    check = doctor(pg_url)["bloat"]
    pid = reader.info.backend_pid
    assert not check["ok"]
    assert "has 100 dead rows to 0 live ones" in check["found"]
    assert f"held back by pid {pid} (nightly report, idle in transaction) for" in check["found"]
    assert check["hint"].startswith(f"select pg_terminate_backend({pid});")


@pytest.mark.req("R9.4")
def test_a_long_query_that_keeps_dead_rows_is_named(
    pg_url: str,
    connect: Callable[..., Session],
    doctor: Doctor,
    many_dead_rows: Callable[[], None],
):
    reader = connect("nightly report")
    reader.pgconn.send_query(b"select pg_sleep(300)")
    watch = connect()
    pid = reader.info.backend_pid
    look = "select from pg_stat_activity where pid = %s and backend_xmin is not null"
    while not watch.execute(look, [pid]).fetchall():
        pass
    many_dead_rows()
    check = doctor(pg_url)["bloat"]
    assert f"pid {pid} (nightly report, active)" in check["found"]
    assert f"select pg_cancel_backend({pid})" in check["hint"]


@pytest.mark.req("R9.4")
def test_a_writer_without_a_snapshot_keeps_them_too(
    pg_url: str,
    connect: Callable[..., Session],
    doctor: Doctor,
    many_dead_rows: Callable[[], None],
):
    writer = connect("import", autocommit=False)
    writer.execute("select pg_current_xact_id()")
    many_dead_rows()
    assert f"pid {writer.info.backend_pid} (import, idle" in doctor(pg_url)["bloat"]["found"]


@pytest.mark.req("R9.4")
def test_dead_rows_that_nobody_keeps_are_autovacuums(
    pg_url: str, doctor: Doctor, many_dead_rows: Callable[[], None]
):
    many_dead_rows()
    check = doctor(pg_url)["bloat"]
    assert check["ok"]
    assert "100 dead rows" in check["found"]
    assert check["hint"] is None


@pytest.mark.req("R9.4")
def test_far_too_many_dead_rows_want_a_vacuum(
    pg_url: str,
    connect: Callable[..., Session],
    doctor: Doctor,
    many_dead_rows: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(bloat, "_TOO_MANY", 100)
    many_dead_rows()
    check = doctor(pg_url)["bloat"]
    assert not check["ok"]
    connect().execute(check["hint"].partition(";")[0])
    assert doctor(pg_url)["bloat"]["ok"]


@pytest.mark.req("R9.4")
def test_who_may_not_see_the_others_is_told_how(
    patient: str,
    connect: Callable[..., Session],
    doctor: Doctor,
    many_dead_rows: Callable[[], None],
):
    session = connect()
    grant(session, "observe")
    reader = connect("nightly report", autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("select 1")
    many_dead_rows()
    check = doctor(patient)["bloat"]
    assert check["ok"]
    assert "held back" not in check["found"]
    session.execute(check["hint"].partition(",")[0])
    assert "nightly report" in doctor(patient)["bloat"]["found"]


NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR_AGO = NOW - timedelta(hours=1)


@pytest.mark.req("R9.4")
@pytest.mark.parametrize(
    ("row", "old", "found", "hint"),
    [
        (
            ("prepared", "'move'", "shop", HOUR_AGO, False, 5),
            True,
            "prepared transaction 'move' (of shop) for 3600 s",
            "commit prepared 'move', or rollback prepared 'move'",
        ),
        (
            ("slot", "standby", None, None, False, 5),
            True,
            "replication slot standby (not in use) for 5 transactions",
            "select pg_drop_replication_slot('standby')",
        ),
        (("slot", "standby", None, None, True, 5), False, "(in use)", "hot_standby_feedback"),
        (("slot", "standby", None, None, True, 10_000), True, "10000", "hot_standby_feedback"),
        (("session", "7", "", NOW, True, 500_000), False, "unknown program", "backend(7)"),
        (("session", "7", "role x", None, None, 10_000), True, "not visible", "backend(7)"),
    ],
)
def test_what_else_holds_dead_rows_back(row: tuple[Any, ...], old: bool, found: str, hint: str):
    holder = bloat._Holder(*row, NOW)
    assert holder.old is old
    assert found in str(holder)
    assert hint in holder.hint


@pytest.mark.req("R9.3")
def test_no_operator_in_the_search_path_is_called(
    pg_url: str, connect: Callable[..., Session], doctor: Doctor
):
    session = connect()
    build_hostile_schema(session)
    name = session.info.dbname
    session.execute(f"alter database {name} set search_path = evil, pg_catalog".encode())
    checks = doctor(pg_url)
    assert checks["rights"]["ok"]
    assert checks["bloat"]["ok"]


# An SQLite file


@pytest.fixture
def file(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert main(["sql", "install", url]) == 0
    return url


@pytest.mark.req("R9.4")
def test_a_healthy_file_is_fine(file: str, doctor: Doctor, capsys: pytest.CaptureFixture[str]):
    capsys.readouterr()
    checks = doctor(file)
    assert checks["bloat"]["ok"]
    assert "MiB free; log 0.0 MiB" in checks["bloat"]["found"]
    assert "rights" not in checks


@pytest.mark.req("R9.4")
def test_a_newer_schema_asks_for_a_newer_program(file: str, doctor: Doctor):
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as session, session:
        session.execute("update dever_installation set version = '99.0.0'")
    assert doctor(file)["version"]["hint"] == "update dever-sql to at least 99.0.0"


@pytest.mark.req("R9.4")
def test_a_queue_name_never_reaches_the_terminal_raw(file: str, capsys: pytest.CaptureFixture[str]):
    with closing(SQLiteEngine(file.removeprefix("sqlite:///"))) as engine:
        engine.send("a\x1b[31m b", "1")
        engine.pause_queue("a\x1b[31m b")
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as session, session:
        session.execute("update dever_job set run_at = run_at - 3600000000")
    assert main(["doctor", "--url", file]) == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "queue a\\x1b[31m b: 1 ready" in said
    assert "dever queues resume 'a\\x1b[31m b'" in said


@pytest.mark.req("R9.4")
def test_of_many_queues_that_wait_the_longest_are_named(file: str, doctor: Doctor):
    path = file.removeprefix("sqlite:///")
    with closing(SQLiteEngine(path)) as engine:
        for number in range(12):
            engine.send(f"q{number}", "1")
    with closing(sqlite3.connect(path)) as session, session:
        session.execute("update dever_job set run_at = run_at - 3600000000 - queue_id * 1000000")
    checks = doctor(file)
    named = [name for name in checks if name.startswith("queue q")]
    assert named == [f"queue q{number}" for number in range(11, 1, -1)]
    assert checks["queues"]["found"] == "2 more of 12 wait longer than a minute"


@pytest.mark.req("R9.4")
def test_free_pages_are_named_with_what_gives_them_back(
    file: str,
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(bloat, "_LARGE_BYTES", 1_000_000)
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as connection:
        connection.execute("create table big as select zeroblob(8000000) as data")
        connection.execute("drop table big")
        connection.commit()
        connection.execute("pragma wal_checkpoint(truncate)")
        capsys.readouterr()
        check = doctor(file)["bloat"]
        assert not check["ok"]
        assert check["hint"].endswith(f"sqlite3 {file.removeprefix('sqlite:///')} vacuum")
        connection.execute("vacuum")
        connection.execute("pragma wal_checkpoint(truncate)")
        assert doctor(file)["bloat"]["ok"]


@pytest.mark.req("R9.4")
def test_a_log_that_a_reader_keeps_is_named(
    file: str,
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(bloat, "_LARGE_BYTES", 10_000)
    path = file.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(path)) as writer:
        reader.execute("begin")
        reader.execute("select * from dever_installation").fetchall()
        writer.execute("create table big as select zeroblob(20000) as data")
        writer.commit()
        capsys.readouterr()
        check = doctor(file)["bloat"]
        assert not check["ok"]
        assert "keeps a transaction open" in check["hint"]
        reader.rollback()
        writer.execute("pragma wal_checkpoint(truncate)")
        assert doctor(file)["bloat"]["ok"]
