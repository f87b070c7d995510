"""What is left alone, and what is refused, by every way: with the right exit code (R4.1, R9.1)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest
from upgrade.catalogue import contents, membership, snapshot
from upgrade.conftest import NewDatabase
from upgrade.databases import FIRST, PREVIOUS, sqlite_database
from upgrade.routes import extension
from upgrade.ways import REPEATABLE, WAYS, dever, install_schema, psql

from dever_sql.sql_files import install_script, schema_version, sql_directory

VERSION = schema_version()


def state(url: str) -> tuple[list[str], dict[str, list[str]]]:
    with psycopg.connect(url, autocommit=True) as session:
        found = snapshot(session)
        return found, contents(session) if found else {}


def set_version(url: str, version: str) -> None:
    psql(url, "-c", f"update dever.installation set version = '{version}'")


@pytest.mark.req("R4.1", "R9.1")
@pytest.mark.parametrize("way", REPEATABLE)
def test_the_same_version_again_does_nothing(new_url: str, way: str) -> None:
    before = state(new_url)
    done = REPEATABLE[way](new_url)
    assert done.code == 0
    assert f"{VERSION} is already installed" in done.said
    assert state(new_url) == before


@pytest.mark.req("R4.1", "R9.1")
@pytest.mark.parametrize("version", ["9.0.0", "0.0.1"])
@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_version_is_refused_with_both_named(
    new_url: str, way: str, version: str
) -> None:
    set_version(new_url, version)
    before = state(new_url)
    done = WAYS[way](new_url)
    assert done.code == 3
    assert version in done.said
    # A printed upgrade over several versions speaks of its first step.
    assert (
        f"this file upgrades {FIRST} to " in done.said if way == "print" else VERSION in done.said
    )
    assert state(new_url) == before


@pytest.mark.req("R4.1")
def test_a_printed_upgrade_refuses_what_is_upgraded_already(new_url: str) -> None:
    before = state(new_url)
    done = WAYS["print"](new_url)
    assert done.code == 3
    assert f"has Dever SQL {VERSION}, this file upgrades {FIRST}" in done.said
    assert state(new_url) == before


@pytest.mark.req("R4.1")
def test_a_printed_upgrade_refuses_where_nothing_is_installed(no_url: str) -> None:
    done = WAYS["print"](no_url)
    assert done.code == 3
    assert "not installed in this database" in done.said


@pytest.mark.req("R4.1")
def test_outside_of_a_transaction_the_upgrade_refuses(old_url: str) -> None:
    before = state(old_url)
    done = psql(
        old_url, "-f", str(sql_directory("postgresql") / f"dever--{PREVIOUS}--{VERSION}.sql")
    )
    assert done.code == 3
    assert "one transaction" in done.said
    assert state(old_url) == before


@pytest.mark.req("R9.1")
def test_upgrade_does_not_install(no_url: str) -> None:
    done = dever("sql", "upgrade", no_url)
    assert done.code == 3
    assert "dever sql install" in done.said
    assert state(no_url) == ([], {})


@pytest.mark.req("R9.1", "R9.3")
@pytest.mark.parametrize("way", WAYS)
def test_a_stranger_may_not_upgrade(old_url: str, way: str) -> None:
    psql(old_url, "-c", "create role dever_upgrade_stranger login")
    before = state(old_url)
    try:
        done = WAYS[way](old_url.replace("//postgres@", "//dever_upgrade_stranger@"))
        assert done.code == 3
        assert "permission denied" in done.said or "not a member" in done.said
        assert state(old_url) == before
    finally:
        psql(old_url, "-c", "drop role dever_upgrade_stranger")


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", WAYS)
def test_an_old_extension_is_left_to_its_own_command(new_database: NewDatabase, way: str) -> None:
    url = new_database()
    extension(url, FIRST)
    before = state(url)
    done = WAYS[way](url)
    with psycopg.connect(url) as session:
        members = membership(session)
    assert done.code == 3
    assert "alter extension dever update" in done.said
    assert state(url) == before
    assert members


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", ["dever sql", "install-schema"])
def test_a_dry_run_on_an_old_extension_refuses_as_the_run_would(
    new_database: NewDatabase, way: str
) -> None:
    url = new_database()
    extension(url, FIRST)
    if way == "dever sql":
        dry = dever("sql", "install", "--dry-run", url)
    else:
        dry = install_schema(url, "--dry-run")
    assert dry.code == 3
    assert "alter extension dever update" in dry.said
    assert "begin" not in dry.said


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("command", [("sql", "check"), ("doctor", "--url")], ids=" ".join)
def test_an_old_extension_is_sent_to_its_own_command(
    new_database: NewDatabase, command: tuple[str, str]
) -> None:
    url = new_database()
    extension(url, FIRST)
    done = dever(*command, url)
    assert done.code == 1
    assert "hint: alter extension dever update" in done.said


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", REPEATABLE)
def test_a_current_extension_is_fine(new_database: NewDatabase, way: str) -> None:
    url = new_database()
    extension(url)
    done = REPEATABLE[way](url)
    assert done.code == 0
    assert f"{VERSION} is already installed" in done.said


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("way", REPEATABLE)
def test_a_schema_of_that_name_that_is_not_ours_is_left_alone(no_url: str, way: str) -> None:
    psql(no_url, "-c", "create schema dever", "-c", "create table dever.mine (id bigint)")
    done = REPEATABLE[way](no_url)
    assert done.code == 3
    assert 'schema "dever" already exists' in done.said
    with psycopg.connect(no_url) as session:
        tables = session.execute(
            "select relname from pg_class where relnamespace = 'dever'::regnamespace"
        )
        assert tables.fetchall() == [("mine",)]


@pytest.mark.req("R9.1")
@pytest.mark.parametrize(
    ("version", "code"), [(None, 3), (FIRST, 1), (VERSION, 0)], ids=["nothing", "older", "same"]
)
def test_check_says_which_version_is_there(
    request: pytest.FixtureRequest, version: str | None, code: int
) -> None:
    fixture = {None: "no_url", FIRST: "old_url", VERSION: "new_url"}[version]
    url: str = request.getfixturevalue(fixture)
    before = state(url)
    assert dever("sql", "check", url).code == code
    assert install_schema(url, "--check").code == code
    assert state(url) == before


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("fixture", ["no_url", "old_url", "new_url"])
@pytest.mark.parametrize("way", ["dever sql", "install-schema"])
def test_a_dry_run_prints_what_would_be_run(
    request: pytest.FixtureRequest, fixture: str, way: str
) -> None:
    url: str = request.getfixturevalue(fixture)
    before = state(url)
    if way == "dever sql":
        dry = dever("sql", "install", "--dry-run", url)
    else:
        dry = install_schema(url, "--dry-run")
    assert dry.code == 0
    assert state(url) == before
    assert psql(url, "--single-transaction", given=dry.said).code == 0
    assert dever("sql", "check", url).code == 0


@pytest.mark.req("R5.5")
@pytest.mark.parametrize("password", ["hun%zter2", "hun ter2"])
def test_a_malformed_url_is_refused_without_its_password(password: str) -> None:
    done = install_schema(f"postgresql://shop:{password}@127.0.0.1:1/shop")
    assert done.code == 3
    assert "ter2" not in done.said


@pytest.mark.req("R9.1")
def test_a_server_that_is_not_there_cannot_be_reached() -> None:
    url = "postgresql://nobody@127.0.0.1:1/nowhere?connect_timeout=1"
    codes = {way: run(url).code for way, run in REPEATABLE.items()}
    assert codes == {"deploy.sql": 2, "dever sql": 3, "install-schema": 3}


@pytest.mark.req("R9.1")
@pytest.mark.parametrize(
    "options", [["--chekc"], ["--wait", "long"], ["--wait"], ["postgresql://another"]]
)
def test_wrong_use_of_install_schema(options: list[str]) -> None:
    done = install_schema("postgresql://one", *options[:1], *options[1:])
    assert done.code == 2


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("way", ["deploy.sql", "dever sql", "print"])
def test_settings_of_the_database_do_not_get_in_the_way(
    old_url: str, way: str, isolation: str
) -> None:
    with psycopg.connect(old_url, autocommit=True) as session:
        for setting in (
            f"default_transaction_isolation = '{isolation}'",
            "default_transaction_read_only = on",
            "IntervalStyle = 'iso_8601'",
            "search_path = nowhere",
            "standard_conforming_strings = off",
        ):
            session.execute(f"alter database {session.info.dbname} set {setting}".encode())
    done = WAYS[way](old_url)
    assert done.code == 0, done.said


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("version", ["9.0.0", "0.0.1"])
def test_an_unknown_version_of_a_file_is_refused(tmp_path: Path, version: str) -> None:
    path = sqlite_database(tmp_path / "jobs.db", VERSION)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("update dever_installation set version = ?", [version])
    done = dever("sql", "upgrade", f"sqlite:///{path}")
    assert done.code == 3
    assert version in done.said
    assert VERSION in done.said
    printed = dever("sql", "print", "--engine", "sqlite", "--from", FIRST).said
    with pytest.raises(sqlite3.Error, match=f"has Dever SQL {version}"):
        connection.executescript(printed)
    connection.close()


@pytest.mark.req("R9.1")
def test_what_there_is_no_upgrade_for_is_not_printed() -> None:
    assert dever("sql", "print", "--from", "9.0.0").code == 2
    assert dever("sql", "print", "--from", VERSION).code == 2
    assert dever("sql", "print", "--to", "9.0.0").code == 2
    assert dever("sql", "print", "--to", FIRST).said == install_script("postgresql", FIRST)
