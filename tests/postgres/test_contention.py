"""Many sessions on the same keys: one job each, and not one error line in the server's log."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from threading import Barrier, Event
from typing import Any, TypeAlias

import psycopg
import pytest
from postgres_server import Cluster
from samples import declaration, register

from dever_sql.engine import Claimed
from dever_sql.postgres import PostgresEngine

Connect: TypeAlias = Callable[..., psycopg.Connection[Any]]

TARGET = "test.contention"
SCHEMA = {"kind": "json"}
LEASE = timedelta(minutes=5)


@pytest.fixture
def engine(pg_url: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(pg_url)
    yield engine
    engine.close()


@contextmanager
def no_error_lines(cluster: Cluster, url: str) -> Iterator[None]:
    """Fails when the server logged an error of this database inside the block."""
    database = url.rsplit("/", 1)[1]
    if cluster.log is None:
        yield
        return
    before = cluster.log.stat().st_size
    yield
    with cluster.log.open(errors="replace") as log:
        log.seek(before)
        lines = [line for line in log if f" {database} " in line and "ERROR:" in line]
    assert not lines, "".join(lines[:20])


@pytest.mark.req("R3.1", "R3.2", "R4.5")
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_each_job_runs_once_whatever_the_default_isolation(
    isolation: str,
    pg_cluster: Cluster,
    pg_url: str,
    connect: Connect,
    engine: PostgresEngine,
):
    """8 sessions, 5,000 enqueues over 500 shared keys; the same sessions claim and complete."""
    admin = connect()
    admin.execute(
        f"alter database {admin.info.dbname} set default_transaction_isolation = '{isolation}'"
    )
    sessions, enqueues, keys = 8, 5_000, 500
    (contract,) = register(engine, declaration(TARGET, SCHEMA))
    start, filled = Barrier(sessions), Event()

    def client(number: int) -> tuple[list[int], list[Claimed]]:
        luck = random.Random(number)
        created: list[int] = []
        run: list[Claimed] = []
        start.wait()
        for _ in range(enqueues // sessions // 5):
            batch = [f"key-{luck.randrange(keys)}" for _ in range(5)]
            rows = engine.enqueue_many(TARGET, batch, ["{}"] * 5)
            created += [row.id for row in rows if row.created]
            if luck.random() < 0.3:
                run += finish(number)
        filled.wait()
        while done := finish(number):
            run += done
        return created, run

    def finish(number: int) -> list[Claimed]:
        claimed = engine.claim("default", f"w{number}", 20, LEASE, [contract])
        waiting = {job.id: job.token for job in claimed}
        while waiting:
            # Busy: a claim that lost the race for the row has it locked until its commit.
            verdicts = engine.complete(list(waiting), list(waiting.values()))
            assert not [verdict for verdict in verdicts if verdict.ok is False]
            waiting = {v.id: waiting[v.id] for v in verdicts if v.ok is None}
        return claimed

    with no_error_lines(pg_cluster, pg_url), ThreadPoolExecutor(sessions) as pool:
        futures = [pool.submit(client, number) for number in range(sessions)]
        filled.set()
        results = [future.result() for future in futures]
    created = Counter(id for ids, _ in results for id in ids)
    run = Counter(claimed.id for _, jobs in results for claimed in jobs)
    assert max(created.values()) == 1, "two calls say that they created the same job"
    assert run == created
    assert engine.queues()[0].ready == 0


@pytest.mark.req("R3.2", "R3.4")
def test_one_key_from_64_sessions_with_rollbacks_is_one_job(
    engine: PostgresEngine, pg_cluster: Cluster, pg_url: str, connect: Connect
):
    register(engine, declaration(TARGET, SCHEMA))
    sessions, rounds = 64, 4
    start = Barrier(sessions)

    def client(number: int) -> list[tuple[int, str, int, bool, bool]]:
        luck = random.Random(number)
        answers: list[tuple[int, str, int, bool, bool]] = []
        with psycopg.connect(pg_url, application_name=f"client {number}") as connection:
            start.wait()
            for round in range(rounds):
                key = f"key-{round}"
                row = connection.execute(
                    "select id, created from dever.enqueue(%s, %s, '{}')", [TARGET, key]
                ).fetchone()
                assert row is not None
                keep = luck.random() < 0.3
                (connection.commit if keep else connection.rollback)()
                answers.append((number, key, *row, keep))
        return answers

    with no_error_lines(pg_cluster, pg_url), ThreadPoolExecutor(sessions) as pool:
        answers = [
            answer
            for future in [pool.submit(client, number) for number in range(sessions)]
            for answer in future.result()
        ]
    stored = dict(connect().execute("select key, id from dever.jobs").fetchall())
    for round in range(rounds):
        key = f"key-{round}"
        kept = [id for _, name, id, created, keep in answers if name == key and created and keep]
        assert kept == [stored[key]], "one committed creation, and it is the row that is there"
        assert {
            id for _, name, id, created, keep in answers if name == key and keep and not created
        } <= {stored[key]}


@pytest.mark.req("R3.2", "R3.7")
def test_batches_in_any_order_do_not_deadlock(
    engine: PostgresEngine, pg_cluster: Cluster, pg_url: str
):
    """Callers do not sort; two batches over the same keys would meet crosswise."""
    register(engine, declaration(TARGET, SCHEMA))
    sessions, batches, keys = 8, 12, 200
    start = Barrier(sessions)

    def client(number: int) -> int:
        luck = random.Random(number)
        start.wait()
        created = 0
        for batch in range(batches):
            names = [f"{batch}-{key}" for key in range(keys)]
            luck.shuffle(names)
            created += sum(row.created for row in engine.enqueue_many(TARGET, names, ["{}"] * keys))
        return created

    with no_error_lines(pg_cluster, pg_url), ThreadPoolExecutor(sessions) as pool:
        created = sum(pool.map(client, range(sessions)))
    assert created == batches * keys


@pytest.mark.req("R3.1", "R3.2", "R4.5", "R8.5")
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_plain_sessions_under_any_default_are_refused_with_40001_at_most(
    isolation: str, pg_url: str, connect: Connect, engine: PostgresEngine
):
    """8 sessions of a program of its own, which leaves the isolation to the database and runs again
    what was refused; unlike the engine, whose sessions are READ COMMITTED. Now and then a
    transaction is rolled back."""
    admin = connect()
    admin.execute(
        f"alter database {admin.info.dbname} set default_transaction_isolation = '{isolation}'"
    )
    (contract,) = register(engine, declaration(TARGET, SCHEMA))
    sessions, rounds, keys = 8, 40, 50
    start = Barrier(sessions)

    def client(number: int) -> tuple[list[int], list[int], set[str]]:
        luck = random.Random(number)
        created: list[int] = []
        run: list[int] = []
        refusals: set[str] = set()

        def until_accepted(work: Callable[[psycopg.Connection[Any]], list[int]]) -> list[int]:
            keep = luck.random() < 0.8
            while True:
                try:
                    ids = work(session)
                    (session.commit if keep else session.rollback)()
                except psycopg.Error as error:
                    session.rollback()
                    refusals.add(error.sqlstate or str(error))
                    if not refusals <= {"40001"}:
                        raise
                else:
                    return ids if keep else []

        def enqueue(session: psycopg.Connection[Any]) -> list[int]:
            rows = session.execute(
                "select id from dever.enqueue_many(%s, %s, array_fill('{}'::jsonb, array[5]))"
                " where created",
                [TARGET, [f"key-{key}" for key in luck.sample(range(keys), 5)]],
            )
            return [id for (id,) in rows]

        def finish(session: psycopg.Connection[Any]) -> list[int]:
            claimed = session.execute(
                "select id, token from dever.claim('default', %s, 3, '5 minutes', %s)",
                [f"w{number}", [contract]],
            ).fetchall()
            ids, tokens = [id for id, _ in claimed], [token for _, token in claimed]
            done = session.execute(
                "select id from dever.complete(%s::bigint[], %s::bigint[]) where ok", [ids, tokens]
            ).fetchall()
            assert len(done) == len(claimed), "what this transaction has claimed is its own"
            return ids

        with psycopg.connect(pg_url) as session:
            start.wait()
            for _ in range(rounds):
                created += until_accepted(enqueue)
                run += until_accepted(finish)
        return created, run, refusals

    with ThreadPoolExecutor(sessions) as pool:
        futures = [pool.submit(client, number) for number in range(sessions)]
        results = [future.result() for future in futures]
    while left := engine.claim("default", "last", 100, LEASE, [contract]):
        assert all(v.ok for v in engine.complete([j.id for j in left], [j.token for j in left]))
        results.append(([], [job.id for job in left], set()))
    created = Counter(id for ids, _, _ in results for id in ids)
    run = Counter(id for _, ids, _ in results for id in ids)
    refusals = set[str]().union(*(each for _, _, each in results))
    assert max(created.values()) == 1
    assert run == created
    assert refusals <= (set() if isolation == "read committed" else {"40001"})
