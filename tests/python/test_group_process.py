"""A program as a process: its modes, signals, shutdown order and exit codes (R8.2, R8.4).

The program says on standard output what happens in it, so that the tests wait for that and not for
a time to pass.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gate import Gate
from worker_tasks import until

from dever_sql.engine import Engine, JobRow

pytest.importorskip("uvicorn")

PROGRAM = '''
"""An API that enqueues, and jobs that end, do not end, or do not want to."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from dever_sql import Jobs

jobs = Jobs()


def say(words: str) -> None:
    print(words, flush=True)


@jobs.job(retry=3, timeout=60_000)
async def quick() -> None:
    say("quick ran")


@jobs.job(retry=3, timeout=60_000)
async def slow() -> None:
    say("slow begun")
    await asyncio.sleep(1.2)
    say("slow ended")


@jobs.job(retry=3, timeout=60_000)
async def held() -> None:
    say("held begun")
    while not Path("go").exists():
        await asyncio.sleep(0.02)


@jobs.job(retry=3, timeout=60_000)
async def endless() -> None:
    say("endless begun")
    try:
        await asyncio.sleep(60)
    finally:
        say("endless cancelled")


@jobs.job(retry=1, timeout=60_000)
async def last() -> None:
    say("last begun")
    await asyncio.sleep(60)


@jobs.job(retry=3, timeout=60_000)
async def stubborn() -> None:
    say("stubborn begun")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            say("stubborn goes on")


@jobs.job(retry=3, timeout=60_000)
def stuck() -> None:
    say("stuck begun")
    while True:
        time.sleep(60)


@jobs.job(retry=3, timeout=60_000)
async def blocking() -> None:
    say("blocking begun")
    time.sleep(60)


