"""Whoever installs waits for whoever is installing: psql and the CLI share one lock (R4.1)."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from dever_sql.database import open_engine
from dever_sql.postgres_install import install_lock
from dever_sql.sql_files import sql_directory

DEPLOY = sql_directory("postgresql") / "deploy.sql"
(INSTALL_LOCK,) = map(int, re.findall(r"pg_advisory_xact_lock\(([0-9]+)\)", install_lock()))


@pytest.mark.req("R4.1")
def test_the_command_line_waits_for_whoever_installs(pg_empty_url: str) -> None:
    with psycopg.connect(pg_empty_url, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(%s::bigint)", [INSTALL_LOCK])
        engine = open_engine(pg_empty_url)
        with ThreadPoolExecutor(1) as pool:
            installing = pool.submit(engine.install)
            waiting = "select from pg_locks where locktype = 'advisory' and not granted"
            while not holder.execute(waiting).fetchall():
                assert not installing.done(), "the command line did not wait for the lock"
            holder.execute("select pg_advisory_unlock(%s::bigint)", [INSTALL_LOCK])
            assert installing.result(timeout=30) == engine.version()
        engine.close()


@pytest.mark.req("R4.1", "R9.1")
@pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
def test_two_installs_by_different_routes_both_succeed(pg_empty_url: str) -> None:
    with psycopg.connect(pg_empty_url, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(%s::bigint)", [INSTALL_LOCK])
        command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(DEPLOY), pg_empty_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as psql:
            waiting = "select from pg_locks where locktype = 'advisory' and not granted"
            while not holder.execute(waiting).fetchall():
                assert psql.poll() is None, "psql did not wait for the lock"
            holder.execute("select pg_advisory_unlock(%s::bigint)", [INSTALL_LOCK])
            engine = open_engine(pg_empty_url)
            try:
                assert engine.install() == engine.version()
            finally:
                engine.close()
            said = psql.communicate(timeout=30)[0]
            assert psql.returncode == 0, said
