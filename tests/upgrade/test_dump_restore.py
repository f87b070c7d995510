"""A dump restores every row, wherever the installation came from, and work goes on (R9.1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from postgres_server import Cluster
from psycopg.sql import SQL, Identifier
from psycopg.types.json import Jsonb
from samples import RECEIPT, RECEIPT_SCHEMA, TARGET, declaration
from upgrade import routes
from upgrade.catalogue import contents, membership, snapshot
from upgrade.conftest import APPLICATION, NewDatabase
from upgrade.routes import EXTENSIONS, FIRST, INSTALLS, VERSION, execute, psql, rows, run

from dever_sql import CrossDatabaseError, Store

# An extension's restore runs its script, which makes these rows anew.
MADE_BY_THE_SCRIPT = {"installation", "sweep_cursor"}


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url, autocommit=True)


def restore_plain(source: str, target: str, directory: Path) -> None:
    file = directory / "dump.sql"
    dumped = run("pg_dump", "--format=plain", f"--file={file}", source)
    assert dumped.returncode == 0, dumped.stdout
    # Not by routes.psql, whose files are those of the package.
    restored = run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, target)
    assert restored.returncode == 0, restored.stdout


def restore_custom(source: str, target: str, directory: Path) -> None:
    file = directory / "dump"
    dumped = run("pg_dump", "--format=custom", f"--file={file}", source)
    assert dumped.returncode == 0, dumped.stdout
    restored = run("pg_restore", "--exit-on-error", f"--dbname={target}", file)
    assert restored.returncode == 0, restored.stdout


Restore = Callable[[str, str, Path], None]
RESTORES: dict[str, Restore] = {"plain format": restore_plain, "custom format": restore_custom}


def fill(url: str) -> None:
    """Every table gets rows, in the states that a busy installation has."""
    nightly = declaration("shop.job.nightly", schedule={"spec": "0 2 * * *", "missed": "latest"})
    with connect(url) as session:
        session.execute(
            "select dever.register('w', %s, '3000 days')",
            [Jsonb([declaration(TARGET, RECEIPT_SCHEMA), nightly])],
        )
        session.execute("select dever.configure_queue('mail', visibility => '90 minutes')")
        session.execute("select dever.configure_queue('default', max_attempts => 9)")
        session.execute("select dever.pause_queue('paused')")
        session.execute("select dever.schedule('hourly', '@every 1h', 'mail', '{\"a\": 1}')")
        session.execute("select dever.schedule('stopped', '0 2 * * *', 'mail')")
        session.execute("select dever.pause_schedule('stopped')")
        session.execute("select dever.lock_acquire('report', 'w', '3000 days')")
        for key in ("1", "2", "3"):
            session.execute("select dever.enqueue(%s, %s, %s)", [TARGET, key, RECEIPT])
        for number in range(6):
            session.execute("select dever.send('mail', %s)", [Jsonb({"number": number})])
        session.execute("select dever.outbox_enqueue('events', '\"é😀\"')")
        claimed = session.execute(
            "select id, token from dever.claim('mail', 'w', 4, '3000 days')"
        ).fetchall()
        done, buried, blocked = ([[id], [token]] for id, token in claimed[:3])
        session.execute("select dever.complete(%s, %s)", done)
        session.execute("select dever.bury(%s, %s, array['because'], array['why'])", buried)
        session.execute("select dever.block(%s, %s, array['unknown_target'])", blocked)
        session.execute("select dever.cancel(array[max(id)]) from dever.job where target is null")


@pytest.mark.req("R9.1")
def test_the_filling_reaches_every_table(new_database: NewDatabase) -> None:
    url = new_database()
    routes.plain(url)
    fill(url)
    with connect(url) as session:
        assert [name for name, content in contents(session).items() if not content] == []


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("restore", RESTORES.values(), ids=RESTORES)
@pytest.mark.parametrize("route", INSTALLS)
def test_every_row_and_every_position_comes_back(
    new_database: NewDatabase, tmp_path: Path, route: str, restore: Restore
) -> None:
    source, target = new_database(), new_database()
    INSTALLS[route](source)
    fill(source)
    restore(source, target, tmp_path)
    with connect(source) as one, connect(target) as other:
        before, after = contents(one), contents(other)
    if route != "plain":
        for name in MADE_BY_THE_SCRIPT:
            assert len(after.pop(name)) == len(before.pop(name)) == 1
    assert after == before


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("restore", RESTORES.values(), ids=RESTORES)
@pytest.mark.parametrize("route", INSTALLS)
def test_the_restored_catalogue_equals_the_source(
    new_database: NewDatabase, tmp_path: Path, route: str, restore: Restore
) -> None:
    source, target = new_database(), new_database()
    INSTALLS[route](source)
    execute(source, routes.GRANTS.format(role=APPLICATION))
    restore(source, target, tmp_path)
    with connect(source) as one, connect(target) as other:
        assert snapshot(other) == snapshot(one)
        assert membership(other) == membership(one)


def granted_then_adopted(url: str) -> None:
    routes.plain(url)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    done = psql("adopt.sql", url)
    assert done.returncode == 0, done.stdout


def granted_then_updated(url: str) -> None:
    routes.extension(url, FIRST)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    execute(url, "alter extension dever update")


def granted_then_given_back(url: str) -> None:
    routes.extension(url)
    execute(url, routes.GRANTS.format(role=APPLICATION))
    done = psql("unadopt.sql", url)
    assert done.returncode == 0, done.stdout


@pytest.mark.req("R9.1", "R9.3")
@pytest.mark.parametrize(
    "route", [granted_then_adopted, granted_then_updated, granted_then_given_back]
)
def test_grants_from_before_a_change_of_route_come_back(
    new_database: NewDatabase, tmp_path: Path, route: Callable[[str], None]
) -> None:
    source, target = new_database(), new_database()
    route(source)
    restore_plain(source, target, tmp_path)
    with connect(source) as one, connect(target) as other:
        assert any(APPLICATION in line for line in snapshot(one))
        assert snapshot(other) == snapshot(one)


@pytest.mark.req("R9.1", "R4.4")
@pytest.mark.parametrize("route", INSTALLS)
def test_work_goes_on_where_it_stood(new_database: NewDatabase, tmp_path: Path, route: str) -> None:
    source, target = new_database(), new_database()
    INSTALLS[route](source)
    fill(source)
    ((largest_id, largest_token),) = rows(
        source,
        "select greatest((select max(id) from dever.job), (select max(id) from dever.finished)),"
        " (select last_value from dever.token_seq)",
    )
    running = rows(source, "select id, token from dever.jobs where state = 'running'")
    assert len(running) == 1
    restore_custom(source, target, tmp_path)
    # A lease of before is still a lease, and a key of before still a key.
    ((id, token),) = running
    assert rows(target, f"select * from dever.complete(array[{id}], array[{token}])") == [
        (id, True)
    ]
    ((_, created),) = rows(
        target, f"select id, created from dever.enqueue('{TARGET}', '1', '{RECEIPT}')"
    )
    assert not created
    # What is new counts on.
    ((new,),) = rows(target, "select dever.send('new', '1')")
    assert new > largest_id
    ((claimed, new_token),) = rows(target, "select id, token from dever.claim('new', 'w', 1)")
    assert claimed == new
    assert new_token > largest_token


@pytest.mark.req("R9.1", "R6.4")
@pytest.mark.parametrize("route", INSTALLS)
def test_a_window_that_was_fired_is_not_fired_again(
    new_database: NewDatabase, tmp_path: Path, route: str
) -> None:
    source, target = new_database(), new_database()
    INSTALLS[route](source)
    rows(source, "select dever.schedule('hourly', '@every 1h', 'mail')")
    execute(
        source,
        "update dever.schedule set next_at = dever.clock() - interval '30 minutes';"
        "select dever.tick()",
    )
    assert rows(source, "select fired from dever.schedules") == [(1,)]
    restore_custom(source, target, tmp_path)
    assert rows(target, "select * from dever.tick()") == []
    assert rows(target, "select count(*) from dever.job") == [(1,)]


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("route", INSTALLS)
def test_sweep_starts_over_and_does_its_work(
    new_database: NewDatabase, tmp_path: Path, route: str
) -> None:
    source, target = new_database(), new_database()
    INSTALLS[route](source)
    rows(source, "select dever.send('mail', '1', expires => '1 millisecond')")
    restore_custom(source, target, tmp_path)
    execute(target, "update dever.job set expires_at = dever.clock() - interval '1 second'")
    rows(target, "select * from dever.sweep()")
    assert rows(target, "select state, reason from dever.jobs") == [("dead", "expired")]


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("route", EXTENSIONS)
def test_a_restored_extension_is_an_extension(
    new_database: NewDatabase, tmp_path: Path, route: str
) -> None:
    source, target = new_database(), new_database()
    INSTALLS[route](source)
    restore_custom(source, target, tmp_path)
    assert rows(
        target, "select extversion, dever.version() from pg_extension e where extname = 'dever'"
    ) == [(VERSION, VERSION)]
    execute(target, "drop extension dever")
    assert rows(target, "select to_regnamespace('dever')") == [(None,)]


@pytest.mark.req("R9.1", "R9.2")
def test_a_dump_of_an_older_extension_restores_into_the_new_one(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    source, target, fresh = new_database(), new_database(), new_database()
    routes.extension(source, FIRST)
    routes.extension(fresh)
    fill(source)
    restore_custom(source, target, tmp_path)
    with connect(source) as one, connect(target) as other, connect(fresh) as wanted:
        before, after = contents(one), contents(other)
        assert snapshot(other) == snapshot(wanted)
    kept = [name for name in before if name not in MADE_BY_THE_SCRIPT]
    assert {name: len(after[name]) for name in kept} == {name: len(before[name]) for name in kept}


def assert_told_apart(source: str, copy: str) -> None:
    store = Store.open(source)
    with connect(copy) as connection, pytest.raises(CrossDatabaseError):
        store.outbox("events").enqueue({"number": 1}, connection=connection)
    store.close()
    assert rows(copy, "select count(*) from dever.job") == [(0,)]


@pytest.mark.req("R3.5", "R9.1")
@pytest.mark.parametrize("route", INSTALLS)
def test_a_restored_copy_is_told_from_its_source(
    new_database: NewDatabase, tmp_path: Path, route: str
) -> None:
    source, target = new_database(), new_database()
    INSTALLS[route](source)
    restore_custom(source, target, tmp_path)
    assert_told_apart(source, target)


@pytest.mark.req("R3.5")
def test_a_copy_by_template_is_told_from_its_source(
    extension_server: Cluster, new_database: NewDatabase
) -> None:
    source, target = new_database(), new_database()
    routes.plain(source)
    names = [Identifier(url.rpartition("/")[2]) for url in (target, source)]
    with connect(extension_server.url("postgres")) as session:
        session.execute(SQL("drop database {}").format(names[0]))
        session.execute(SQL("create database {} template {}").format(*names))
    assert_told_apart(source, target)
