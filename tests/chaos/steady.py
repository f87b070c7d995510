"""Workers under a steady stream of jobs, while a test does harm to their server.

Every job is kept in the effect log from its enqueue to its end; `Steady.check` says what was lost,
done twice or begun once too often.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from chaos import history, nursery
from chaos.effect_log import EffectLog, read
from postgres_server import SETTINGS, Cluster, running_cluster

from dever_sql.database import open_engine
from dever_sql.engine import Engine, JobRow
from dever_sql.errors import DatabaseUnavailable

LEASE_MS = 2_000
WORKERS = 2
RATE = 100
"""Jobs a second, far below what the workers can do."""
_PORTION = 2
_BACK_WITHIN = 5.0
_WINDOW = 5.0


def until_it_works(call: Callable[[], Any]) -> Any:
    """Repeats a call through an outage, as an idempotent client does."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except DatabaseUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def all_rows(engine: Engine) -> list[JobRow]:
    rows: list[JobRow] = []
    while page := engine.jobs(limit=5_000, before=rows[-1].id if rows else None):
        rows += page
    return rows


def unexpected_exits(exits: str, killed: set[int]) -> list[str]:
    """Workers that ended otherwise than by SIGKILL or by a clean drain."""
    faults: list[str] = []
    for line in exits.splitlines():
        if line.startswith("exit "):
            _, pid, code = line.split()
            if int(code) != (-signal.SIGKILL if int(pid) in killed else 0):
                faults.append(f"R8.5 worker {pid} ended with {code}")
        elif line.startswith("Traceback"):
            faults.append("a worker printed a traceback")
    return faults


def terminate_one(server: Cluster, url: str) -> None:
    with suppress(psycopg.Error), closing(psycopg.connect(server.url("postgres"))) as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = %s order by random() limit 1",
            [url.rsplit("/", 1)[1]],
        )


@contextmanager
def a_server() -> Iterator[tuple[Cluster, str]]:
    """A server of the test's own, with an installed database, and that database's URL."""
    # Process kills show nothing about a loss of power: fsync may stay off.
    with running_cluster({**SETTINGS, "synchronous_commit": "on"}) as server:
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute("create database chaos")
        url = server.url("chaos")
        with closing(open_engine(url)) as engine:
            engine.install()
        yield server, url


class Steady:
    """In a with block: the workers run, and a client enqueues until `drain`."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._logs = directory / "events"
        self._logs.mkdir()
        self._exits = directory / "exits"
        self._stop = threading.Event()
        self._client = threading.Thread(target=self._enqueue)

    def __enter__(self) -> Steady:
        with self._exits.open("wb") as exits:
            self._parent = subprocess.Popen(
                [
                    *(sys.executable, "-m", "chaos.nursery"),
                    *(self._url, str(self._logs), str(LEASE_MS)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=exits,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )
        assert self._parent.stdin is not None
        self._parent.stdin.write("".join(f"worker-{n}\n" for n in range(WORKERS)))
        self._parent.stdin.flush()
        self._client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._client.join()
        self._end_workers()
        assert self._parent.stdout is not None
        self._parent.stdout.close()

    def _end_workers(self) -> int:
        """Stop the workers, kindly; 0 when they and their parent have ended."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        try:
            return self._parent.wait(60)
        except subprocess.TimeoutExpired:
            self._parent.kill()
            return self._parent.wait()

    def _enqueue(self) -> None:
        log = EffectLog(self._logs, "client")
        [each] = [task for task in nursery.tasks() if task.handler is nursery.thread]
        with closing(open_engine(self._url)) as engine:
            until_it_works(lambda: engine.register(None, [each.contract], timedelta(minutes=1)))
            begun = time.monotonic()
            sent = 0
            while not self._stop.wait(max(0.0, begun + sent / RATE - time.monotonic())):
                keys = [f"k{sent + n}" for n in range(_PORTION)]
                arguments = (each.target, each.fingerprint, keys, ["0"] * _PORTION)
                rows = until_it_works(lambda sent=arguments: engine.enqueue_as(*sent))
                for key, row in zip(keys, rows, strict=True):
                    log.write("enqueued", id=row.id, key=key, created=row.created)
                sent += _PORTION
                # After an outage it goes on at its rate, without making up for what it missed.
                begun = max(begun, time.monotonic() - sent / RATE - 0.5)

    def rate_is_back(self) -> bool:
        """Whether, 5 s after this call and for 5 s, at least 90 % of what was enqueued was done."""
        since = time.time() + _BACK_WITHIN
        time.sleep(_BACK_WITHIN + _WINDOW)
        names = [event.name for event in read(self._logs) if since <= event.at < since + _WINDOW]
        enqueued, done = names.count("enqueued"), names.count("effect")
        print(f"then {enqueued} jobs were enqueued and {done} done in {_WINDOW} s")
        return done >= 0.9 * enqueued > 0

    def drain(self, seconds: float = 60.0) -> None:
        """Stop enqueuing, wait until all jobs have ended, and end the workers."""
        self._stop.set()
        self._client.join()
        deadline = time.monotonic() + seconds
        with closing(open_engine(self._url)) as engine:
            while any(row.ready + row.scheduled + row.running for row in engine.queues()):
                assert time.monotonic() < deadline, "not all jobs ended"
                time.sleep(0.1)
        assert self._end_workers() == 0

    def check(self) -> list[str]:
        """Every broken promise; to be called after `drain`."""
        events = read(self._logs)
        with closing(open_engine(self._url)) as engine:
            rows = all_rows(engine)
        broken = history.check(events, rows, LEASE_MS / 1000)
        broken += unexpected_exits(self._exits.read_text(), set())
        effects = Counter(event["id"] for event in events if event.name == "effect")
        for row in rows:
            if row.state != "succeeded":
                broken.append(f"job {row.id} is {row.state}, {row.reason}")
            if not 1 <= effects[row.id] <= row.attempt:
                broken.append(f"job {row.id}: {effects[row.id]} effects, {row.attempt} attempts")
        print(
            f"{len(rows)} jobs, {sum(effects.values())} effects,"
            f" attempts {sorted(Counter(row.attempt for row in rows).items())}"
        )
        return broken
