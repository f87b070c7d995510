"""The one writer of a file: turns, processes, sleeping, kills."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from samples import LEASE, TARGET, register

from dever_sql import sqlite_file
from dever_sql.errors import DatabaseUnavailable, DeverError
from dever_sql.sql_files import named_statements
from dever_sql.sqlite import SQLiteEngine
from dever_sql.sqlite_file import Line

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    engine = SQLiteEngine(path)
    engine.install()
    engine.close()
    return path


@pytest.fixture
def engine(path: Path) -> Iterator[SQLiteEngine]:
    engine = SQLiteEngine(path, synchronous="normal")
    yield engine
    engine.close()


@pytest.mark.req("R4.8")
def test_renewals_are_first_in_line_and_the_rest_in_order() -> None:
    line = Line()
    assert line.enter(False, 1)
    served: list[str] = []
    threads: list[threading.Thread] = []

    def stand(name: str, urgent: bool) -> None:
        assert line.enter(urgent, 5)
        served.append(name)
        line.leave()

    for waiting, (name, urgent) in enumerate(
        [("first", False), ("second", False), ("renewal", True)], 1
    ):
        threads.append(threading.Thread(target=stand, args=(name, urgent)))
        threads[-1].start()
        while len(line._others) + len(line._urgent) < waiting:  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.001)
    line.leave()
    for thread in threads:
        thread.join()
    assert served == ["renewal", "first", "second"]


@pytest.mark.req("R4.8")
def test_turn_that_does_not_come_is_given_up() -> None:
    line = Line()
    assert line.enter(False, 1)
    assert not line.enter(True, 0.01)
    line.leave()
    assert line.enter(True, 0)


def _work(path: str, name: str, jobs: int) -> None:
    engine = SQLiteEngine(path, synchronous="normal")
    for number in range(jobs):
        engine.send("q", "1", key=f"{name}-{number}")
        claimed = engine.claim("q", name, 2)
        engine.complete([job.id for job in claimed], [job.token for job in claimed])
    engine.close()


@pytest.mark.req("R3.4", "R4.4")
def test_processes_beside_a_user_who_writes(path: Path) -> None:
    """C70, small: no error for anybody, nothing lost, no token twice."""
    processes = [FORK.Process(target=_work, args=(str(path), f"p{n}", 60)) for n in range(4)]
    for process in processes:
        process.start()
    user = sqlite3.connect(path, isolation_level=None, timeout=10)
    user.execute("create table mine (n integer)")
    while any(process.is_alive() for process in processes):
        user.execute("begin immediate")
        user.execute("insert into mine values (1)")
        user.execute("commit")
        time.sleep(0.01)
    user.close()
    assert [process.exitcode for process in processes] == [0] * 4
    engine = SQLiteEngine(path)
    left = engine.claim("q", "last", 1000)
    engine.complete([job.id for job in left], [job.token for job in left])
    rows = engine.jobs(limit=1000)
    assert {row.state for row in rows} == {"succeeded"}
    assert len({row.key for row in rows}) == len({row.token for row in rows}) == 240
    engine.close()


@pytest.mark.req("R8.1")
def test_engine_of_another_process_is_refused(engine: SQLiteEngine) -> None:
    engine.send("q", "1")

    def child() -> None:
        try:
            engine.send("q", "1")
        except DeverError as error:
            os._exit(0 if "another process" in str(error) else 1)
        os._exit(2)

    process = FORK.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    engine.send("q", "1")


@pytest.mark.req("R8.5")
def test_lock_that_is_not_had_in_time_is_trouble_that_passes(
    engine: SQLiteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_PATIENCE", 0.1)
    user = sqlite3.connect(path, isolation_level=None)
    user.execute("begin immediate")
    for call in (
        lambda: engine.send("q", "1"),
        lambda: engine.claim("q", "w", 1),
        lambda: engine.renew([1], [1], LEASE),
    ):
        with pytest.raises(DatabaseUnavailable, match="locked"):
            call()
    assert engine.jobs() == []  # reading goes on
    user.execute("rollback")
    user.close()
    engine.send("q", "1")


@pytest.mark.req("R8.1")
def test_closed_engine_says_so(path: Path) -> None:
    engine = SQLiteEngine(path)
    engine.send("q", "1")
    engine.close()
    with pytest.raises(DeverError, match="closed"):
        engine.send("q", "1")
    engine.close()


@pytest.mark.req("R8.5")
class TestSleeper:
    def test_own_commit_wakes(self, engine: SQLiteEngine) -> None:
        sleeper = engine.sleeper(["q"])
        assert sleeper.wait(10)  # the first look
        assert not sleeper.wait(0.01)
        threading.Timer(0.05, lambda: engine.send("q", "1")).start()
        assert sleeper.wait(10)
        sleeper.close()

    def test_commit_of_another_connection_wakes(self, engine: SQLiteEngine, path: Path) -> None:
        sleeper = engine.sleeper(["q"])
        assert sleeper.wait(10)  # the first look
        assert not sleeper.wait(0.01)

        def send() -> None:
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("insert into dever_send (queue, payload) values ('q', '1')")
            other.close()

        threading.Timer(0.05, send).start()
        assert sleeper.wait(10)
        sleeper.close()

    def test_it_can_be_ended(self, engine: SQLiteEngine) -> None:
        sleeper = engine.sleeper(["q"])
        assert sleeper.wait(10)  # the first look
        threading.Timer(0.05, sleeper.wake).start()
        assert sleeper.wait(10)
        sleeper.close()

    def test_it_holds_no_transaction_open(self, engine: SQLiteEngine, path: Path) -> None:
        """C72: nothing of ours keeps the WAL from being reset."""
        sleeper = engine.sleeper(["q"])
        sleeper.wait(0.01)
        engine.send("q", "1")
        engine.jobs()
        user = sqlite3.connect(path, isolation_level=None)
        assert user.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0
        user.close()
        sleeper.close()


def _send_until_killed(path: str, acknowledged: str) -> None:
    engine = SQLiteEngine(path)
    with open(acknowledged, "a", buffering=1) as log:
        number = 0
        while True:
            number += 1
            id = engine.send("q", "1", key=f"{os.getpid()}-{number}")
            log.write(f"{id}\n")
            for job in engine.claim("q", "w", 1, timedelta(seconds=60)):
                engine.complete([job.id], [job.token])


@pytest.mark.req("R4.2")
def test_kills_lose_nothing_that_was_acknowledged(path: Path, tmp_path: Path) -> None:
    """C74, small."""
    log = tmp_path / "acknowledged"
    log.touch()
    for number in range(15):
        process = FORK.Process(target=_send_until_killed, args=(str(path), str(log)))
        process.start()
        time.sleep(0.05 + number * 0.007)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    stored = {id for (id,) in connection.execute("select id from dever_jobs")}
    connection.close()
    acknowledged = {int(line) for line in log.read_text().splitlines() if line}
    assert len(acknowledged) > 15
    assert acknowledged <= stored


@pytest.mark.req("R4.2")
def test_wal_cut_at_any_byte(engine: SQLiteEngine, path: Path, tmp_path: Path) -> None:
    """C74: what a power cut may leave of the log is a state that was committed once."""
    for number in range(40):
        engine.send("q", "1", key=str(number))
    wal = path.with_name(path.name + "-wal").read_bytes()
    cut = random.Random(7)
    for number in range(40):
        copy = tmp_path / f"{number}.db"
        shutil.copy(path, copy)
        copy.with_name(copy.name + "-wal").write_bytes(wal[: cut.randrange(len(wal))])
        connection = sqlite3.connect(copy)
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        keys = connection.execute("select key from dever_jobs order by id").fetchall()
        assert keys == [(str(key),) for key in range(len(keys))]
        connection.close()


@pytest.fixture(scope="module", params=["never analysed", "analysed when empty", "loaded", "all"])
def planned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    """A database whose statistics say nothing, that it is empty, or what is in it."""
    path = tmp_path_factory.mktemp("plans") / "jobs.db"
    engine = SQLiteEngine(path, synchronous="normal")
    engine.install()
    connection = sqlite3.connect(path, isolation_level=None)
    if request.param == "analysed when empty":
        connection.execute("analyze")
    if request.param in ("analysed when empty", "loaded", "all"):
        register(engine)
        engine.enqueue_many(TARGET, [f"k{n}" for n in range(2_000)])
        engine.send_many("q", ["1"] * 2_000)
        claimed = engine.claim("q", "w", 1_000)
        ids, tokens = [job.id for job in claimed], [job.token for job in claimed]
        engine.complete(ids[:980], tokens[:980])
        engine.bury(ids[980:], tokens[980:], ["no"] * 20)
    if request.param == "all":
        connection.execute("analyze")
    yield connection
    connection.close()
    engine.close()


@pytest.mark.req("R9.4")
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("claim_pick", "dever_job_claim_idx (queue_id=? AND run_at>? AND run_at<?)"),
        ("hold", "j USING INTEGER PRIMARY KEY"),
        ("renew", "dever_job USING INTEGER PRIMARY KEY"),
        ("retry_update", "dever_job USING INTEGER PRIMARY KEY"),
        ("finish_store", "j USING INTEGER PRIMARY KEY"),
        ("finish_remove", "dever_job USING INTEGER PRIMARY KEY"),
        ("enqueue_find", "dever_job_target_key_key (target=? AND key=?)"),
        ("send_find", "dever_job_queue_key_key (queue_id=? AND key=?)"),
        ("sweep_due", "dever_job_claim_idx (queue_id=? AND run_at>? AND run_at<?)"),
        ("sweep_blocked", "dever_job_claim_idx (queue_id=? AND run_at=? AND rowid>?)"),
        ("sweep_prune", "(queue_id=? AND outcome=? AND finished_at<?)"),
        ("get_job", "f USING INTEGER PRIMARY KEY"),
        ("jobs", "MERGE (UNION ALL)"),
        ("jobs_of_target", "dever_finished_target_key_idx (target=?)"),
        ("jobs_dead", "dever_finished_dead_idx (id<?)"),
        ("jobs_blocked", "dever_job_blocked_idx (id<?)"),
    ],
)
def test_plans(planned: sqlite3.Connection, statement: str, index: str) -> None:
    """Every hot statement finds its rows by index, and none reads a table of jobs to the end."""
    text = named_statements()[statement]
    parameters = dict.fromkeys(re.findall(r":([a-z_]+)", text))
    plan = [row[3] for row in planned.execute(f"explain query plan {text}", parameters)]
    assert any(index in step for step in plan), plan
    assert not {"SCAN j", "SCAN f", "SCAN dever_job", "SCAN dever_finished"} & set(plan), plan
