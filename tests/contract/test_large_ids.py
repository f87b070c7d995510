"""Ids and tokens that no longer fit into 32 bits, or into the 53 bits of a float (C56)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from samples import LEASE, TARGET, claim, claim_one, declaration, register, state
from worker_tasks import enqueue, task, until

from dever_sql.engine import Engine
from dever_sql.lock import Lock
from dever_sql.postgres import PostgresEngine
from dever_sql.sqlite import SQLiteEngine
from dever_sql.worker import Worker, WorkerOptions


@pytest.fixture(params=[2**31 - 2, 2**53 + 1], ids=["2^31", "2^53"])
def first(request: pytest.FixtureRequest) -> int:
    """The next value of every sequence."""
    return request.param


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, first: int) -> Iterator[Engine]:
    """An engine of this test alone: its sequences never go back."""
    if request.param == "postgresql":
        url = request.getfixturevalue("pg_url")
        with psycopg.connect(url) as connection:
            # All but that of contracts, of which there are a handful: their ids are integers.
            connection.execute(
                "select setval(format('dever.%%I', sequencename)::regclass, %s, false)"
                " from pg_sequences where schemaname = 'dever' and data_type = 'bigint'::regtype",
                [first],
            )
        engine: Engine = PostgresEngine(url)
    else:
        path = tmp_path / "jobs.db"
        engine = SQLiteEngine(path, synchronous="off")
        engine.install()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("update dever_sequence set value = ?", [first - 1])
            for table in ("dever_job", "dever_queue", "dever_policy"):
                connection.execute("delete from sqlite_sequence where name = ?", [table])
                connection.execute(
                    "insert into sqlite_sequence (name, seq) values (?, ?)", [table, first - 1]
                )
            connection.commit()
    yield engine
    engine.close()


@pytest.mark.req("R4.1", "R4.4")
def test_claims_and_outcomes(engine: Engine, first: int) -> None:
    contracts = register(engine, declaration(backoff_base_ms=1))
    keys = ["complete", "retry", "release", "bury", "block"]
    ids = [row.id for row in engine.enqueue_many(TARGET, keys)]
    assert ids == list(range(first, first + 5))
    claimed = claim(engine, contracts, n=5)
    assert {row.token for row in claimed} == set(range(first, first + 5))
    # A token that is rounded would fit another row, too.
    for row in claimed:
        assert not engine.complete([row.id], [row.token - 1])[0].ok
        assert not engine.complete([row.id], [row.token + 1])[0].ok
    (complete, retry, release, bury, block) = ([row.id] for row in claimed)
    tokens = [row.token for row in claimed]
    assert all(verdict.ok for verdict in engine.renew(ids, tokens, LEASE))
    assert engine.complete(complete, tokens[:1])[0].ok
    assert engine.retry(retry, tokens[1:2], ["x"], None, [timedelta(0)])[0].outcome == "retried"
    assert engine.release(release, tokens[2:3])[0].ok
    assert engine.bury(bury, tokens[3:4], ["x"])[0].ok
    assert engine.block(block, tokens[4:5], ["invalid_payload"])[0].ok
    assert [state(engine, id) for id in ids] == ["succeeded", "ready", "ready", "dead", "blocked"]
    again = claim(engine, contracts, n=5, expect=2)
    assert {row.token for row in again} == {first + 5, first + 6}


@pytest.mark.req("R4.1", "R5.6")
def test_operators(engine: Engine) -> None:
    contracts = register(engine)
    ids = [row.id for row in engine.enqueue_many(TARGET, ["a", "b", "c"])]
    for id in ids[:2]:
        claimed = claim_one(engine, contracts, n=1)
        assert claimed.id == id
        engine.bury([id], [claimed.token], ["x"])
    assert [row.outcome for row in engine.redrive(ids)] == ["pending", "pending", "not_found"]
    assert [row.outcome for row in engine.cancel(ids)] == ["cancelled"] * 3
    assert engine.sweep() == {}


@pytest.mark.req("R4.1", "R7.2", "R7.4", "R7.7", "R7.8")
def test_messages_schedules_locks_and_outboxes(engine: Engine, first: int) -> None:
    assert engine.send("mail", "1") == first
    (message,) = claim(engine, None, queue="mail")
    assert engine.complete([message.id], [message.token])[0].ok
    engine.schedule("report", "@every 1s", "mail")
    fired = []
    until(lambda: fired.extend(engine.tick()) or fired)
    assert fired[0].job_id >= first
    lock = Lock(engine, "report")
    lease = lock.acquire(timedelta(seconds=10))
    assert lease is not None
    assert lease.token >= first
    assert lease.renew(timedelta(seconds=10))
    assert lease.release()
    assert engine.outbox_enqueue("events", "1") >= first


@pytest.mark.req("R4.1", "R4.7", "R8.4")
def test_a_worker_that_sleeps_wakes_and_releases_what_it_has(engine: Engine) -> None:
    began = threading.Event()

    async def handler() -> None:
        began.set()
        await asyncio.sleep(60)

    each = task(handler)
    engine.register(None, [each.contract], timedelta(minutes=1))
    worker = Worker(engine, [each], WorkerOptions(workers=1, poll_ms=60_000, shutdown_ms=1))
    worker.start()
    until(lambda: bool(engine.workers()))
    (id,) = enqueue(engine, each)
    assert began.wait(20)
    worker.stop()
    assert worker.wait(20) == 1
    row = engine.get_job(id)
    assert row is not None
    assert (row.state, row.attempt) == ("ready", 1)
