"""K6 on SQLite: the process is killed before the n-th statement of a tick, for every n."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dever_sql.sqlite import SQLiteEngine

VICTIM = """
import os, signal, sys
from dever_sql import sqlite_schedule
from dever_sql.sqlite import SQLiteEngine

engine = SQLiteEngine(sys.argv[1])
last = int(sys.argv[2])
with engine._writing() as run:
    count = 0

    def counted(name, parameters):
        global count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(name, parameters)

    sqlite_schedule.tick(counted, 100)
engine.close()
print(count)
"""


@pytest.mark.req("R6.4")
def test_a_tick_that_is_killed_before_any_statement_did_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    engine = SQLiteEngine(path)
    engine.install()
    for name in ("one", "two"):
        engine.schedule(name, "@every 36500d", "q")
    with engine._writing() as run:
        for name in ("one", "two"):
            run(
                "schedule_cursor",
                {"name": name, "declared": 0, "next_at": 0, "paused": 0, "skipped": 0},
            )
    before = engine.schedules()
    for last in range(1, 100):
        done = subprocess.run(
            [sys.executable, "-c", VICTIM, path, str(last)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        assert engine.schedules() == before, last
        assert engine.jobs() == [], last
    statements = int(done.stdout)
    assert statements == last - 1 >= 6
    assert [row.fired for row in engine.schedules()] == [1, 1]
    assert len(engine.jobs()) == 2
    assert engine.tick() == []
    engine.close()