async def application(scope, receive, send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    path = scope["path"].removeprefix("/")
    if path == "wait":
        say("request begun")
        await asyncio.sleep(1.0)
    elif path == "forever":
        say("request begun")
        await asyncio.sleep(60)
    elif path == "exit":
        raise SystemExit(7)
    elif path in globals():
        await globals()[path].aenqueue(key="k")
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def lifespan(receive, send) -> None:
    while True:
        message = await receive()
        if Path("broken").exists():
            await send({"type": "lifespan.startup.failed", "message": "broken"})
            return
        await send({"type": message["type"] + ".complete"})
        say(message["type"])
        if message["type"] == "lifespan.shutdown":
            return
'''

JOB = {
    "workers": 2,
    "poll_ms": 50,
    "lease_ms": 60_000,
    "retry_base_ms": 1_000,
    "retry_max_ms": 300_000,
}


class Process:
    """The program, started; what it says line by line, and what it logs."""

    def __init__(self, directory: Path, mode: str, port: int) -> None:
        self.port = port
        self.log_file = Path(tempfile.mkstemp(suffix=".log", prefix=mode, dir=directory)[1])
        self._stderr = self.log_file.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dever_sql", "run", "program"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def events(self) -> list[tuple[str, str | None]]:
        """The events logged so far, and the services they are about."""
        lines = [json.loads(line) for line in self.log.splitlines()]
        return [(line["event"], line.get("service")) for line in lines]

    def says(self, words: str) -> None:
        """Wait for the next line, which must be this one."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == words, self.log

    def logs(self, words: str) -> None:
        """Wait for a log line with these words."""
        deadline = time.monotonic() + 20
        while words not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def exit_code(self, seconds: float = 20) -> int:
        return self._process.wait(seconds)

    def rest(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.read()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def get(self, path: str) -> int:
        connection = self.connect()
        try:
            connection.request("GET", f"/{path}")
            return connection.getresponse().status
        finally:
            connection.close()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._stderr.close()


Start = Callable[..., Process]


@pytest.fixture
def start(live: Engine, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts the program in a mode, on the database of `live`."""
    if live.kind == "sqlite":
        where = {"sqlite": "live.db"}
    else:
        where = {"postgres": request.getfixturevalue("pg_url")}
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "config").mkdir()
    started: list[Process] = []

    def start(
        mode: str,
        *,
        port: int | None = None,
        shutdown_ms: int = 10_000,
        url: str | None = None,
        **job: Any,
    ) -> Process:
        port = port or free_port()
        settings = {
            "runtime": {"mode": mode, "shutdown_ms": shutdown_ms},
            "database": {"default": where if url is None else {"postgres": url}},
            "api": {"host": "127.0.0.1", "port": port},
            "job": {**JOB, **job},
        }
        (tmp_path / "config" / "setting.json").write_text(json.dumps(settings))
        process = Process(tmp_path, mode, port)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def only_job(live: Engine) -> JobRow:
    [row] = live.jobs()
    return row


# --- modes --------------------------------------------------------------------------------------


@pytest.mark.req("R8.2")
def test_each_mode_does_only_its_own(live: Engine, start: Start) -> None:
    api = start("api")
    api.says("lifespan.startup")
    assert api.get("quick") == 200
    assert only_job(live).state == "ready"
    assert live.workers() == []
    worker = start("worker")
    worker.says("quick ran")
    until(lambda: only_job(live).state == "succeeded")
    assert not is_open(worker.port)
    [row] = live.workers()
    both = start("all")
    both.says("lifespan.startup")
    until(lambda: len(live.workers()) == 2)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert both.get("quick") == 200
    both.says("quick ran")
    for process in (api, both):
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 0
        assert "lifespan.shutdown" in process.rest()
    assert live.workers() == []
    assert row.worker in worker.log


@pytest.mark.req("R8.2", "R8.4")
@pytest.mark.parametrize("mode", ["api", "all"])
def test_a_port_in_use_is_told_before_anything_is_claimed(
    live: Engine, start: Start, mode: str
) -> None:
    first = start("api")
    first.says("lifespan.startup")
    assert first.get("quick") == 200
    second = start(mode, port=first.port)
    assert second.exit_code() == 1
    assert f"cannot listen on 127.0.0.1:{first.port}: Address already in use" in second.log
    assert "Traceback" not in second.log
    row = only_job(live)
    assert (row.state, row.attempt) == ("ready", 0)
    assert live.workers() == []
    assert first.get("") == 200


@pytest.mark.req("R8.3")
@pytest.mark.parametrize(("mode", "section"), [("api", "api"), ("worker", "job"), ("all", "job")])
def test_a_mode_without_its_settings_ends_before_it_begins(
    live: Engine, start: Start, tmp_path: Path, mode: str, section: str
) -> None:
    process = start(mode)
    process.end()
    file = tmp_path / "config" / "setting.json"
    settings = json.loads(file.read_text())
    del settings[section]
    file.write_text(json.dumps(settings))
    again = Process(tmp_path, mode, process.port)
    try:
        assert again.exit_code() == 2
        assert f"{section}: missing" in again.log
        assert not is_open(process.port)
    finally:
        again.end()


@pytest.mark.req("R8.2")
def test_an_api_that_does_not_start_leaves_the_worker_out(
    live: Engine, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    process = start("all")
    assert process.exit_code() == 1
    assert "the API did not start" in process.log
    assert live.workers() == []


@pytest.mark.req("R8.2")
def test_a_worker_without_an_installation_stops_the_api(
    start: Start, live: Engine, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if live.kind != "postgresql":
        pytest.skip("PostgreSQL only: an SQLite file is made ready")
    process = start("all")
    process.end()
    file = tmp_path / "config" / "setting.json"
    settings = json.loads(file.read_text())
    settings["database"]["default"] = {"postgres": request.getfixturevalue("pg_empty_url")}
    file.write_text(json.dumps(settings))
    again = Process(tmp_path, "all", process.port)
    try:
        assert again.exit_code() == 3
        assert "not installed" in again.log
        assert not is_open(process.port)
    finally:
        again.end()


# --- requests -----------------------------------------------------------------------------------


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_end_and_idle_connections_are_closed(
    live: Engine, start: Start, number: signal.Signals
) -> None:
    process = start("all")
    process.says("lifespan.startup")
    idle = process.connect()
    idle.request("GET", "/")
    assert idle.getresponse().read() == b"ok"
    assert idle.sock is not None  # kept alive
    running = process.connect()
    running.request("GET", "/wait")
    process.says("request begun")
    process.signal(number)
    assert idle.sock.recv(1) == b""
    until(lambda: not is_open(process.port))
    assert running.getresponse().read() == b"ok"
    process.says("lifespan.shutdown")
    assert process.exit_code() == 0
    assert process.log.count("signal received") == 1
    idle.close()
    running.close()


@pytest.mark.req("R8.4")
def test_a_request_that_does_not_end_is_cut_off_and_told(live: Engine, start: Start) -> None:
    process = start("all", shutdown_ms=300)
    process.says("lifespan.startup")
    running = process.connect()
    running.request("GET", "/forever")
    process.says("request begun")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 1
    assert ("service ended, work was cut off", "api") in process.events
    with pytest.raises((http.client.HTTPException, ConnectionError, AssertionError)):
        assert running.getresponse().status == 200
    running.close()


@pytest.mark.req("R8.2")
def test_a_request_that_exits_does_not_end_the_program(live: Engine, start: Start) -> None:
    process = start("all")
    process.says("lifespan.startup")
    connection = process.connect()
    connection.request("GET", "/exit")
    with pytest.raises((http.client.HTTPException, ConnectionError, AssertionError)):
        assert connection.getresponse().status == 200
    connection.close()
    process.signal(signal.SIGTERM)
    process.exit_code()
    # Whatever the server makes of it, the worker has said goodbye.
    assert live.workers() == []


# --- jobs ---------------------------------------------------------------------------------------


def running(start: Start, name: str, mode: str = "all", **settings: Any) -> Process:
    """A process in which the job `name` has begun."""
    process = start(mode, **settings)
    process.says("lifespan.startup")
    assert process.get(name) == 200
    process.says(f"{name} begun")
    return process


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_ends_within_the_drain_is_done(
    live: Engine, start: Start, number: signal.Signals
) -> None:
    process = running(start, "slow")
    process.signal(number)
    assert process.exit_code() == 0
    assert "slow ended" in process.rest()
    assert only_job(live).state == "succeeded"
    assert live.workers() == []


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_longer_than_the_lease_keeps_the_lease(
    live: Engine, start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = running(start, "held", lease_ms=500, shutdown_ms=60_000)
    process.signal(number)
    other = start("worker", lease_ms=500)
    other.logs("worker started")
    time.sleep(1.0)  # two leases, in which the other one looks for work
    (tmp_path / "go").touch()
    assert process.exit_code() == 0
    row = only_job(live)
    assert (row.state, row.attempt) == ("succeeded", 1)
    other.signal(signal.SIGTERM)
    assert other.exit_code() == 0
    assert "begun" not in other.rest()


@pytest.mark.req("R8.4")
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("endless", signal.SIGTERM),
        ("endless", signal.SIGINT),
        ("stubborn", signal.SIGTERM),
        ("stuck", signal.SIGINT),
    ],
)
def test_a_job_that_does_not_end_is_released_for_others_at_once(
    live: Engine, start: Start, name: str, number: signal.Signals
) -> None:
    process = running(start, name, shutdown_ms=200)
    process.signal(number)
    assert process.exit_code() == 1
    row = only_job(live)
    assert (row.state, row.attempt, row.lease_until) == ("ready", 1, None)
    assert live.workers() == []
    said = process.rest()
    assert ("endless cancelled" in said) == (name == "endless")
    assert ("stubborn goes on" in said) == (name == "stubborn")
    assert ("service ended, work was cut off", "worker") in process.events


@pytest.mark.req("R8.4")
def test_a_job_cut_off_at_its_last_attempt_is_dead(live: Engine, start: Start) -> None:
    process = running(start, "last", shutdown_ms=200)
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 1
    row = only_job(live)
    assert (row.state, row.reason) == ("dead", "interrupted")


@pytest.mark.req("R8.4")
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("endless", (signal.SIGTERM, signal.SIGTERM)),
        ("endless", (signal.SIGINT, signal.SIGINT)),
        ("stubborn", (signal.SIGTERM, signal.SIGINT)),
        ("stuck", (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_a_second_signal_exits_at_once(
    live: Engine, start: Start, name: str, numbers: tuple[signal.Signals, signal.Signals]
) -> None:
    process = running(start, name)
    process.signal(numbers[0])
    process.logs("signal received")
    before = time.monotonic()
    process.signal(numbers[1])
    assert process.exit_code() == 128 + numbers[1]
    assert time.monotonic() - before < 2
    said = process.rest()
    assert "endless cancelled" not in said
    assert "stubborn goes on" not in said
    assert only_job(live).state == "running"  # its lease runs out, and another starts it


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_waits_for_no_request(
    live: Engine, start: Start, number: signal.Signals
) -> None:
    process = start("all")
    process.says("lifespan.startup")
    request = process.connect()
    request.request("GET", "/forever")
    process.says("request begun")
    process.signal(number)
    process.logs("signal received")
    process.signal(number)
    assert process.exit_code() == 128 + number
    request.close()


@pytest.mark.req("R8.4")
def test_a_handler_that_blocks_the_loop_cannot_hold_up_the_exit(live: Engine, start: Start) -> None:
    if live.kind != "sqlite":
        pytest.skip("once is enough: it takes a while")
    process = running(start, "blocking", shutdown_ms=200)
    process.signal(signal.SIGTERM)
    until(lambda: only_job(live).state == "ready", 10)  # others can have it while this one hangs
    assert process.exit_code(30) == 1
    assert "something hangs" in process.log


@pytest.mark.req("R8.4")
def test_signals_while_jobs_are_claimed_and_written_lose_none(live: Engine, start: Start) -> None:
    api = start("api")
    api.says("lifespan.startup")
    for _ in range(4):
        assert api.get("quick") == 200
        process = start("worker")
        process.logs("worker started")
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 0
        assert all(row.state in ("ready", "succeeded") for row in live.jobs())
    api.signal(signal.SIGTERM)
    assert api.exit_code() == 0


@pytest.fixture
def gate(live: Engine, request: pytest.FixtureRequest) -> Iterator[Gate]:
    if live.kind != "postgresql":
        pytest.skip("PostgreSQL only")
    gate = Gate(request.getfixturevalue("pg_url"))
    yield gate
    gate.close()


@pytest.mark.req("R8.4", "R8.5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_down_cannot_hold_up_the_end(
    live: Engine, start: Start, gate: Gate, number: signal.Signals
) -> None:
    process = start("worker", url=gate.url)
    process.logs("worker started")
    gate.shut()
    process.signal(number)
    assert process.exit_code() == 0  # there was nothing to write


@pytest.mark.req("R8.4", "R8.5")
@pytest.mark.parametrize("mode", ["worker", "all"])
def test_a_server_that_was_never_there_holds_up_neither_the_start_nor_the_end(
    live: Engine, start: Start, gate: Gate, mode: str
) -> None:
    gate.shut()
    process = start(mode, url=gate.url)
    process.logs("database unavailable, trying again")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0


@pytest.mark.req("R8.4", "R8.5")
def test_a_result_that_cannot_be_written_is_told(live: Engine, start: Start, gate: Gate) -> None:
    api = start("api")
    api.says("lifespan.startup")
    assert api.get("slow") == 200
    process = start("worker", url=gate.url, lease_ms=5_000)
    process.says("slow begun")
    gate.shut()
    process.signal(signal.SIGTERM)
    process.says("slow ended")
    assert process.exit_code(30) == 1
    row = only_job(live)
    assert row.state in ("running", "ready")  # its lease runs out, and another starts it
    assert row.attempt == 1
