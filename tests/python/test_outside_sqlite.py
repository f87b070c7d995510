"""From the bare sqlite3 shell to a Python worker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "from_sqlite_shell"

pytestmark = [
    pytest.mark.req("R3.6"),
    pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 shell"),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The example with its jobs registered; no worker has ever run."""
    directory = tmp_path / "example"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
    dever(directory, "sql", "contracts", "receipts.py", f"sqlite:///{directory}/receipts.db")
    return directory


def dever(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dever_sql", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shell(directory: Path, sql: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sqlite3", "-bail", "receipts.db"],
        cwd=directory,
        input=sql,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def enqueue(job: str, key: str, payload: str) -> str:
    return f"insert into dever_enqueue (job, key, payload) values ({job}, {key}, {payload});"


def test_the_shell_enqueues_and_python_works(program: Path):
    done = shell(program, (program / "enqueue.sql").read_text())
    assert done.returncode == 0, done.stderr
    assert "ready|receipt:7" in done.stdout
    assert "receipt for order 7" in dever(program, "worker", "receipts.py", "--until-idle")
    (row,) = json.loads(dever(program, "jobs", "--file", "receipts.py", "--json"))
    assert (row["state"], row["payload"]) == (
        "succeeded",
        {"order_id": 7, "email": "ada@example.org"},
    )


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (enqueue("'receipts.nothing'", "'k'", "'{}'"), "DV004 UnknownJob"),
        (
            enqueue("'receipts.send_receipt'", "'k'", '\'{"order_id": "x", "email": ""}\''),
            "DV005 InvalidPayload: payload of job receipts.send_receipt does not fit:"
            " payload.order_id",
        ),
        (
            enqueue("'receipts.send_receipt'", "'k'", "'{\"order_id\": 7}'"),
            "payload.email is missing",
        ),
        (
            enqueue("'receipts.send_receipt'", "null", '\'{"order_id": 7, "email": ""}\''),
            "DV006 InvalidKey",
        ),
        (
            "insert into dever_enqueue (job, payload) values ('receipts.send_receipt', '{}');",
            "DV00",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_not_stored(program: Path, statement: str, expected: str):
    done = shell(program, statement)
    assert done.returncode != 0
    assert expected in done.stderr
    assert shell(program, "select count(*) from dever_jobs;").stdout == "0\n"


@pytest.mark.req("R3.1")
def test_a_key_is_enqueued_once_while_unfinished(program: Path):
    fits = enqueue("'receipts.send_receipt'", "'k'", '\'{"order_id": 7, "email": ""}\'')
    assert shell(program, fits * 2).returncode == 0
    assert shell(program, "select count(*) from dever_jobs;").stdout == "1\n"


@pytest.mark.req("R3.4")
def test_a_rollback_takes_the_job_along(program: Path):
    fits = enqueue("'receipts.send_receipt'", "'k'", '\'{"order_id": 7, "email": ""}\'')
    assert shell(program, f"begin immediate; {fits} rollback;").returncode == 0
    assert shell(program, "select count(*) from dever_jobs;").stdout == "0\n"


def test_the_examples_script_runs(program: Path, tmp_path: Path):
    (program / "receipts.db").unlink()
    for name in ("receipts.db-wal", "receipts.db-shm"):
        (program / name).unlink(missing_ok=True)
    command = tmp_path / "bin" / "dever"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dever_sql "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["sh", str(program / "run.sh")],
        env={"PATH": f"{command.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "receipt for order 7" in done.stdout
