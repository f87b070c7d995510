"""Servers, databases and clocks for all tests. Nothing here starts before a test asks for it."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from engines import (
    START,
    Clock,
    Installed,
    PostgresClock,
    PostgresRaw,
    Raw,
    SqliteClock,
    SqliteRaw,
)
from postgres_server import Cluster, running_cluster, server_version
from pytest_postgresql import factories
from pytest_postgresql.executors import NoopExecutor
from pytest_postgresql.janitor import DatabaseJanitor

from dever_sql import sql_files
from dever_sql.engine import Engine
from dever_sql.postgres import PostgresEngine
from dever_sql.sql_files import sql_directory
from dever_sql.sqlite import SQLiteEngine

MODULE_DATABASE = "dever_module"

# Another copy of `sql/` and `sqlite_port/` to test, e.g. one with a fault in it (mutants.py).
if directory := os.environ.get("DEVER_TEST_SQL"):
    sql_files._DIRECTORY_NAMES["postgresql"] = f"{directory}/sql"
    sql_files._DIRECTORY_NAMES["sqlite"] = f"{directory}/sqlite_port"


def pytest_configure() -> None:
    # A time limit's SIGTERM ends like Ctrl-C, so that no server is left behind.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"postgresql: {server_version()}"


# PostgreSQL: one cluster a test process, one template with the engine installed.


def install_script() -> str:
    """The newest built install script, else the sources it is built from."""
    directory = sql_directory("postgresql")
    built = [path for path in directory.glob("dever--[0-9]*.sql") if path.name.count("--") == 1]
    if built:
        version = max(
            built, key=lambda path: [int(part) for part in path.stem.split("--")[1].split(".")]
        )
        return version.read_text(encoding="utf-8")
    return "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((directory / "src").glob("*.sql"))
    )


def load_engine(
    *, host: str, port: int, user: str, dbname: str, password: str | None, **_: Any
) -> None:
    with psycopg.connect(
        host=host, port=port, user=user, dbname=dbname, password=password
    ) as connection:
        connection.execute(install_script())


@pytest.fixture(scope="session")
def pg_cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


pg_template = factories.postgresql_noproc(
    depends_on="pg_cluster", dbname="dever", load=[load_engine]
)
pg_connection = factories.postgresql("pg_template")


@pytest.fixture
def pg_url(pg_cluster: Cluster, pg_connection: psycopg.Connection[Any]) -> str:
    """A fresh database of this test alone, with the engine installed and the real clock."""
    return pg_cluster.url(pg_connection.info.dbname)


@pytest.fixture
def pg_empty_url(pg_cluster: Cluster) -> Iterator[str]:
    """A fresh database of this test alone, with nothing in it."""
    with _database(pg_cluster, "dever_empty", None) as url:
        yield url


@pytest.fixture(scope="module")
def _pg_module_url(pg_cluster: Cluster, pg_template: NoopExecutor) -> Iterator[str]:
    with _database(pg_cluster, MODULE_DATABASE, pg_template.template_dbname) as url:
        with psycopg.connect(url) as connection:
            connection.execute(PostgresClock.DEFINITION)
        yield url


class _database:
    """A database that exists inside a with block."""

    def __init__(self, cluster: Cluster, name: str, template: str | None) -> None:
        self._url = cluster.url(name)
        self._janitor = DatabaseJanitor(
            user=cluster.user,
            host=cluster.host,
            port=cluster.port,
            dbname=name,
            template_dbname=template,
            maintenance_dbname=cluster.maintenance_dbname,
            password=cluster.password,
        )

    def __enter__(self) -> str:
        self._janitor.drop()
        self._janitor.init()
        return self._url

    def __exit__(self, *_: object) -> None:
        self._janitor.drop()


@pytest.fixture(scope="module")
def _pg_module_engine(_pg_module_url: str) -> Iterator[Installed]:
    engine = PostgresEngine(_pg_module_url)
    with psycopg.connect(_pg_module_url, autocommit=True) as connection:
        yield Installed(engine, PostgresClock(connection), PostgresRaw(connection), _pg_module_url)
    engine.close()


def _empty_postgres(connection: psycopg.Connection[Any]) -> None:
    # Identities go on: what a session remembers about a queue id never meets another queue. DELETE
    # because TRUNCATE makes every session plan everything anew, five times the cost of a test.
    rows = connection.execute(
        "select format('%I.%I', schemaname, tablename) from pg_catalog.pg_tables"
        " where schemaname = 'dever' and tablename not in ('installation', 'sweep_cursor')"
    ).fetchall()
    referring = ["dever.worker_policy", "dever.schedule", "dever.policy"]
    tables = [*referring, *(name for (name,) in rows if name not in referring)]
    connection.execute("set lock_timeout = '10s'")
    connection.execute(
        "; ".join(f"delete from {table}" for table in tables)
        + "; update dever.sweep_cursor set queue_id = 0, run_at = '-infinity', job_id = 0"
    )


# Both engines


@pytest.fixture(params=["sqlite", "postgresql"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installed]:
    """Each engine in turn, empty, its clock standing at START."""
    if request.param == "postgresql":
        postgres: Installed = request.getfixturevalue("_pg_module_engine")
        assert isinstance(postgres.raw, PostgresRaw)
        _empty_postgres(postgres.raw.connection)
        postgres.clock.set(START)
        yield postgres
        return
    path = tmp_path / "jobs.db"
    # Not "full": the tests that pull the plug make their own engine.
    engine = SQLiteEngine(path, synchronous="normal")
    engine.install()
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("pragma busy_timeout = 10000")
    connection.execute("pragma synchronous = off")
    yield Installed(engine, SqliteClock(connection), SqliteRaw(connection), f"sqlite:///{path}")
    connection.close()
    engine.close()


@pytest.fixture
def engine(installed: Installed) -> Engine:
    return installed.engine


@pytest.fixture
def clock(installed: Installed) -> Clock:
    return installed.clock


@pytest.fixture
def raw(installed: Installed) -> Raw:
    return installed.raw


@pytest.fixture
def connect(pg_url: str) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Opens raw sessions on this test's own database; all are closed at the end."""
    opened: list[psycopg.Connection[Any]] = []

    def connect(name: str = "test", **options: Any) -> psycopg.Connection[Any]:
        session = psycopg.connect(pg_url, application_name=name, **{"autocommit": True, **options})
        opened.append(session)
        return session

    yield connect
    for session in opened:
        session.close()
