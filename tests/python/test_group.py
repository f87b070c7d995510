"""Services of one process: the first failure stops the rest (R8.2, R8.4)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from worker_tasks import enqueue, task, until

from dever_sql.engine import Engine
from dever_sql.errors import DeverError, InvalidArgument
from dever_sql.group import ApiService, Group, WorkerService
from dever_sql.worker import Worker, WorkerOptions


class Plain:
    """A service that runs until it is stopped, or does what it is told."""

    def __init__(self, act: Any = None, code: int = 0) -> None:
        self._act = act
        self._code = code
        self.began = threading.Event()
        self.stopped = threading.Event()
        self.closed = False

    async def run(self) -> int:
        self.began.set()
        if self._act is not None:
            self._act()
        while not self.stopped.is_set():
            await asyncio.sleep(0.01)
        return self._code

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True


def raiser(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


@pytest.mark.req("R8.2")
@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(0), KeyboardInterrupt(), DeverError("no")]
)
def test_the_first_failure_stops_the_rest(error: BaseException) -> None:
    group = Group()
    other = Plain()
    group.add("other", other)
    group.add("failing", Plain(raiser(error)))
    assert group.run() == 1
    assert other.stopped.is_set()
    assert other.closed


@pytest.mark.req("R8.2")
def test_a_service_that_ends_by_itself_is_a_failure() -> None:
    group = Group()
    ended, other = Plain(), Plain()
    ended.stopped.set()
    group.add("ended", ended)
    group.add("other", other)
    assert group.run() == 1
    assert other.stopped.is_set()


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("code", [0, 1])
def test_a_stop_ends_all_and_keeps_the_worst_code(code: int) -> None:
    group = Group()
    service = Plain(code=code)
    group.add("one", service)
    group.add("two", Plain())
    threading.Thread(target=lambda: (service.began.wait(10), group.stop())).start()
    assert group.run() == code


@pytest.mark.req("R8.4")
def test_a_signal_stops_the_group() -> None:
    group = Group()
    service = Plain()
    group.add("one", service)
    pid = os.getpid()
    threading.Thread(target=lambda: (service.began.wait(10), os.kill(pid, signal.SIGTERM))).start()
    before = signal.getsignal(signal.SIGTERM)
    assert group.run() == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_group_without_services_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no service"):
        Group().run()


@pytest.mark.req("R8.2")
def test_a_worker_shares_the_groups_loop(live: Engine) -> None:
    loops: list[Any] = []
    group = Group()

    async def handler() -> None:
        loops.append(asyncio.get_running_loop())
        group.stop()

    each = task(handler)
    enqueue(live, each)

    class Look(Plain):
        async def run(self) -> int:
            loops.append(asyncio.get_running_loop())
            return await super().run()

    group.add("worker", WorkerService([Worker(live, [each], WorkerOptions(poll_ms=50))]))
    group.add("look", Look())
    assert group.run() == 0
    assert len(loops) == 2
    assert loops[0] is loops[1]
    assert [row.state for row in live.jobs()] == ["succeeded"]


@pytest.mark.req("R8.3")
def test_a_port_that_is_taken_is_found_out_at_once() -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeverError, match=f"cannot listen on 127.0.0.1:{port}"):
            ApiService(None, "127.0.0.1", port)


PROGRAM = """
from __future__ import annotations

import sys
from pathlib import Path

from dever_sql import Jobs, database
from dever_sql.serving import run_program

jobs = Jobs()


@jobs.job(retry=1, timeout=10_000, name="program.mark")
async def mark() -> None:
    Path("marked").touch()


async def app(scope, receive, send):
    assert scope["type"] in ("http", "lifespan"), scope
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"].endswith("shutdown"):
                return
    await mark.aenqueue(key="k")
    await send({"type": "http.response.start", "status": 202, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


raise SystemExit(run_program(app))
"""


@pytest.mark.req("R8.2", "R8.4")
@pytest.mark.parametrize("mode", ["api", "all"])
def test_each_mode_starts_only_its_own_services(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {
        "runtime": {"mode": mode, "shutdown_ms": 5000},
        "database": {"default": {"sqlite": "app.db"}},
        "api": {"host": "127.0.0.1", "port": port},
        "job": {
            "workers": 2,
            "poll_ms": 50,
            "lease_ms": 60000,
            "retry_base_ms": 1000,
            "retry_max_ms": 300000,
        },
    }
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "setting.json").write_text(json.dumps(settings))
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path)
    try:
        until(lambda: is_open(port), 20)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert answer.status == 202
        if mode == "all":
            until((tmp_path / "marked").exists)
        else:
            time.sleep(1.0)
            assert not (tmp_path / "marked").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
