"""A plain install becomes an extension and a plain install again; no job notices (R9.1)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from hostile_path import build_hostile_schema
from upgrade import routes
from upgrade.catalogue import contents, membership, snapshot
from upgrade.conftest import APPLICATION, NewDatabase, SizesOf
from upgrade.routes import EXTENSIONS, FIRST, INSTALLS, VERSION, adopt, execute, psql, rows

FIRST_STEP = "create extension dever version 'unpackaged'"


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url, autocommit=True)


def extensions(url: str) -> list[tuple[object, ...]]:
    return rows(url, "select extversion from pg_extension where extname = 'dever'")


def adopt_with_psql(url: str) -> None:
    done = psql("adopt.sql", url)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


ADOPTIONS = {"two statements": adopt, "adopt.sql": adopt_with_psql}


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", ADOPTIONS)
def test_an_adopted_install_equals_a_fresh_extension(new_database: NewDatabase, way: str) -> None:
    fresh, adopted = new_database(), new_database()
    routes.extension(fresh)
    routes.plain(adopted)
    ADOPTIONS[way](adopted)
    assert extensions(adopted) == [(VERSION,)]
    with connect(fresh) as one, connect(adopted) as other:
        assert membership(other) == membership(one)
        assert snapshot(other) == snapshot(one)


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", ADOPTIONS)
def test_an_upgraded_plain_install_is_adopted(new_database: NewDatabase, way: str) -> None:
    fresh, adopted = new_database(), new_database()
    routes.extension(fresh)
    routes.plain(adopted, FIRST)
    deployed = psql("deploy.sql", adopted)
    assert deployed.returncode == 0, deployed.stdout
    ADOPTIONS[way](adopted)
    with connect(fresh) as one, connect(adopted) as other:
        assert membership(other) == membership(one)
        assert snapshot(other) == snapshot(one)


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("way", ADOPTIONS)
def test_adoption_changes_no_row(new_database: NewDatabase, way: str) -> None:
    url = new_database()
    routes.plain(url)
    rows(url, "select dever.send('mail', '1'), dever.schedule('nightly', '0 2 * * *', 'mail')")
    rows(url, "select * from dever.claim('mail', 'w', 1)")
    with connect(url) as session:
        before = contents(session)
        ADOPTIONS[way](url)
        assert contents(session) == before


@pytest.mark.req("R9.1", "R9.3")
@pytest.mark.parametrize("way", ADOPTIONS)
def test_adoption_changes_no_right(new_database: NewDatabase, way: str) -> None:
    url = new_database()
    routes.plain(url)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    with connect(url) as session:
        before = snapshot(session)
        if way == "adopt.sql":
            adopt_with_psql(url)
        else:
            adopt(url)
        assert snapshot(session) == before


@pytest.mark.req("R9.1", "R9.3")
def test_two_statements_warn_of_grants_that_a_dump_would_miss(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    with connect(url) as session:
        notices: list[tuple[str | None, str | None]] = []
        session.add_notice_handler(
            lambda notice: notices.append((notice.severity, notice.message_hint))
        )
        session.execute(FIRST_STEP)
        assert notices == []
        session.execute("alter extension dever update")
    ((severity, hint),) = notices
    assert severity == "WARNING"
    assert hint is not None
    assert "adopt.sql" in hint


@pytest.mark.req("R9.1")
def test_adoption_waits_for_no_work_and_holds_none_up(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    rows(url, "select dever.send('mail', '0')")
    with connect(url) as worker, connect(url) as other, connect(url) as operator:
        operator.execute("set lock_timeout = '5s'")
        other.execute("set lock_timeout = '5s'")
        with worker.transaction(), operator.transaction():
            worker.execute("select dever.send('mail', '1')")
            operator.execute(FIRST_STEP)
            operator.execute("alter extension dever update")
            other.execute("select dever.send('mail', '2')")
            other.execute("select * from dever.claim('mail', 'w', 1)")
    assert extensions(url) == [(VERSION,)]


@pytest.mark.req("R9.1", "R4.1")
def test_adoption_waits_for_whoever_installs(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    with connect(url) as installer, connect(url) as operator:
        operator.execute("set lock_timeout = '100ms'")
        with installer.transaction():
            installer.execute("select pg_advisory_xact_lock(1145394770)")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                operator.execute(FIRST_STEP)
        operator.execute(FIRST_STEP)
    assert extensions(url) == [("unpackaged",)]


def adopt_and_expect(error: type[psycopg.Error], url: str) -> psycopg.Error:
    with pytest.raises(error) as raised:
        execute(url, FIRST_STEP)
    return raised.value


@pytest.mark.req("R9.1", "R4.1")
def test_an_older_plain_install_is_refused_at_the_first_step(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url, FIRST)
    error = adopt_and_expect(psycopg.DatabaseError, url)
    assert error.sqlstate == "DV009"
    assert error.diag.message_primary == (
        f"this database has Dever SQL {FIRST} as a plain install, the extension is {VERSION}"
    )
    assert "deploy.sql" in str(error.diag.message_hint)
    assert extensions(url) == []


@pytest.mark.req("R9.1", "R4.1")
def test_the_second_step_refuses_what_is_not_its_version(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    execute(url, FIRST_STEP)
    execute(url, "update dever.installation set version = '9.8.7'")
    with pytest.raises(psycopg.DatabaseError, match="9\\.8\\.7 as a plain install") as raised:
        execute(url, "alter extension dever update")
    assert raised.value.sqlstate == "DV009"
    with connect(url) as session:
        assert membership(session) == []


@pytest.mark.req("R9.1")
@pytest.mark.parametrize(
    "state",
    ["", "create schema dever; create table dever.job (id bigint)"],
    ids=["nothing", "other"],
)
def test_without_a_plain_install_there_is_nothing_to_adopt(
    new_database: NewDatabase, state: str
) -> None:
    url = new_database()
    execute(url, state)
    error = adopt_and_expect(psycopg.errors.ObjectNotInPrerequisiteState, url)
    assert error.diag.message_primary == "there is no plain install of Dever SQL in this database"
    assert extensions(url) == []


@pytest.mark.req("R9.1")
def test_an_object_that_is_missing_stops_the_adoption(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    execute(url, "drop view dever.locks")
    execute(url, FIRST_STEP)
    with pytest.raises(psycopg.errors.UndefinedTable):
        execute(url, "alter extension dever update")
    with connect(url) as session:
        assert membership(session) == []


@pytest.mark.req("R9.1", "R9.3")
def test_adopt_sql_is_all_or_nothing(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url, FIRST)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    with connect(url) as session:
        before = snapshot(session)
        done = psql("adopt.sql", url)
        assert done.returncode == 3
        assert f"this database has Dever SQL {FIRST} as a plain install" in done.stdout
        assert extensions(url) == []
        assert snapshot(session) == before


@pytest.mark.req("R9.1", "R9.3")
def test_adoption_and_back_call_nothing_of_the_search_path(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    with connect(url) as session:
        build_hostile_schema(session)
        name = session.info.dbname
        session.execute(f"alter database {name} set search_path = evil, pg_catalog".encode())
    for file in ("adopt.sql", "unadopt.sql"):
        done = psql(file, url)
        assert done.returncode == 0, done.stdout


@pytest.mark.req("R9.1", "R4.1")
@pytest.mark.parametrize("file", ["adopt.sql", "unadopt.sql"])
def test_adoption_and_back_wait_for_their_turn(new_database: NewDatabase, file: str) -> None:
    url = new_database()
    (routes.plain if file == "adopt.sql" else routes.extension)(url)
    with connect(url) as installer, installer.transaction(), connect(url) as watcher:
        installer.execute("select pg_advisory_xact_lock(1145394770)")
        with ThreadPoolExecutor() as threads:
            running = threads.submit(psql, file, url)
            waiting = "select pid from pg_locks where locktype = 'advisory' and not granted"
            while (found := watcher.execute(waiting).fetchone()) is None:
                assert not running.done(), running.result().stdout
            watcher.execute("select pg_cancel_backend(%s)", found)
    assert running.result().returncode == 3


@pytest.mark.req("R9.1")
def test_adopt_sql_says_that_nothing_is_installed(new_database: NewDatabase) -> None:
    done = psql("adopt.sql", new_database())
    assert done.returncode == 3
    assert "there is no plain install of Dever SQL in this database" in done.stdout


@pytest.mark.req("R9.1")
def test_an_extension_cannot_be_adopted_again(new_database: NewDatabase) -> None:
    url = new_database()
    routes.extension(url)
    error = adopt_and_expect(psycopg.errors.DuplicateObject, url)
    assert "already exists" in str(error)


# The way back


@pytest.mark.req("R9.1", "R9.3")
@pytest.mark.parametrize("route", EXTENSIONS)
def test_the_way_back_keeps_everything_but_the_extension(
    new_database: NewDatabase, route: str
) -> None:
    url = new_database()
    INSTALLS[route](url)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    rows(url, "select dever.send('mail', '1'), dever.send('mail', '2')")
    rows(url, "select * from dever.claim('mail', 'w', 1)")
    with connect(url) as session:
        before = snapshot(session), contents(session)
        done = psql("unadopt.sql", url)
        assert done.returncode == 0, done.stdout
        assert extensions(url) == []
        assert (snapshot(session), contents(session)) == before


@pytest.mark.req("R9.1")
def test_after_the_way_back_it_is_deployed_as_a_plain_install(new_database: NewDatabase) -> None:
    url = new_database()
    routes.extension(url, FIRST)
    assert psql("unadopt.sql", url).returncode == 0
    deployed = psql("deploy.sql", url)
    assert deployed.returncode == 0, deployed.stdout
    assert rows(url, "select dever.version()") == [(VERSION,)]


@pytest.mark.req("R9.1")
def test_there_and_back_leaves_the_catalogue_as_it_was(
    new_database: NewDatabase, sizes_of: SizesOf
) -> None:
    url = new_database()
    routes.plain(url)
    before = sizes_of(url)
    adopt(url)
    assert psql("unadopt.sql", url).returncode == 0
    assert sizes_of(url) == before


@pytest.mark.req("R9.1")
def test_without_an_extension_there_is_no_way_back(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    done = psql("unadopt.sql", url)
    assert done.returncode == 3
    assert 'extension "dever" does not exist' in done.stdout
    assert rows(url, "select dever.version()") == [(VERSION,)]
