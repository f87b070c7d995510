"""A worker as a process: signals, exit codes, one-file scripts (R8.1, R8.4)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from worker_tasks import until

from dever_sql.engine import JobRow
from dever_sql.sqlite import SQLiteEngine

SCRIPT = """
from __future__ import annotations

import asyncio
import sys
import time

from dever_sql import Jobs, job

jobs = Jobs()


@jobs.job(retry=3, timeout=60_000)
async def quick() -> None:
    print("ran", flush=True)


@jobs.job(retry=3, timeout=60_000)
async def slow() -> None:
    print("begun", flush=True)
    await asyncio.sleep(1.0)
    print("ended", flush=True)


@jobs.job(retry=3, timeout=60_000)
def stuck() -> None:
    print("begun", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        globals()[sys.argv[1]].enqueue(key="k")
    else:
        job.serve()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def serve(script: Path, processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, script.name], cwd=script.parent, stdout=subprocess.PIPE, text=True
    )
    processes.append(process)
    return process


def enqueue(script: Path, name: str) -> None:
    subprocess.run([sys.executable, script.name, name], cwd=script.parent, check=True)


def only_job(script: Path) -> JobRow:
    with closing(SQLiteEngine(script.with_suffix(".db"))) as engine:
        [row] = engine.jobs()
        return row


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.req("R8.1", "R8.3")
def test_a_one_file_script_serves_itself_beside_its_database(
    script: Path, processes: list[subprocess.Popen[str]]
) -> None:
    process = serve(script, processes)
    until(script.with_suffix(".db").exists)
    enqueue(script, "quick")
    assert line(process) == "ran"
    until(lambda: only_job(script).state == "succeeded")
    assert only_job(script).target == "tasks.quick"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


@pytest.mark.req("R8.4")
def test_sigterm_drains_and_exits_clean(
    script: Path, processes: list[subprocess.Popen[str]]
) -> None:
    enqueue(script, "slow")
    process = serve(script, processes)
    assert line(process) == "begun"
    process.send_signal(signal.SIGTERM)
    assert line(process) == "ended"
    assert process.wait(20) == 0
    assert only_job(script).state == "succeeded"


@pytest.mark.req("R8.4")
def test_work_that_is_cut_off_exits_with_another_code(
    script: Path, processes: list[subprocess.Popen[str]]
) -> None:
    (script.parent / "config").mkdir()
    (script.parent / "config" / "setting.json").write_text(
        '{"runtime": {"mode": "worker", "shutdown_ms": 100},'
        ' "database": {"default": {"sqlite": "tasks.db"}},'
        ' "job": {"workers": 2, "poll_ms": 100, "lease_ms": 60000,'
        ' "retry_base_ms": 1000, "retry_max_ms": 300000}}'
    )
    enqueue(script, "stuck")
    process = serve(script, processes)
    assert line(process) == "begun"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    row = only_job(script)
    assert (row.state, row.attempt) == ("ready", 1)


@pytest.mark.req("R8.4")
def test_a_second_signal_exits_at_once(
    script: Path, processes: list[subprocess.Popen[str]]
) -> None:
    enqueue(script, "stuck")
    process = serve(script, processes)
    assert line(process) == "begun"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    before = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert time.monotonic() - before < 2
    assert only_job(script).state == "running"


@pytest.mark.req("R8.1")
def test_importing_starts_nothing(tmp_path: Path) -> None:
    code = (
        "import threading, dever_sql, dever_sql.job, dever_sql.worker, dever_sql.serving\n"
        "assert threading.active_count() == 1\n"
        "import os\n"
        "assert os.listdir('.') == []\n"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)


@pytest.mark.req("R4.4", "R8.5")
def test_a_frozen_process_loses_its_job_to_another_and_writes_nothing(
    script: Path, processes: list[subprocess.Popen[str]]
) -> None:
    (script.parent / "config").mkdir()
    (script.parent / "config" / "setting.json").write_text(
        '{"runtime": {"mode": "worker", "shutdown_ms": 5000},'
        ' "database": {"default": {"sqlite": "tasks.db"}},'
        ' "job": {"workers": 1, "poll_ms": 50, "lease_ms": 1500,'
        ' "retry_base_ms": 1000, "retry_max_ms": 300000}}'
    )
    enqueue(script, "slow")
    first = serve(script, processes)
    assert line(first) == "begun"
    first.send_signal(signal.SIGSTOP)
    second = serve(script, processes)
    assert line(second) == "begun"
    first.send_signal(signal.SIGCONT)
    assert line(second) == "ended"
    until(lambda: only_job(script).state == "succeeded")
    assert only_job(script).attempt == 2
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert only_job(script).attempt == 2
