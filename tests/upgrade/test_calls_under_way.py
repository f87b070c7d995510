"""A call that waits while the schema is upgraded ends as if nothing had happened (R9.2)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from upgrade.ways import deploy


@pytest.mark.req("R9.2")
def test_cancel_that_waits_for_a_row_outlives_the_upgrade(old_url: str) -> None:
    with (
        psycopg.connect(old_url) as holder,
        psycopg.connect(old_url, autocommit=True) as caller,
        psycopg.connect(old_url, autocommit=True) as watcher,
        ThreadPoolExecutor(1) as pool,
    ):
        caller.execute("select dever.send('q', '1')")
        holder.execute("select from dever.job for update")
        call = "select outcome from dever.cancel(array(select id from dever.jobs))"
        running = pool.submit(lambda: caller.execute(call).fetchall())
        waiting = "select from pg_locks where not granted and pid = %s"
        while not watcher.execute(waiting, [caller.info.backend_pid]).fetchall():
            assert not running.done()
        assert deploy(old_url).code == 0
        holder.rollback()
        assert running.result(timeout=30) == [("cancelled",)]
