"""A standby takes over, and the old primary lives on read-only with our sessions open (R8.5)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from postgres_server import SETTINGS, Cluster, running_cluster, running_standby
from proxy import Proxy
from worker_tasks import FINGERPRINT, enqueue, task, until

from dever_sql import database
from dever_sql.errors import DatabaseUnavailable
from dever_sql.postgres import PostgresEngine
from dever_sql.worker import Worker, WorkerOptions


class Pair:
    """Two servers, and a way that leads to whichever is the primary."""

    def __init__(self, primary: Cluster, standby: Cluster) -> None:
        self._primary = primary
        self._standby = standby
        self.proxy = Proxy(primary.url("own"))

    def fail_over(self) -> None:
        """No session is cut, which is what makes it hard to notice."""
        execute(
            self._primary,
            "alter system set default_transaction_read_only = on",
            "alter system set synchronous_standby_names = ''",
            "select pg_reload_conf()",
        )
        execute(self._standby, "select pg_promote()")
        self.proxy.lead_to(self._standby.host, self._standby.port)


def execute(server: Cluster, *statements: str) -> None:
    with closing(psycopg.connect(server.url("postgres"), autocommit=True)) as admin:
        for statement in statements:
            admin.execute(statement)


@pytest.fixture
def pair() -> Iterator[Pair]:
    settings = {**SETTINGS, "synchronous_commit": "remote_apply"}
    with running_cluster(settings) as primary:
        execute(primary, "create database own")
        with closing(PostgresEngine(primary.url("own"))) as engine:
            engine.install()
        with running_standby(primary) as standby:
            execute(
                primary,
                # Nothing that was acknowledged is missing on the standby.
                "alter system set synchronous_standby_names = '*'",
                "select pg_reload_conf()",
                "create table synchronised ()",
            )
            pair = Pair(primary, standby)
            yield pair
            pair.proxy.close()


@pytest.fixture
def engine(pair: Pair) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(pair.proxy.url)
    yield engine
    engine.close()


def patiently(call: Callable[[], Any]) -> Any:
    def once() -> Any:
        try:
            return call()
        except DatabaseUnavailable:
            time.sleep(0.05)
            return None

    return until(once, 30)


def state(engine: PostgresEngine, id: int) -> str:
    row = patiently(lambda: engine.get_job(id))
    return row.state


@pytest.mark.req("R8.5", "R4.8")
def test_the_worker_follows_and_keeps_its_lease(pair: Pair, engine: PostgresEngine) -> None:
    began, go = threading.Event(), threading.Event()

    def long() -> None:
        began.set()
        assert go.wait(60)

    async def quick() -> None:
        pass

    held, each = task(long), task(quick)
    [long_id] = enqueue(engine, held)
    enqueue(engine, each, keys=[f"before{n}" for n in range(20)])
    options = WorkerOptions(poll_ms=100, lease_ms=6_000, shutdown_ms=5_000)
    worker = Worker(engine, [held, each], options)
    worker.start()
    try:
        follow(pair, engine, each, long_id, began, go)
    finally:
        go.set()
        worker.stop()
        assert worker.wait(20) == 0


def follow(
    pair: Pair,
    engine: PostgresEngine,
    each: Any,
    long_id: int,
    began: threading.Event,
    go: threading.Event,
) -> None:
    assert began.wait(20)
    time.sleep(2.5)  # a renewal: it has a session of its own, open to the old primary
    pair.fail_over()
    ids = [patiently(lambda n=n: enqueue(engine, each, keys=[f"after{n}"]))[0] for n in range(20)]
    until(lambda: all(state(engine, id) == "succeeded" for id in ids), 30)
    time.sleep(6.0)  # a lease that is not renewed has run out
    go.set()
    until(lambda: state(engine, long_id) == "succeeded", 20)
    assert {row.attempt for row in engine.jobs(limit=100)} == {1}
    assert len(engine.jobs(limit=100)) == 41


@pytest.mark.req("R8.5", "R3.4")
def test_transactions_follow_after_one_error_each(pair: Pair, engine: PostgresEngine) -> None:
    async def quick() -> None:
        pass

    each = task(quick)
    engine.register(None, [each.contract], timedelta(minutes=1))
    database.close_all()
    database.use_engine("default", engine)
    loop = asyncio.new_event_loop()

    def place(key: str) -> None:
        with database.transaction() as tx:
            engine.enqueue_as(
                each.target, FINGERPRINT, [key], ["null"], connection=tx.dever_connection
            )

    async def aplace(key: str) -> None:
        async with database.transaction() as tx:
            await tx.execute(
                "select dever.enqueue_as(%s, %s, array[%s], array['null']::jsonb[])",
                [each.target, FINGERPRINT, key],
            )

    try:
        place("before")
        loop.run_until_complete(aplace("abefore"))
        pair.fail_over()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            place("after")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            loop.run_until_complete(aplace("aafter"))
        place("after")
        loop.run_until_complete(aplace("aafter"))
    finally:
        database.close_all()
        loop.close()
    keys = sorted(row.key or "" for row in patiently(engine.jobs))
    assert keys == ["aafter", "abefore", "after", "before"]
