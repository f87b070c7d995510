"""From psql to a Python worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from postgres_server import Cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "from_sqlite_shell"

pytestmark = pytest.mark.req("R3.6")


class Program:
    """The example's program with its jobs registered in PostgreSQL; no worker has ever run."""

    def __init__(self, directory: Path, url: str, cluster: Cluster) -> None:
        self.directory, self.url = directory, url
        beside = cluster.bindir / "psql" if cluster.bindir is not None else None
        found = str(beside) if beside is not None and beside.exists() else shutil.which("psql")
        if found is None:
            pytest.skip("needs psql")
        self.psql_command = found
        shutil.copy(EXAMPLE / "receipts.py", directory)
        (directory / "config").mkdir()
        settings = {
            "runtime": {"mode": "worker", "shutdown_ms": 10_000},
            "job": {
                "workers": 2,
                "poll_ms": 100,
                "lease_ms": 10_000,
                "retry_base_ms": 100,
                "retry_max_ms": 1_000,
            },
            "database": {"default": {"postgres": url}},
        }
        (directory / "config" / "setting.json").write_text(json.dumps(settings))

    def dever(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dever_sql", *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def psql(self, sql: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.psql_command, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url],
            input=sql,
            env={**os.environ, "PGOPTIONS": ""},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def program(tmp_path: Path, pg_url: str, pg_cluster: Cluster) -> Program:
    program = Program(tmp_path, pg_url, pg_cluster)
    program.dever("sql", "contracts", "receipts.py", pg_url)
    return program


FITS = '{"order_id": 7, "email": "ada@example.org"}'


def test_psql_enqueues_and_python_works(program: Program):
    done = program.psql(
        "begin; create table orders (id bigint); insert into orders values (7);"
        " select created from dever.enqueue('receipts.send_receipt', key => 'receipt:7',"
        f" payload => '{FITS}'); commit;"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "t"
    assert "receipt for order 7" in program.dever("worker", "receipts.py", "--until-idle")
    (row,) = json.loads(program.dever("jobs", "--json"))
    assert (row["state"], row["payload"]) == ("succeeded", json.loads(FITS))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (f"dever.enqueue('receipts.nothing', 'k', '{FITS}')", "receipts.nothing"),
        (
            'dever.enqueue(\'receipts.send_receipt\', \'k\', \'{"order_id": "x", "email": ""}\')',
            "payload.order_id",
        ),
        (
            "dever.enqueue('receipts.send_receipt', 'k', '{\"order_id\": 7}')",
            "payload.email is missing",
        ),
        (f"dever.enqueue('receipts.send_receipt', null, '{FITS}')", "key"),
        (f"dever.enqueue('receipts.send_receipt', ' ', '{FITS}')", "key"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_stored(program: Program, call: str, expected: str):
    done = program.psql(f"select {call};")
    assert done.returncode == 3
    assert expected in done.stderr
    assert program.psql("select count(*) from dever.jobs;").stdout == "0\n"


def test_contracts_are_printed_for_a_pipeline(program: Program):
    sql = program.dever("sql", "contracts", "receipts.py")
    assert "dever.register(" in sql
    assert program.psql("truncate dever.contract cascade;").returncode == 0
    assert program.psql(sql).returncode == 0
    call = f"select created from dever.enqueue('receipts.send_receipt', 'k', '{FITS}');"
    assert program.psql(call).stdout.strip() == "t"
