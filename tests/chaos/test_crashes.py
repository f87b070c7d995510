"""Workers killed, frozen and cut off while they work; the history of every job is checked after.

The seed is printed; `DEVER_CHAOS_SEED` repeats the schedule of faults, `DEVER_CHAOS_SCALE`
multiplies jobs and faults for a campaign. Process kills and immediate restarts show nothing about
a loss of power: the server here runs with fsync off, synchronous_commit on.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from chaos import history, nursery
from chaos.effect_log import EffectLog, read
from chaos.steady import all_rows, terminate_one, unexpected_exits, until_it_works
from postgres_server import SETTINGS, Cluster, running_cluster

from dever_sql.database import open_engine
from dever_sql.engine import Engine
from dever_sql.errors import DatabaseUnavailable

SCALE = float(os.environ.get("DEVER_CHAOS_SCALE", "1"))
WORKERS = 4
LEASE_MS = 2_000
KILLS, FREEZES, RESTARTS, TERMINATIONS = 200, 20, 10, 50
SECONDS = 60.0 * SCALE
LIVENESS_SECONDS = 60.0


@dataclass
class Run:
    """One run: the engine under test, its workers, and what was done to them."""

    url: str
    directory: Path
    luck: random.Random
    done: Counter[str] = field(default_factory=Counter)
    pids: list[int] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.logs = self.directory / "events"
        self.logs.mkdir()
        self.exits = self.directory / "exits"
        self.killed: set[int] = set()
        self._exits_file = self.exits.open("wb")
        self.parent = subprocess.Popen(
            [sys.executable, "-m", "chaos.nursery", self.url, str(self.logs), str(LEASE_MS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._exits_file,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        for _ in range(WORKERS):
            self.pids.append(self.spawn())

    def spawn(self) -> int:
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.number += 1
        self.parent.stdin.write(f"worker-{self.number}\n")
        self.parent.stdin.flush()
        return int(self.parent.stdout.readline())

    def kill(self) -> None:
        slot = self.luck.randrange(WORKERS)
        self.killed.add(self.pids[slot])
        os.kill(self.pids[slot], signal.SIGKILL)
        self.pids[slot] = self.spawn()

    def freeze(self) -> None:
        """Past the lease, then on: what it says then must be refused."""
        slot = self.luck.randrange(WORKERS)
        pid = self.pids[slot]
        os.kill(pid, signal.SIGSTOP)
        self.pids[slot] = self.spawn()
        threading.Timer(LEASE_MS / 1000 + self.luck.uniform(0.2, 1.0), self._thaw, [pid]).start()

    def _thaw(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)
        # One worker more until it is stopped, kindly.
        threading.Timer(0.5, os.kill, [pid, signal.SIGTERM]).start()

    def close(self) -> str:
        """Stops the workers; how those ended that were not killed."""
        assert self.parent.stdin is not None
        self.parent.stdin.close()
        self.parent.wait(60)
        if self.parent.stdout is not None:
            self.parent.stdout.close()
        self._exits_file.close()
        return self.exits.read_text()


def enqueue_all(url: str, logs: Path, jobs: int, seed: int, stop_at: float) -> None:
    """Jobs all through the run: some twice, some later, some in a transaction rolled back."""
    luck = random.Random(seed)
    log = EffectLog(logs, "client")
    with closing(open_engine(url)) as engine:
        tasks = nursery.tasks()
        until_it_works(
            lambda: engine.register(None, [t.contract for t in tasks], timedelta(minutes=1))
        )
        begun = time.time()
        number = 0
        while number < jobs:
            due_by_now = jobs * (time.time() - begun) / (stop_at - begun)
            if number > due_by_now:
                time.sleep(0.01)
                continue
            task = luck.choices(tasks, [60, 25, 10, 5])[0]
            count = min(luck.choice([1, 1, 5, 50, 100]), jobs - number)
            keys = [f"{task.target}-{number + n}" for n in range(count)]
            late = luck.random() < 0.1
            run_at = time.time() + luck.uniform(0, 3) if late else 0.0
            number += count
            arguments = (
                task.target,
                task.fingerprint,
                keys,
                [str(run_at)] * count,
                [datetime.fromtimestamp(run_at, UTC)] * count if late else None,
            )
            if luck.random() < 0.05:
                roll_back(engine, url, log, arguments)
                continue
            rows = until_it_works(lambda sent=arguments: engine.enqueue_as(*sent))
            for key, row in zip(keys, rows, strict=True):
                log.write("enqueued", id=row.id, key=key, created=row.created)
            if luck.random() < 0.1:
                again = until_it_works(lambda sent=arguments: engine.enqueue_as(*sent))
                for key, row in zip(keys, again, strict=True):
                    log.write("enqueued", id=row.id, key=key, created=row.created)


def roll_back(engine: Engine, url: str, log: EffectLog, arguments: tuple[Any, ...]) -> None:
    for key in arguments[2]:
        log.write("rolled back", key=key)
    with suppress(psycopg.Error, DatabaseUnavailable), closing(nursery.connect(url)) as connection:
        if url.startswith("sqlite"):
            connection.execute("begin immediate")
        engine.enqueue_as(*arguments, connection=connection)
        connection.rollback()


@contextmanager
def prepared(engine: Engine, url: str) -> Iterator[None]:
    engine.install()
    with closing(nursery.connect(url)) as connection:
        connection.execute("create table effect (job_id bigint primary key, token bigint)")
        connection.commit()
    yield


def crash(url: str, directory: Path, server: Cluster | None, jobs: int) -> None:
    seed = int(os.environ.get("DEVER_CHAOS_SEED") or random.randrange(2**31))
    print(f"seed {seed}, {url.split(':')[0]}, {jobs} jobs, {WORKERS} workers, lease {LEASE_MS} ms")
    luck = random.Random(seed)
    jobs = round(jobs * SCALE)
    with closing(open_engine(url)) as engine, prepared(engine, url):
        run = Run(url, directory, luck)
        begun = time.time()
        client = threading.Thread(
            target=enqueue_all, args=(url, run.logs, jobs, seed, begun + SECONDS * 0.95)
        )
        client.start()
        faults: list[tuple[float, str]] = [
            *((luck.uniform(1, SECONDS), "kill") for _ in range(round(KILLS * SCALE))),
            *((luck.uniform(1, SECONDS - 4), "freeze") for _ in range(round(FREEZES * SCALE))),
        ]
        if server is not None:
            faults += [
                *((luck.uniform(1, SECONDS), "restart") for _ in range(round(RESTARTS * SCALE))),
                *(
                    (luck.uniform(1, SECONDS), "terminate")
                    for _ in range(round(TERMINATIONS * SCALE))
                ),
            ]
        for at, fault in sorted(faults):
            time.sleep(max(0.0, begun + at - time.time()))
            if fault == "kill":
                run.kill()
            elif fault == "freeze":
                run.freeze()
            elif fault == "restart" and server is not None:
                server.restart(luck.choice(["fast", "immediate"]))
            elif server is not None:
                terminate_one(server, url)
            run.done[fault] += 1
        client.join()
        healed = time.monotonic()
        left: Any = None
        while time.monotonic() - healed < LIVENESS_SECONDS:
            with suppress(DatabaseUnavailable):
                engine.sweep()
                queues = engine.queues()
                left = [(q.ready, q.scheduled, q.running, q.blocked) for q in queues]
                if not any(sum(counts) for counts in left):
                    break
            time.sleep(0.2)
        drained = time.monotonic() - healed
        exits = run.close()
        rows = all_rows(engine)
        with closing(nursery.connect(url)) as connection:
            effects: dict[int, list[int]] = {}
            for id, token in connection.execute("select job_id, token from effect").fetchall():
                effects.setdefault(id, []).append(token)
    events = read(run.logs)
    states = Counter((row.state, row.reason) for row in rows)
    starts = Counter(event["id"] for event in events if event.name == "started")
    print(
        f"{dict(run.done)}; {len(rows)} jobs, {dict(states)}; {sum(starts.values())} starts;"
        f" all done {drained:.1f} s after the last fault"
    )
    broken = history.check(events, rows, LEASE_MS / 1000)
    broken += history.in_transaction(
        [row for row in rows if row.target == "app.job.transactional"], effects
    )
    broken += unexpected_exits(exits, run.killed)
    assert not any(sum(counts) for counts in left), f"seed {seed}: not all done in time: {left}"
    assert not broken, f"seed {seed}: {len(broken)} broken promises:\n" + "\n".join(broken[:40])
    assert len(rows) >= jobs * 0.8  # the others were rolled back
    assert states["succeeded", None] >= len(rows) * 0.9


@pytest.mark.req("R3.4", "R4.3", "R4.4", "R4.5", "R4.6", "R5.8", "R8.5")
@pytest.mark.timeout(300 * max(1.0, SCALE))
def test_nothing_is_lost_and_nothing_done_twice_on_postgresql(tmp_path: Path):
    with running_cluster({**SETTINGS, "synchronous_commit": "on"}) as server:
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute("create database chaos")
        crash(server.url("chaos"), tmp_path, server, jobs=20_000)


@pytest.mark.req("R3.4", "R4.3", "R4.4", "R4.5", "R4.6", "R5.8")
@pytest.mark.timeout(300 * max(1.0, SCALE))
def test_nothing_is_lost_and_nothing_done_twice_on_sqlite(tmp_path: Path):
    # In memory where there is such a place: kills do not test what fsync is for, and on a slow disk
    # it would be most of the time.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        crash(f"sqlite:///{directory}/jobs.db", tmp_path, None, jobs=20_000)
