"""Processes with one verb each on one job, in every order of their steps; the SQLite twin.

Each process holds its write transaction open around the verb until it is told how to end it. The
one that finds the file locked says so, and its next step comes when it has the lock. The seed is
printed; `DEVER_CHAOS_SEED` repeats the sample, `DEVER_CHAOS_SCALE` makes it larger.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from one_job import (
    BACKOFF_BASE,
    BLOCKED,
    LEASE,
    STARTS,
    VERBS,
    Call,
    Ended,
    Judge,
    Live,
    State,
)
from samples import TARGET, register
from sessions import PATIENCE
from step_orders import Case, Cases

from dever_sql.sql_files import sql_directory
from dever_sql.sqlite import SQLiteEngine

SCALE = float(os.environ.get("DEVER_CHAOS_SCALE", "1"))
NOON = 1_800_000_000_000_000

# A process: one line in for each step, one or two lines out. The clock is a number in a file that
# all of them map: what a transaction reads of a table does not move, as a real clock does.
PROCESS = """
import json, mmap, sys, time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from dever_sql import sql_files, sqlite_file, sqlite_verbs as verbs
from dever_sql.sqlite_head import FRONT

path, clock_path, target, sql_files._DIRECTORY_NAMES["sqlite"] = sys.argv[1:]
with open(clock_path, "rb") as clock_file:
    clock = mmap.mmap(clock_file.fileno(), 8, access=mmap.ACCESS_READ)
LEASE = timedelta(seconds=60)

def say(value):
    print(json.dumps(value), flush=True)

def connect(*arguments, **options):
    connection = original(*arguments, **options)
    connection.create_function("test_clock", 0, lambda: int.from_bytes(clock[:], "little"))
    return connection

def pause(seconds):
    global waits
    if not waits:
        waits = True
        say("waits")
    time.sleep(seconds)

original, sqlite_file.connect = sqlite_file.connect, connect
sqlite_file.time = SimpleNamespace(monotonic=time.monotonic, sleep=pause)

def steps(verb, id, token, contract):
    ids, tokens = [id], [token]
    match verb:
        case "claim":
            return verbs.claim("default", "w2", 10, LEASE, [contract], FRONT)
        case "renew":
            return verbs.renew(ids, tokens, LEASE)
        case "complete":
            return verbs.complete(ids, tokens)
        case "retry":
            return verbs.retry(ids, tokens, ["failed"], None, None)
        case "release":
            return verbs.release(ids, tokens)
        case "sweep":
            return verbs.sweep(1000)
        case "cancel":
            return verbs.cancel(ids)
        case "redrive":
            return verbs.redrive(ids)
        case "enqueue":
            return verbs.enqueue(target, None, ["k"], None, None)

def in_words(verb, result):
    if verb == "sweep":
        return "exhausted" if result == {"exhausted": 1} else str(result) if result else None
    if not result:
        return None
    (row,) = result
    if verb == "claim":
        lease_until = verbs.microseconds(row.lease_until - datetime.fromtimestamp(0, UTC))
        return [row.id, row.token, row.attempt, lease_until]
    if verb == "enqueue":
        return [row.id, int(row.created)]
    if hasattr(row, "ok"):
        return "done" if row.ok else "lost"
    return row.outcome

class RolledBack(Exception):
    pass

file = sqlite_file.SqliteFile(path, "off")
say("ready")
for line in sys.stdin:
    verb, *about = json.loads(line)
    waits = False
    try:
        with file.write() as run:
            say({"answer": in_words(verb, run.run(steps(verb, *about)))})
            if sys.stdin.readline() == "rollback\\n":
                raise RolledBack
    except RolledBack:
        pass
    say("ended")
