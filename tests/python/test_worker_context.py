"""One handler's open transaction beside the other jobs of its worker (R4.8, R5.8)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from worker_tasks import enqueue, task, until

from dever_sql import database, job
from dever_sql.engine import Engine, JobRow
from dever_sql.sqlite import SQLiteEngine
from dever_sql.worker import Worker, WorkerOptions

LEASE = 3.0


def row_of(engine: Engine, id: int) -> JobRow:
    row = engine.get_job(id)
    assert row is not None
    return row


def connection(engine: Engine, url: str) -> Any:
    if isinstance(engine, SQLiteEngine):
        return sqlite3.connect(engine.path, isolation_level=None, timeout=10)
    return psycopg.connect(url, autocommit=True)


@pytest.fixture
def url(live: Engine, request: pytest.FixtureRequest) -> str:
    return "" if isinstance(live, SQLiteEngine) else request.getfixturevalue("pg_url")


@pytest.fixture
def start(live: Engine) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(*tasks: Any, **options: Any) -> Worker:
        options = {"poll_ms": 50, "lease_ms": round(LEASE * 1000), "workers": 5, **options}
        worker = Worker(live, tasks, WorkerOptions(**options))
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.abort()
        worker.wait(30)


class Runs:
    """Which attempts of which job started."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        self.go = threading.Event()

    def neighbour(self) -> None:
        """Runs until it is told to end, longer than a lease."""
        current = job.current()
        self.started.append((current.key, current.attempt))
        assert self.go.wait(60)


def hold_and_complete(engine: Engine, url: str, runs: Runs, seconds: float) -> Callable[[], None]:
    def holder() -> None:
        current = job.current()
        runs.started.append((current.key, current.attempt))
        with closing(connection(engine, url)) as own:
            own.execute("begin")
            current.complete(own)
            time.sleep(seconds)
            own.execute("commit")

    return holder


NEIGHBOURS = ["n1", "n2", "n3"]


def all_done(engine: Engine, ids: list[int]) -> bool:
    return all(row_of(engine, id).state == "succeeded" for id in ids)


@pytest.mark.req("R4.8", "R5.8")
def test_transaction_open_for_two_leases_delays_nobody_on_postgresql(
    live: Engine, url: str, start: Callable[..., Worker]
) -> None:
    if live.kind == "sqlite":
        pytest.skip("SQLite has one writer a file: see the next two tests")
    runs = Runs()
    neighbour = task(runs.neighbour, target="app.job.neighbour")
    held = task(hold_and_complete(live, url, runs, 2 * LEASE), target="app.job.held")
    neighbours = enqueue(live, neighbour, keys=NEIGHBOURS)
    [own] = enqueue(live, held, keys=["held"])
    # The second worker would take whatever looks abandoned.
    start(neighbour, held)
    start(neighbour, held)
    until(lambda: len(runs.started) == 4)
    until(lambda: row_of(live, own).state == "succeeded", 2 * LEASE + 20)
    runs.go.set()
    until(lambda: all_done(live, neighbours), 20)
    assert sorted(runs.started) == [("held", 1), ("n1", 1), ("n2", 1), ("n3", 1)]


@pytest.mark.req("R4.8", "R5.8")
def test_transaction_open_for_half_a_lease_costs_no_other_job_its_lease(
    live: Engine, url: str, start: Callable[..., Worker]
) -> None:
    runs = Runs()
    neighbour = task(runs.neighbour, target="app.job.neighbour")
    held = task(hold_and_complete(live, url, runs, LEASE / 2), target="app.job.held")
    neighbours = enqueue(live, neighbour, keys=NEIGHBOURS)
    start(neighbour, held)
    until(lambda: len(runs.started) == 3)
    [own] = enqueue(live, held, keys=["held"])
    until(lambda: row_of(live, own).state == "succeeded", LEASE + 20)
    time.sleep(LEASE)
    runs.go.set()
    until(lambda: all_done(live, neighbours), 20)
    assert sorted(runs.started) == [("held", 1), ("n1", 1), ("n2", 1), ("n3", 1)]


@pytest.mark.req("R4.8", "R3.4")
def test_transaction_of_two_leases_on_sqlite_is_undone_and_other_jobs_go_on(
    live: Engine, start: Callable[..., Worker]
) -> None:
    if live.kind != "sqlite":
        pytest.skip("SQLite only")
    database.close_all()
    database.use_engine("default", live)
    runs = Runs()

    def holder() -> None:
        with database.transaction() as tx:
            tx.execute("create table own (n)")
            time.sleep(2 * LEASE)

    neighbour = task(runs.neighbour, target="app.job.neighbour")
    held = task(holder, target="app.job.held", retry=1)
    neighbours = enqueue(live, neighbour, keys=NEIGHBOURS)
    start(neighbour, held, error_detail="message")
    until(lambda: len(runs.started) == 3)
    [own] = enqueue(live, held, keys=["held"])
    row = until(lambda: row_of(live, own).state == "dead" and row_of(live, own), 2 * LEASE + 20)
    assert "rolled back" in (row.error or "")
    runs.go.set()
    until(lambda: all_done(live, neighbours), 20)
    assert sorted(runs.started) == [("n1", 1), ("n2", 1), ("n3", 1)]
    with closing(connection(live, "")) as own_connection:
        found = own_connection.execute("select count(*) from sqlite_master where name = 'own'")
        assert found.fetchone() == (0,)
    database.close_all()


@pytest.mark.req("R4.8", "R3.4")
def test_nothing_is_stored_through_a_transaction_that_was_undone(
    live: Engine, start: Callable[..., Worker]
) -> None:
    """Also not one by one on the bare connection, which is outside any transaction by then."""
    if live.kind != "sqlite":
        pytest.skip("SQLite only")
    database.close_all()
    database.use_engine("default", live)
    with closing(connection(live, "")) as own:
        own.execute("create table own (n)")
    refused: list[type[Exception]] = []

    def holder() -> None:
        with database.transaction() as tx:
            tx.execute("insert into own values (1)")
            time.sleep(LEASE / 3 + 0.5)
            for statement in ("insert into own values (2)", "begin", "commit"):
                try:
                    tx.connection.execute(statement)
                except sqlite3.Error as error:
                    refused.append(type(error))

    held = task(holder, target="app.job.held", retry=1)
    start(held)
    [id] = enqueue(live, held, keys=["held"])
    until(lambda: row_of(live, id).state == "dead", LEASE + 20)
    assert len(refused) == 3
    with closing(connection(live, "")) as own:
        assert own.execute("select count(*) from own").fetchone() == (0,)
    database.close_all()
