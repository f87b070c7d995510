"""A database that is not encoded in UTF-8 is refused on every route, in one line, with nothing left
behind (C55): SQL_ASCII stores any bytes, LATIN1 has no place for most characters.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_server import Cluster, find_binaries

from dever_sql.errors import InstallError
from dever_sql.postgres import PostgresEngine
from dever_sql.sql_files import schema_version, sql_directory

SQL = sql_directory("postgresql")
INSTALL = f"dever--{schema_version()}.sql"

SCRIPT_SAYS = re.compile(
    r"^(psql:.*: )?ERROR:  Dever SQL needs a database in UTF8, this one is (SQL_ASCII|LATIN1)$",
    re.MULTILINE,
)


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def url(request: pytest.FixtureRequest, pg_cluster: Cluster) -> Iterator[str]:
    """An empty database of that encoding."""
    name = f"dever_{request.param.lower()}"
    with psycopg.connect(pg_cluster.url("postgres"), autocommit=True) as session:
        session.execute(f"drop database if exists {name} with (force)".encode())
        session.execute(
            f"create database {name} encoding '{request.param}' locale 'C'"
            " template template0".encode()
        )
        yield pg_cluster.url(name)
        session.execute(f"drop database {name} with (force)".encode())


def psql(url: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    bindir = find_binaries()
    if bindir is None or not (bindir / "psql").exists():
        pytest.skip("needs psql")
    return subprocess.run(
        [bindir / "psql", "-X", "-q", *arguments, url],
        capture_output=True,
        text=True,
        timeout=60,
    )


def nothing_is_left(url: str) -> bool:
    """Nothing is in the database that was not in an empty one."""
    with psycopg.connect(url, client_encoding="utf8") as session:
        (count,) = session.execute(
            """
            select count(*)
            from pg_namespace as n
            where n.nspname !~ '^pg_(toast|temp)' and n.nspname not in
                ('pg_catalog', 'information_schema', 'public')
            """
        ).fetchone() or (None,)
    return count == 0


def by_deploy(url: str) -> subprocess.CompletedProcess[str]:
    return psql(url, "-v", "ON_ERROR_STOP=1", "-f", SQL / "deploy.sql")


def by_script(url: str) -> subprocess.CompletedProcess[str]:
    return psql(url, "-v", "ON_ERROR_STOP=1", "-1", "-f", SQL / INSTALL)


@pytest.mark.req("R4.1", "R9.1")
@pytest.mark.parametrize("route", [by_deploy, by_script])
def test_psql_stops_with_one_line(
    url: str, route: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    done = route(url)
    assert done.returncode == 3
    assert len(SCRIPT_SAYS.findall(done.stderr)) == 1
    assert done.stderr.count("ERROR:") == 1
    assert "HINT:  create the database with: create database" in done.stderr
    assert nothing_is_left(url)


@pytest.mark.req("R4.1", "R9.1")
def test_the_script_raises_its_own_code(url: str) -> None:
    with (
        psycopg.connect(url, client_encoding="utf8") as session,
        pytest.raises(psycopg.Error) as refused,
    ):
        session.execute((SQL / INSTALL).read_bytes())
    assert refused.value.sqlstate == "DV009"
    assert nothing_is_left(url)


@pytest.mark.req("R4.1", "R9.1")
def test_the_engine_refuses_to_install(url: str) -> None:
    engine = PostgresEngine(url)
    with pytest.raises(InstallError, match=r"encoded in (SQL_ASCII|LATIN1), Dever SQL needs UTF8"):
        engine.install()
    engine.close()
    assert nothing_is_left(url)


@pytest.mark.req("R4.1", "R9.1")
def test_the_command_line_says_it_in_one_line(url: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "dever", "sql", "install", url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    (line, hint) = done.stderr.strip().splitlines()
    assert re.search(r"encoded in (SQL_ASCII|LATIN1), Dever SQL needs UTF8", line)
    assert "encoding 'UTF8'" in hint
    assert nothing_is_left(url)
