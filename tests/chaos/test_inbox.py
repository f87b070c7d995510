"""The inbox example under fire: workers are killed, every delivery is counted exactly once."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dever_sql.database import open_engine

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "inbox"
SAMPLES = EXAMPLE / "samples" / "deliveries.jsonl"
REAL = ROOT.parent / "shared" / "data" / "webhooks.jsonl"

WORKERS = 4
LEASE_MS = 2_000
KILLS = 8
LIMIT_SECONDS = 200


class Inbox:
    """A copy of the example with a database of its own."""

    def __init__(self, directory: Path, database: dict[str, str], url: str) -> None:
        self.directory = directory
        self.engine = open_engine(url)
        shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
        file = directory / "config" / "setting.json"
        settings: dict[str, Any] = json.loads(file.read_text())
        settings["job"] |= {"lease_ms": LEASE_MS, "poll_ms": 100}
        settings["database"] = {"default": database}
        file.write_text(json.dumps(settings))
        self.log = (directory / "worker.log").open("ab")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def receive(self, file: Path) -> str:
        return self.run("inbox", "receive", str(file))

    def worker(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dever_sql", "worker", "inbox"],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )

    def background(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "inbox", *arguments],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def states(self) -> Counter[str]:
        rows = self.engine.jobs(target="inbox.job.count", limit=1_000)
        return Counter(row.state for row in rows)

    def unfinished(self) -> int:
        return sum(
            row.ready + row.scheduled + row.running
            for row in self.engine.queues()
            if row.queue == "default"  # the outbox waits for a relay that does not run here
        )

    def report(self) -> dict[str, int]:
        lines = self.run("inbox", "report").splitlines()[1:]
        return {line.split("  ")[0].strip(): int(line.split()[-3]) for line in lines}


@pytest.fixture(params=["sqlite", "postgresql"])
def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inbox]:
    directory = tmp_path / "inbox"
    if request.param == "sqlite":
        inbox = Inbox(directory, {"sqlite": "inbox.db"}, f"sqlite:///{directory}/inbox.db")
    else:
        url = request.getfixturevalue("pg_url")
        inbox = Inbox(directory, {"postgres": url}, url)
    yield inbox
    inbox.engine.close()
    inbox.log.close()


@contextmanager
def workers(inbox: Inbox) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [inbox.worker() for _ in range(WORKERS)]
    try:
        yield running
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def expected(file: Path) -> Counter[str]:
    """Deliveries by repository, counted by the test itself."""
    deliveries = [json.loads(line) for line in file.read_text().splitlines()]
    return Counter(
        (delivery["payload"].get("repository") or {}).get("full_name", "(none)")
        for delivery in deliveries
    )


def chunks(file: Path, directory: Path) -> Iterator[Path]:
    """The deliveries in as many files as there are kills."""
    lines = file.read_text().splitlines(keepends=True)
    for number in range(KILLS):
        chunk = directory / f"chunk-{number}.jsonl"
        chunk.write_text("".join(lines[number::KILLS]))
        yield chunk


@pytest.mark.req("R3.4", "R4.4", "R4.5", "R5.8")
def test_every_delivery_is_counted_once_while_workers_are_killed(inbox: Inbox):
    file = REAL if REAL.exists() else SAMPLES
    wanted = expected(file)
    luck = random.Random(1)
    inbox.run("inbox", "prepare")
    started = time.monotonic()
    with workers(inbox) as running:
        for chunk in chunks(file, inbox.directory):
            inbox.receive(chunk)
            time.sleep(luck.uniform(0, 0.3))  # now the workers are in the middle of it
            victim = luck.randrange(WORKERS)
            running[victim].kill()
            running[victim].wait()
            running[victim] = inbox.worker()
        while inbox.unfinished() and time.monotonic() - started < LIMIT_SECONDS:
            time.sleep(0.5)
    assert inbox.states() == {"succeeded": wanted.total()}
    assert inbox.report() == wanted

    again = inbox.receive(file)
    assert again == f"0 deliveries stored, {wanted.total()} were known already\n"
    inbox.run("dever_sql", "worker", "inbox", "--until-idle")
    assert inbox.report() == wanted


@pytest.mark.req("R5.8")
def test_the_samples_run_as_the_readme_says(inbox: Inbox):
    assert inbox.receive(SAMPLES).startswith("24 deliveries stored")
    inbox.run("dever_sql", "worker", "inbox", "--until-idle")
    assert inbox.report() == expected(SAMPLES)
    assert inbox.states() == {"succeeded": 24}


@pytest.mark.req("R7.8")
def test_every_notification_arrives_with_its_key(inbox: Inbox):
    inbox.receive(SAMPLES)
    inbox.run("dever_sql", "worker", "inbox", "--until-idle")
    wanted = {json.loads(line)["delivery"] for line in SAMPLES.read_text().splitlines()}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    seen: set[str] = set()
    receiver = inbox.background("receiver", port)
    relays = [inbox.background("relay", f"http://127.0.0.1:{port}/") for _ in range(2)]
    watchdog = threading.Timer(LIMIT_SECONDS, receiver.kill)
    watchdog.start()
    try:
        assert receiver.stdout is not None
        while seen != wanted:
            line = receiver.stdout.readline()
            assert line, f"{len(seen)} of {len(wanted)} arrived"
            seen.add(line.strip())
    finally:
        watchdog.cancel()
        for process in (receiver, *relays):
            process.kill()
            process.communicate()


@pytest.mark.req("R6.3")
def test_the_hourly_summary_is_a_schedule(inbox: Inbox):
    inbox.receive(SAMPLES)
    inbox.run("dever_sql", "worker", "inbox", "--until-idle")
    (schedule,) = json.loads(inbox.run("dever_sql", "schedules", "--json"))
    assert schedule["name"] == schedule["target"] == "inbox.job.summarise"
    assert schedule["spec"] == "0 * * * *"
