"""One key from two processes: the second waits for the file, then finds or inserts (R3.2)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from samples import TARGET, declaration

from dever_sql.sqlite import SQLiteEngine

OTHER_PROCESS = f"""
import sys
from dever_sql.sqlite import SQLiteEngine
engine = SQLiteEngine(sys.argv[1])
engine.clock()
print("ready", flush=True)
done = engine.enqueue({TARGET!r}, "k")
print(done.id, done.created, flush=True)
engine.close()
"""


@pytest.mark.req("R3.2", "R3.4")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_second_process_waits_for_the_first_ones_transaction(tmp_path: Path, commit: bool) -> None:
    """C19."""
    path = tmp_path / "jobs.db"
    with closing(SQLiteEngine(path)) as engine:
        engine.install()
        engine.register(None, [declaration()], timedelta(minutes=1))
        with closing(sqlite3.connect(path, isolation_level=None)) as first:
            first.execute("begin")
            first.execute("insert into dever_enqueue (job, key) values (?, 'k')", [TARGET])
            [(id,)] = first.execute("select id from dever_jobs where key = 'k'").fetchall()
            with subprocess.Popen(
                [sys.executable, "-c", OTHER_PROCESS, str(path)], stdout=subprocess.PIPE, text=True
            ) as second:
                assert second.stdout is not None
                assert second.stdout.readline() == "ready\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    second.wait(0.3)
                first.execute("commit" if commit else "rollback")
                other, created = second.stdout.readline().split()
                assert second.wait(20) == 0
        assert created == str(not commit)
        assert not commit or int(other) == id
        assert [row.id for row in engine.jobs()] == [int(other)]
