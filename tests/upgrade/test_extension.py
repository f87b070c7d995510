"""`create extension dever`: as a plain database owner, from the installed files (R9.1)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psycopg
import pytest
from postgres_server import SETTINGS, Cluster, find_binaries, running_cluster
from upgrade import routes
from upgrade.catalogue import contents, membership, snapshot
from upgrade.conftest import APPLICATION, NewDatabase, SizesOf
from upgrade.extension_server import below, configured, major_version, run_make
from upgrade.routes import EXTENSIONS, FIRST, INSTALLS, SQL, VERSION, execute, psql, rows

from dever_sql.database import open_engine
from dever_sql.errors import InstallError


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url, autocommit=True)


def version_of_extension(url: str) -> list[tuple[object, ...]]:
    return rows(url, "select extversion from pg_extension where extname = 'dever'")


@pytest.mark.req("R9.1")
def test_make_installs_the_control_file_and_every_script(
    extension_server: Cluster, tmp_path: Path
) -> None:
    bindir = find_binaries()
    assert bindir is not None
    run_make("install", bindir, tmp_path)
    installed = below(tmp_path, configured(bindir, "--sharedir")) / "extension"
    shipped = {path.name: path.read_bytes() for path in SQL.glob("dever--*.sql")}
    shipped["dever.control"] = (SQL / "dever.control").read_bytes()
    assert {path.name: path.read_bytes() for path in installed.iterdir()} == shipped


@pytest.mark.req("R9.1")
def test_make_uninstall_takes_every_file_away(extension_server: Cluster, tmp_path: Path) -> None:
    bindir = find_binaries()
    assert bindir is not None
    run_make("install", bindir, tmp_path)
    run_make("uninstall", bindir, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.req("R9.1")
def test_a_plain_owner_creates_the_extension_and_works_with_it(new_database: NewDatabase) -> None:
    url = new_database()
    assert rows(url, "select rolsuper or rolcreaterole from pg_roles where rolname = user") == [
        (False,)
    ]
    execute(url, "create extension dever")
    assert version_of_extension(url) == [(VERSION,)]
    ((message,),) = rows(url, "select dever.send('mail', '7')")
    assert rows(url, "select id, payload from dever.claim('mail', 'w', 1)") == [(message, 7)]


@pytest.mark.req("R9.1")
def test_an_extension_has_the_schema_of_a_plain_install(new_database: NewDatabase) -> None:
    plain, extension = new_database(), new_database()
    routes.plain(plain)
    routes.extension(extension)
    with connect(plain) as one, connect(extension) as other:
        assert snapshot(other) == snapshot(one)


@pytest.mark.req("R9.1")
def test_every_object_belongs_to_the_extension(new_database: NewDatabase) -> None:
    url = new_database()
    routes.extension(url)
    assert (
        rows(
            url,
            "select c.relname from pg_class as c where c.relnamespace = 'dever'::regnamespace"
            " and c.relkind in ('r', 'v', 'S') and not exists (select from pg_depend as d"
            " where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')"
            " union all select p.proname from pg_proc as p"
            " where p.pronamespace = 'dever'::regnamespace and not exists (select from pg_depend"
            " as d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')",
        )
        == []
    )


@pytest.mark.req("R9.1")
def test_every_table_but_the_scripts_own_rows_is_dumped(new_database: NewDatabase) -> None:
    url = new_database()
    routes.extension(url)
    assert rows(
        url,
        "select c.relname from pg_class as c where c.relnamespace = 'dever'::regnamespace"
        " and c.relkind in ('r', 'S') and c.oid <> all (select unnest(e.extconfig)"
        " from pg_extension as e where e.extname = 'dever') order by 1",
    ) == [("installation",), ("sweep_cursor",)]


@pytest.mark.req("R9.1")
def test_the_checkout_serves_the_extension_by_its_control_path() -> None:
    bindir = find_binaries()
    if bindir is None or major_version(bindir) < 18:
        pytest.skip("extension_control_path came with PostgreSQL 18")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "extension").symlink_to(SQL)
        settings = {**SETTINGS, "extension_control_path": f"{directory}:$system"}
        with running_cluster(settings, bindir) as cluster:
            url = cluster.url("postgres")
            execute(url, "create extension dever")
            assert version_of_extension(url) == [(VERSION,)]


@pytest.mark.req("R9.1", "R9.2")
def test_an_updated_extension_equals_a_fresh_one(new_database: NewDatabase) -> None:
    fresh, updated = new_database(), new_database()
    routes.extension(fresh)
    routes.extension(updated, FIRST)
    execute(updated, "alter extension dever update")
    assert rows(updated, "select dever.version()") == [(VERSION,)]
    with connect(fresh) as one, connect(updated) as other:
        assert snapshot(other) == snapshot(one)
        assert membership(other) == membership(one)


@pytest.mark.req("R9.1", "R9.2")
def test_an_update_keeps_the_rows_and_the_identity(new_database: NewDatabase) -> None:
    url = new_database()
    routes.extension(url, FIRST)
    rows(url, "select dever.send('mail', '1'), dever.schedule('nightly', '0 2 * * *', 'mail')")
    rows(url, "select * from dever.claim('mail', 'w', 1)")
    identity = rows(url, "select dever.installation_id()")
    with connect(url) as session:
        before = contents(session)
        session.execute("alter extension dever update")
        after = contents(session)
    assert rows(url, "select dever.installation_id()") == identity
    assert {name: after[name] for name in before if name != "installation"} == {
        name: before[name] for name in before if name != "installation"
    }


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("route", INSTALLS)
def test_dropping_it_leaves_nothing_behind(
    new_database: NewDatabase, sizes_of: SizesOf, route: str
) -> None:
    url = new_database()
    before = sizes_of(url)
    INSTALLS[route](url)
    rows(url, "select dever.send('mail', '1'), dever.configure_queue('mail', max_attempts => 2)")
    execute(url, routes.GRANTS.format(role=APPLICATION))
    if route == "plain":
        assert psql("uninstall.sql", url).returncode == 0
    else:
        execute(url, "drop extension dever")
    assert sizes_of(url) == before


@pytest.mark.req("R9.1", "R4.1")
def test_a_schema_of_the_same_name_is_left_alone(new_database: NewDatabase) -> None:
    url = new_database()
    execute(url, "create schema dever; create table dever.mine (id integer)")
    with pytest.raises(psycopg.errors.DuplicateSchema):
        execute(url, "create extension dever")
    assert version_of_extension(url) == []
    with connect(url) as session:
        assert [line for line in snapshot(session) if line.startswith("relation")] == [
            line for line in snapshot(session) if line.startswith("relation: dever.mine")
        ]


@pytest.mark.req("R9.1")
def test_deploy_leaves_an_old_extension_to_its_own_update(new_database: NewDatabase) -> None:
    url = new_database()
    routes.extension(url, FIRST)
    done = psql("deploy.sql", url)
    assert done.returncode == 3
    assert f"Dever SQL {FIRST} is installed as an extension in this database" in done.stdout
    assert "alter extension dever update" in done.stdout
    assert rows(url, "select dever.version()") == [(FIRST,)]


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("route", EXTENSIONS)
def test_deploy_has_nothing_to_do_on_a_current_extension(
    new_database: NewDatabase, route: str
) -> None:
    url = new_database()
    INSTALLS[route](url)
    with connect(url) as session:
        before = snapshot(session)
    assert psql("deploy.sql", url).returncode == 0
    with connect(url) as session:
        assert snapshot(session) == before


@pytest.mark.req("R9.1")
def test_python_leaves_an_old_extension_to_its_own_update(new_database: NewDatabase) -> None:
    url = new_database()
    routes.extension(url, FIRST)
    engine = open_engine(url)
    try:
        with pytest.raises(InstallError, match="as an extension") as raised:
            engine.install()
    finally:
        engine.close()
    assert "alter extension dever update" in str(raised.value)
    assert rows(url, "select dever.version()") == [(FIRST,)]


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("route", EXTENSIONS)
def test_python_has_nothing_to_do_on_a_current_extension(
    new_database: NewDatabase, route: str
) -> None:
    url = new_database()
    INSTALLS[route](url)
    with connect(url) as session:
        before = snapshot(session)
    engine = open_engine(url)
    try:
        assert engine.install() == VERSION
    finally:
        engine.close()
    with connect(url) as session:
        assert snapshot(session) == before


@pytest.mark.req("R4.1")
def test_of_two_who_create_the_extension_one_waits_and_fails_cleanly(
    new_database: NewDatabase,
) -> None:
    url = new_database()
    with connect(url) as first, connect(url) as second:
        with first.transaction():
            first.execute("create extension dever")
            second.execute("set lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                second.execute("create extension dever")
        second.execute("create extension if not exists dever")
    assert version_of_extension(url) == [(VERSION,)]
