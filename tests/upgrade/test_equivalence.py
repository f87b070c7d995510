"""An upgraded schema is the same as a fresh one, down to comments and rights, by every way."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from upgrade.catalogue import snapshot
from upgrade.databases import FIRST, sqlite_database
from upgrade.sqlite_catalogue import sqlite_snapshot
from upgrade.ways import WAYS, dever, psql

from dever_sql.sql_files import install_script, schema_version, sql_directory

ROLES = sql_directory("postgresql") / "roles.sql"
ROLE_NAMES = ("dever_enqueue", "dever_worker", "dever_observe", "dever_admin")


def snapshot_of(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as session:
        return snapshot(session)


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", WAYS)
def test_upgraded_equals_fresh(old_url: str, new_url: str, way: str) -> None:
    done = WAYS[way](old_url)
    assert done.code == 0, done.said
    assert snapshot_of(old_url) == snapshot_of(new_url)


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", [way for way in WAYS if way != "print"])
def test_installed_equals_fresh(no_url: str, new_url: str, way: str) -> None:
    done = WAYS[way](no_url)
    assert done.code == 0, done.said
    assert snapshot_of(no_url) == snapshot_of(new_url)


@pytest.mark.req("R9.1", "R9.3")
def test_roles_keep_what_they_were_granted(old_url: str) -> None:
    given = "grant select on dever.jobs to dever_observe with grant option"
    try:
        assert psql(old_url, "-f", str(ROLES), "-c", given).code == 0
        before = {line for line in snapshot_of(old_url) if " to dever_" in line}
        assert any("dever_worker" in line for line in before)
        assert WAYS["deploy.sql"](old_url).code == 0
        assert before <= set(snapshot_of(old_url))
    finally:
        for role in ROLE_NAMES:
            psql(old_url, "-c", f"drop owned by {role}", "-c", f"drop role {role}")


@pytest.mark.req("R9.1", "R9.3")
def test_what_a_superuser_upgrades_still_belongs_to_the_owner(no_url: str) -> None:
    with psycopg.connect(no_url, autocommit=True) as session:
        session.execute("create role dever_upgrade_owner")
        try:
            database = sql.Identifier(session.info.dbname)
            session.execute(
                sql.SQL("grant create on database {} to dever_upgrade_owner").format(database)
            )
            session.execute("set role dever_upgrade_owner")
            session.execute(install_script("postgresql", FIRST).encode())
            session.execute("reset role")
            assert WAYS["deploy.sql"](no_url).code == 0
            kinds = ("schema: ", "relation: ", "function: ", "type: ")
            owned = [line for line in snapshot(session) if line.startswith(kinds)]
            assert len(owned) > 100
            assert [line for line in owned if "owner dever_upgrade_owner" not in line] == []
        finally:
            session.execute("reset role")
            session.execute("drop owned by dever_upgrade_owner cascade")
            session.execute("drop role dever_upgrade_owner")


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", ["dever sql", "print"])
def test_an_upgraded_file_equals_a_fresh_one(tmp_path: Path, way: str) -> None:
    fresh = sqlite_database(tmp_path / "fresh.db", schema_version())
    upgraded = sqlite_database(tmp_path / "upgraded.db", FIRST)
    if way == "print":
        connection = sqlite3.connect(upgraded, isolation_level=None)
        printed = dever("sql", "print", "--engine", "sqlite", "--from", FIRST)
        connection.executescript(printed.said)
        connection.close()
    else:
        assert dever("sql", "upgrade", f"sqlite:///{upgraded}").code == 0
    one, other = sqlite3.connect(fresh), sqlite3.connect(upgraded)
    assert sqlite_snapshot(other) == sqlite_snapshot(one)
    rows = "select one, version, protocol_min, protocol_max from dever_installation"
    assert other.execute(rows).fetchall() == one.execute(rows).fetchall()
    one.close()
    other.close()


@pytest.mark.req("R9.2")
def test_the_upgrade_says_which_protocols_are_spoken(old_url: str, new_url: str) -> None:
    WAYS["deploy.sql"](old_url)
    query = "select version, protocol_min, protocol_max from dever.installation"
    with psycopg.connect(old_url) as upgraded, psycopg.connect(new_url) as fresh:
        assert upgraded.execute(query).fetchall() == fresh.execute(query).fetchall()