"""


class Process:
    """One process that works on the file."""

    def __init__(self, path: Path, clock: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, path, clock, TARGET, sql_directory("sqlite")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self.hears() == "ready"

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def hears(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        with self._process:
            pass


class Stage:
    """The file with three processes on it, and the connection that prepares and looks."""

    def __init__(self, directory: Path) -> None:
        path, clock = directory / "jobs.db", directory / "clock"
        with closing(SQLiteEngine(path, synchronous="off")) as engine:
            engine.install()
            (self.contract,) = register(engine)
        clock.write_bytes(NOON.to_bytes(8, "little"))
        with clock.open("r+b") as file:
            self._clock = mmap.mmap(file.fileno(), 8)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("pragma synchronous = off")
        [(self._queue_id,)] = self._connection.execute("select id from dever_queue")
        self._connection.execute("drop view dever_clock")
        self._connection.execute("create view dever_clock (now) as select test_clock()")
        self.processes = [Process(path, clock) for _ in range(3)]
        self.now = NOON

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self._connection.close()
        self._clock.close()

    def prepare(self, start: str) -> tuple[int, int]:
        self._set(NOON + (LEASE if start in ("lapsed", "exhausted") else 0))
        run = self._connection.execute
        run("begin immediate")
        run("delete from dever_job")
        run("delete from dever_finished")
        run("update dever_sequence set value = value + 1 where name = 'token'")
        [(token,)] = run("select value from dever_sequence where name = 'token'")
        was_claimed = start != "ready"
        leased = start in ("running", "lapsed", "exhausted")
        row = {
            "queue_id": self._queue_id,
            "run_at": BLOCKED if start == "blocked" else NOON,
            "lease_until": NOON + LEASE if leased else None,
            "token": token if was_claimed else 0,
            "attempt": int(was_claimed),
            "max_attempts": 1 if start == "exhausted" else 3,
            "contract_id": self.contract,
            "visibility_us": LEASE,
            "backoff_base_us": BACKOFF_BASE,
            "backoff_max_us": 300 * BACKOFF_BASE,
            "due_at": NOON if start == "blocked" else None,
            "created_at": NOON,
            "target": TARGET,
            "key": "k",
            "reason": "invalid_payload" if start == "blocked" else None,
            "payload": "null",
        }
        names = ", ".join(row)
        [(id,)] = run(
            f"insert into dever_job ({names}) values ({', '.join(f':{name}' for name in row)})"
            " returning id",
            row,
        ).fetchall()
        if start == "dead":
            kept = ", ".join(name for name in row if name not in ("lease_until", "due_at"))
            run(
                f"insert into dever_finished (id, outcome, finished_at, backoff_jitter, {kept})"
                f" select id, 'dead', {NOON}, 0, {kept} from dever_job"
            )
            run("delete from dever_job")
        run("commit")
        return id, row["token"]

    def advance(self) -> None:
        self._set(self.now + LEASE)

    def look(self) -> State:
        live = self._connection.execute(
            "select id, token, attempt, max_attempts, run_at, lease_until from dever_job"
        ).fetchall()
        ended = self._connection.execute(
            "select id, outcome, token, attempt, max_attempts from dever_finished"
        ).fetchall()
        assert len(live) <= 1, f"one key, and two unfinished jobs: {live}"
        assert len({row[0] for row in live + ended}) == len(live) + len(ended)
        return State(Live(*live[0]) if live else None, frozenset(Ended(*row) for row in ended))

    def _set(self, now: int) -> None:
        self.now = now
        self._clock[:] = now.to_bytes(8, "little")


class Run:
    """One case, step by step."""

    def __init__(self, stage: Stage, case: Case) -> None:
        self.stage = stage
        self.case = case
        self.id, token = stage.prepare(case.start)
        self.judge = Judge([stage.look()], token, skips=False)
        self.steps = [["verb", "end"] for _ in case.verbs]
        self.due = [0] * len(case.verbs)
        """Steps whose turn came while the process was waiting."""
        self.calls: dict[int, Call] = {}

    def faults(self) -> list[str]:
        for session in self.case.order:
            if session == len(self.steps):
                self.stage.advance()
                self.judge.history.append(f"clock: {self.stage.now}")
            else:
                self.due[session] += 1
                self._go_on(session)
        assert not any(self.steps), "every transaction has ended"
        self.judge.compare(self.stage.look())
        return self.judge.faults

    def _go_on(self, session: int) -> None:
        while self.due[session] and session not in self.calls:
            self.due[session] -= 1
            if self.steps[session].pop(0) == "verb":
                self._call(session)
            else:
                self._end(session)

    def _call(self, session: int) -> None:
        is_locked = bool(self.judge.open)
        process = self.stage.processes[session]
        call = self.judge.asked(session, self.case.verbs[session], self.id, self.stage.now, None)
        self.calls[session] = call
        process.tell(json.dumps([call.verb, self.id, call.token, self.stage.contract]))
        if is_locked:
            assert process.hears() == "waits"
            call.waited = True
        else:
            self._answered(session)

    def _end(self, session: int) -> None:
        process, commits = self.stage.processes[session], self.case.commits[session]
        process.tell("commit" if commits else "rollback")
        assert process.hears() == "ended"
        self.judge.ended(session, commits)
        if self.calls:
            # Whoever tries first has the lock now.
            waiting = {self.stage.processes[other]: other for other in self.calls}
            (first, *_), _, _ = select.select(list(waiting), [], [], PATIENCE)
            self._answered(waiting[first])

    def _answered(self, session: int) -> None:
        call = self.calls.pop(session)
        told = self.stage.processes[session].hears()["answer"]
        call.answer = tuple(told) if isinstance(told, list) else told
        self.judge.answered(call, self.stage.now)
        self._go_on(session)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with closing(Stage(tmp_path_factory.mktemp("orders"))) as stage:
        yield stage


@pytest.mark.timeout(300 * max(1, SCALE))
@pytest.mark.req("R4.2", "R4.3", "R4.4", "R4.5", "R4.6", "R3.2", "R5.6")
@pytest.mark.parametrize(("processes", "runs"), [(2, 1_500), (3, 1_000)])
def test_every_order_of_steps_ends_as_the_commits_say(
    stage: Stage, processes: int, runs: int
) -> None:
    seed = int(os.environ.get("DEVER_CHAOS_SEED") or random.randrange(2**31))
    cases = Cases(STARTS, VERBS, processes, 2)
    wrong: list[str] = []
    waited = 0
    for case in cases.sample(int(runs * SCALE), seed):
        run = Run(stage, case)
        faults = run.faults()
        history = "\n    ".join(run.judge.history)
        waited += "waited" in history
        if faults:
            wrong.append(f"{case}\n    {history}\n  " + "\n  ".join(faults))
            if len(wrong) == 5:
                break
    print(f"seed {seed}: {runs} of {len(cases)} orders, {waited} with waits")
    assert not wrong, f"seed {seed}\n" + "\n".join(wrong)
    assert waited, "processes met"
