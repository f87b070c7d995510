"""Whatever lies in a caller's search_path, Dever SQL calls nothing of it (R9.3).

Every operator, and every function, relation and type that Dever SQL uses, stands in a schema in
front of pg_catalog, in a copy that raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from calls import ADMIN, CLIENT, EVERYBODY, INTERNAL, OBSERVE, WORKER, null_call
from conftest import _database
from hostile_path import (
    HIJACKED,
    PATHS,
    build_hostile_schema,
    build_temporary_relations,
)
from postgres_server import Cluster, find_binaries
from psycopg.types.json import Jsonb
from pytest_postgresql.executors import NoopExecutor
from samples import declaration
from sessions import Session

from dever_sql.postgres import PostgresEngine
from dever_sql.sql_files import sql_directory

CALLS = {**CLIENT, **WORKER, **ADMIN, **OBSERVE, **EVERYBODY}

STATE = (
    "select dever.send_many('q', '{1,2,3}')",
    "select * from dever.claim('q', 'w', 1)",
    "select dever.schedule('s', '@every 1h', 'q')",
    "select dever.lock_acquire('l', 'o', '1 day')",
    "select dever.lock_acquire('lapsed', 'o', '1 microsecond')",
    "select * from dever.enqueue('shop.order.job.send_receipt', 'other')",
)


@pytest.fixture(scope="module")
def hostile_url(pg_cluster: Cluster, pg_template: NoopExecutor) -> Iterator[str]:
    """A database with work in every state, and the hostile schema in it."""
    with _database(pg_cluster, "dever_hostile", pg_template.template_dbname) as url:
        with psycopg.connect(url, autocommit=True) as session:
            session.execute((sql_directory("postgresql") / "roles.sql").read_bytes())
            session.execute(
                "select * from dever.register('w', %s, '1 day')", [Jsonb([declaration()])]
            )
            for statement in STATE:
                session.execute(statement.encode())
            build_hostile_schema(session)
        yield url


@pytest.fixture
def session(hostile_url: str) -> Iterator[Session]:
    with psycopg.connect(hostile_url, autocommit=True) as session:
        yield session


def outcome(session: Session, statement: str) -> str | int:
    """How many rows a statement gives, or the code of its error; it is rolled back."""
    try:
        with session.transaction(force_rollback=True):
            return len(session.execute(statement.encode()).fetchall())
    except psycopg.Error as error:
        return error.sqlstate or "no code"


@pytest.fixture
def hostile(session: Session) -> Callable[[str], Session]:
    def hostile(path: str) -> Session:
        session.execute("set role dever_admin")
        build_temporary_relations(session)
        session.execute(f"set search_path = {path}".encode())
        return session

    return hostile


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("path", PATHS)
def test_a_call_comes_out_as_it_does_in_a_peaceful_database(
    session: Session, hostile: Callable[[str], Session], path: str
) -> None:
    """C68: every function and view that a role may use, which are all security definers but few."""
    session.execute("set role dever_admin")
    want = {name: outcome(session, statement) for name, statement in CALLS.items()}
    attacked = hostile(path)
    got = {name: outcome(attacked, statement) for name, statement in CALLS.items()}
    assert got == want
    # Most of them do something here; a list of errors would show little.
    assert sum(isinstance(each, str) for each in want.values()) <= 3


@pytest.mark.req("R9.3")
def test_no_inner_function_looks_into_the_path(session: Session) -> None:
    statements = {name: null_call(session, name) for name in INTERNAL}
    want = {name: outcome(session, statement) for name, statement in statements.items()}
    session.execute("set search_path = evil, pg_catalog, dever")
    assert {name: outcome(session, each) for name, each in statements.items()} == want


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("name", ["claim", "sweep", "schedule", "lock_renew", "configure_queue"])
def test_a_function_that_did_not_pin_its_path_would_be_caught(
    session: Session, hostile: Callable[[str], Session], name: str
) -> None:
    """What keeps the test above honest: the hostile schema does get in where it can."""
    (signature,) = session.execute(
        "select oid::regprocedure::text from pg_proc"
        " where pronamespace = 'dever'::regnamespace and proname = %s",
        [name],
    ).fetchone() or ("",)
    try:
        session.execute(f"alter function {signature} reset search_path".encode())
        assert outcome(hostile(PATHS[0]), CALLS[name]) == HIJACKED
    finally:
        session.execute("set search_path = pg_catalog; reset role")
        session.execute(
            f"alter function {signature} set search_path = pg_catalog, pg_temp".encode()
        )


# Installing and upgrading with a hostile path: what an operator in a view or in an index means is
# settled when it is made.


def by_python(url: str) -> None:
    engine = PostgresEngine(url)
    try:
        engine.install()
    finally:
        engine.close()


def by_psql(url: str) -> None:
    from upgrade.routes import psql

    bindir = find_binaries()
    if bindir is None or not (bindir / "psql").exists():
        pytest.skip("needs psql")
    done = psql("deploy.sql", url)
    assert done.returncode == 0, done.stdout


FROM_NOTHING, FROM_THE_FIRST = None, "dever--0.1.0.sql"


@pytest.mark.req("R9.3", "R9.1")
@pytest.mark.parametrize("before", [FROM_NOTHING, FROM_THE_FIRST])
@pytest.mark.parametrize("route", [by_python, by_psql])
def test_an_install_takes_nothing_from_the_installers_path(
    pg_empty_url: str, route: Callable[[str], None], before: str | None
) -> None:
    with psycopg.connect(pg_empty_url, autocommit=True) as session:
        if before is not None:
            with session.transaction():
                session.execute((sql_directory("postgresql") / before).read_bytes())
        build_hostile_schema(session)
        name = session.info.dbname
        session.execute(f"alter database {name} set search_path = evil, pg_catalog, public")
        route(pg_empty_url)
        taken = session.execute(
            """
            select pg_describe_object(d.classid, d.objid, d.objsubid),
                pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
            from pg_depend as d
            where pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid) ~ 'evil'
                and pg_describe_object(d.classid, d.objid, d.objsubid) ~ ' dever[.]'
                and pg_describe_object(d.classid, d.objid, d.objsubid) !~ 'evil'
            """
        ).fetchall()
        assert taken == []
        assert session.execute("select dever.send('q', '1')").fetchone() is not None
