"""A server that knows the extension, and databases on it whose owner is nobody special."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pytest
from postgres_server import Cluster, find_binaries
from psycopg import sql
from upgrade.catalogue import catalogue_sizes
from upgrade.databases import FIRST, Databases
from upgrade.extension_server import extension_cluster

from dever_sql.sql_files import schema_version

OWNER = "dever_plain_owner"
APPLICATION = "dever_plain_application"

NewDatabase = Callable[[], str]
SizesOf = Callable[[str], dict[str, int]]


@pytest.fixture(scope="session")
def extension_server() -> Iterator[Cluster]:
    bindir = find_binaries()
    if bindir is None or not (bindir / "pg_config").exists() or shutil.which("make") is None:
        pytest.skip("installing an extension needs make and the server's own pg_config")
    with extension_cluster(bindir) as cluster:
        with psycopg.connect(cluster.url("postgres"), autocommit=True) as session:
            for role in (OWNER, APPLICATION):
                session.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        yield cluster


@pytest.fixture
def new_database(extension_server: Cluster) -> Iterator[NewDatabase]:
    """Makes empty databases of this test alone; gives the URL of each for its plain owner."""
    with psycopg.connect(extension_server.url("postgres"), autocommit=True) as session:
        names = (f"dever_route_{number}" for number in count(1))
        made: list[sql.Identifier] = []

        def new_database() -> str:
            name = next(names)
            made.append(sql.Identifier(name))
            session.execute(
                sql.SQL("create database {} owner {}").format(made[-1], sql.Identifier(OWNER))
            )
            return f"postgresql://{OWNER}@{extension_server.host}:{extension_server.port}/{name}"

        yield new_database
        for name in made:
            session.execute(sql.SQL("drop database {} with (force)").format(name))


@pytest.fixture
def sizes_of(extension_server: Cluster) -> SizesOf:
    """How many rows each catalogue has in the database of a URL, as a superuser sees them."""

    def sizes_of(url: str) -> dict[str, int]:
        everything = extension_server.url(url.rpartition("/")[2])
        with psycopg.connect(everything, autocommit=True) as session:
            return catalogue_sizes(session)

    return sizes_of


@pytest.fixture(scope="session")
def _databases(pg_cluster: Cluster) -> Iterator[Databases]:
    databases = Databases(pg_cluster)
    yield databases
    databases.close()


@pytest.fixture
def old_url(_databases: Databases) -> str:
    """A fresh database with the first release in it."""
    return _databases.fresh("dever_old", FIRST)


@pytest.fixture
def new_url(_databases: Databases) -> str:
    """A fresh database with this release in it."""
    return _databases.fresh("dever_new", schema_version())


@pytest.fixture
def no_url(_databases: Databases) -> str:
    """A fresh database with nothing in it."""
    return _databases.fresh("dever_none", None)
