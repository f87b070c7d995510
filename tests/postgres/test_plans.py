"""Each statement on the job tables has one plan, whatever the statistics and however many rows.

Queue tables are analysed when they are empty and loaded afterwards, and a session keeps the plans
of its first calls. So each statement is measured by the buffers it reads (a figure that does not
depend on the machine) and its inner plans are looked at, at 0, 1,000 and 1,000,000 rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
import pytest
from postgres_server import Cluster
from psycopg.types.json import Jsonb
from pytest_postgresql.executors import NoopExecutor
from samples import declaration

Statistics = Literal["of the empty tables, plans too", "of the empty tables", "none", "fresh"]
STATISTICS: tuple[Statistics, ...] = (
    "of the empty tables, plans too",
    "of the empty tables",
    "none",
    "fresh",
)
BACKLOG, FOREIGN, FUTURE = "test.backlog", "test.foreign", "test.future"
QUEUES = {BACKLOG: "backlog", FOREIGN: "backlog", FUTURE: "future"}

# Buffers, index pages included: at most 10 for a row that is claimed or changed, 100 for a call.
LIMITS = {
    "claim 10": 250,
    "claim 10 behind rows of foreign contracts": 1_500,
    "claim 10 messages behind rows of foreign contracts": 1_500,
    "claim 10 where all others are in the future": 250,
    "claim from an empty queue": 100,
    "renew 10": 250,
    "complete 10": 400,
    "retry 10": 500,
    "retry 10 at the last attempt": 600,
    "bury 10": 400,
    "block 10": 400,
    "release 10": 300,
    "cancel 10": 400,
    "redrive 10": 500,
    "drop_jobs 10": 400,
    "enqueue": 150,
    "enqueue a duplicate": 150,
    "enqueue_many 100": 2_500,
    "send": 150,
    # It looks at 10 n rows, which lie two or three to a page at worst.
    "sweep 100": 1_500,
    "jobs: last 20": 250,
    "jobs: one id": 50,
    "jobs: one target and key": 50,
    "get_job": 50,
    "dead: last 20": 250,
    "blocked: last 20": 250,
    # Counts stop at 10,000 rows per queue and state.
    "queues": 15_000,
    "workers": 4_000,
}


@dataclass
class Session:
    """Runs statements and remembers which read too much or had a plan that will not last."""

    connection: psycopg.Connection[Any]
    faults: list[str] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection.add_notice_handler(
            lambda notice: self.plans.append(notice.message_primary or "")
        )
        for statement in (
            "load 'auto_explain'",
            "set auto_explain.log_min_duration = 0",
            "set auto_explain.log_nested_statements = on",
            "set auto_explain.log_level = 'notice'",
            # As on a server that has it on: a plan that only looks dear would be compiled.
            "set jit = on",
        ):
            self.connection.execute(statement)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, parameters or None).fetchall()

    def measure(self, what: str, query: str, *parameters: Any) -> None:
        self.plans.clear()
        explained = self.rows(
            f"explain (analyze, buffers, format json) select * from {query}", *parameters
        )
        plan = explained[0][0][0]["Plan"]
        buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        if buffers > LIMITS[what]:
            self.faults.append(f"{what}: {buffers} buffers, {LIMITS[what]} are the limit")
        for text in self.plans:
            found = re.search(r"Seq Scan on (?:dever\.)?(?:job|finished)\b.*|JIT:", text)
            if found:
                self.faults.append(f"{what}: {found.group()} in\n{text}")

    def claim(self, n: int = 10, queue: str = "backlog") -> tuple[list[int], list[int]]:
        rows = self.rows(
            "select id, token from dever.claim(%s, 'w1', %s, '1 hour', array[%s]::int[])",
            *(queue, n, contract(self.connection, BACKLOG)),
        )
        return [id for id, _ in rows], [token for _, token in rows]

    def dead(self) -> list[int]:
        return [id for (id,) in self.rows("select id from dever.dead order by id desc limit 10")]


def contract(connection: psycopg.Connection[Any], target: str) -> int:
    row = connection.execute("select id from dever.contract where target = %s", [target]).fetchone()
    assert row is not None
    return int(row[0])


def every_statement(session: Session, tag: str) -> None:
    """Runs each statement of `LIMITS` once and measures it. Leaves the number of rows as it is,
    give or take a few hundred."""
    backlog, foreign, future = (
        contract(session.connection, target) for target in (BACKLOG, FOREIGN, FUTURE)
    )
    claim = "dever.claim(%s, 'w1', 10, '1 hour', array[%s]::int[])"
    # The first look of a session at a head full of foreign rows is a full scan, the next is not.
    session.rows(f"select count(*) from {claim}", "backlog", foreign)
    session.measure("claim 10 behind rows of foreign contracts", claim, "backlog", foreign)
    messages = "dever.claim('backlog', 'w1', 10)"
    session.rows(f"select count(*) from {messages}")
    session.measure("claim 10 messages behind rows of foreign contracts", messages)
    session.rows("select set_config('dever.head_' || id, '', false) from dever.queue")
    session.measure("claim 10", claim, "backlog", backlog)
    session.measure("claim 10 where all others are in the future", claim, "future", future)
    session.measure("claim from an empty queue", claim, "empty", backlog)

    verb = "dever.{}(%s::bigint[], %s::bigint[]{})"
    reasons = ", %s::text[]"
    ids, tokens = session.claim()
    session.measure("renew 10", verb.format("renew", ", '1 hour'"), ids, tokens)
    session.measure("retry 10", verb.format("retry", reasons), ids, tokens, ["test"] * len(ids))
    ids, tokens = session.claim()
    session.measure("complete 10", verb.format("complete", ""), ids, tokens)
    ids, tokens = session.claim()
    session.measure("bury 10", verb.format("bury", reasons), ids, tokens, ["test"] * len(ids))
    ids, tokens = session.claim()
    session.measure("release 10", verb.format("release", ""), ids, tokens)
    ids, tokens = session.claim()
    session.connection.execute(
        "update dever.job set attempt = max_attempts where id = any(%s)", [ids]
    )
    session.measure(
        "retry 10 at the last attempt",
        verb.format("retry", reasons),
        ids,
        tokens,
        ["test"] * len(ids),
    )
    ids, tokens = session.claim()
    words = ["invalid_payload"] * len(ids)
    session.measure("block 10", verb.format("block", reasons), ids, tokens, words)
    session.measure("drop_jobs 10", "dever.drop_jobs(%s::bigint[])", ids)
    session.measure("redrive 10", "dever.redrive(%s::bigint[])", session.dead())
    ids, _ = session.claim()
    session.measure("cancel 10", "dever.cancel(%s::bigint[])", ids)

    for what in ("enqueue", "enqueue a duplicate"):
        session.measure(what, "dever.enqueue(%s, %s, '{}')", BACKLOG, tag)
    session.measure(
        "enqueue_many 100",
        "dever.enqueue_many(%s, array(select %s || g from generate_series(1, 100) as g))",
        *(BACKLOG, f"{tag}-"),
    )
    session.measure("send", "dever.send('backlog', '{}')")
    session.measure("sweep 100", "dever.sweep(100)")

    session.measure("jobs: last 20", "dever.jobs order by id desc limit 20")
    session.measure("jobs: one id", "dever.jobs where id = %s::bigint", ids[0] if ids else 1)
    session.measure(
        "jobs: one target and key", "dever.jobs where target = %s and key = %s", BACKLOG, tag
    )
    session.measure("get_job", "dever.get_job(%s::bigint)", ids[0] if ids else 1)
    session.measure("dead: last 20", "dever.dead order by id desc limit 20")
    session.measure("blocked: last 20", "dever.blocked order by id desc limit 20")
    session.measure("queues", "dever.queues")
    session.measure("workers", "dever.workers")


FILL_JOB = """
    insert into dever.job (
        queue_id, run_at, due_at, max_attempts, contract_id, visibility_us, backoff_base_us,
        backoff_max_us, created_at, target, key, reason, payload
    )
    select
        (select id from dever.queue where name = %(queue)s), %(run_at)s::timestamptz,
        case when %(reason)s::text is not null then now() end, 3, c.id, 300000000, 1000000,
        300000000, now(), c.target, %(queue)s || '-' || lpad(g::text, 8, '0') || %(tag)s,
        %(reason)s, '{"order_id": 7}'
    from dever.contract as c, generate_series(1, %(rows)s) as g
    where c.target = %(target)s
"""
FILL_FINISHED = """
    insert into dever.finished (
        id, queue_id, outcome, finished_at, attempt, max_attempts, token, contract_id,
        visibility_us, backoff_base_us, backoff_max_us, backoff_jitter, run_at, created_at, target,
        key, payload
    )
    select
        nextval('dever.job_id_seq'), (select id from dever.queue where name = 'backlog'),
        case when g %% 20 = 0 then 'dead' else 'succeeded' end, now(), 1, 3, g, c.id,
        300000000, 1000000, 300000000, 0, now(), now(), c.target,
        'finished-' || lpad(g::text, 8, '0'), '{"order_id": 7}'
    from dever.contract as c, generate_series(1, %(rows)s) as g
    where c.target = %(target)s
"""


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """`rows` due in a queue, `rows` in the future in another, `rows` finished; a few of a foreign
    contract behind the due ones, and some blocked. Straight into the tables."""

    def jobs(queue: str, target: str, run_at: str, count: int, tag: str, reason: str | None = None):
        connection.execute(
            FILL_JOB,
            {
                "queue": queue,
                "target": target,
                "run_at": run_at,
                "rows": count,
                "tag": tag,
                "reason": reason,
            },
        )

    many = min(rows, 20_000)
    jobs("backlog", BACKLOG, "2020-01-01", rows, "-due")
    jobs("backlog", FOREIGN, "2020-01-02", min(rows, 1_000), "-foreign")
    jobs("future", FUTURE, "2020-01-01", min(rows, 100), "-due")
    jobs("future", FUTURE, "9000-01-01", rows, "-future")
    jobs("future", FUTURE, "infinity", many, "-blocked", "invalid_payload")
    connection.execute(FILL_FINISHED, {"rows": rows, "target": BACKLOG})


def set_statistics(connection: psycopg.Connection[Any], statistics: Statistics) -> None:
    if statistics == "fresh":
        connection.execute("analyze dever.job, dever.finished")
        return
    # relpages and reltuples as ANALYZE of an empty table leaves them, or as they are before it.
    connection.execute(
        "delete from pg_catalog.pg_statistic"
        " where starelid in ('dever.job'::regclass, 'dever.finished'::regclass)"
    )
    connection.execute(
        "update pg_catalog.pg_class set relpages = 0, reltuples = %s where oid in ("
        " select 'dever.job'::regclass union all select 'dever.finished'::regclass union all"
        " select indexrelid from pg_catalog.pg_index"
        " where indrelid in ('dever.job'::regclass, 'dever.finished'::regclass))",
        [-1 if statistics == "none" else 0],
    )


@pytest.fixture
def database(pg_cluster: Cluster, pg_template: NoopExecutor) -> Iterator[str]:
    name = "dever_plans"
    with psycopg.connect(pg_cluster.url("postgres"), autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)")
        connection.execute(f"create database {name} template {pg_template.template_dbname}")
        yield pg_cluster.url(name)
        connection.execute(f"drop database {name} with (force)")


@pytest.mark.req("R4.7", "R9.4")
@pytest.mark.parametrize("rows", [0, 1_000, 1_000_000])
def test_each_statement_reads_a_bounded_number_of_buffers(database: str, rows: int):
    with (
        psycopg.connect(database, autocommit=True) as first,
        psycopg.connect(database, autocommit=True) as filler,
    ):
        first.execute(
            "select dever.register('w1', %s, '3000 days')",
            [
                Jsonb(
                    [declaration(target, {"kind": "json"}, queue=q) for target, q in QUEUES.items()]
                )
            ],
        )
        first.execute("select dever.configure_queue('empty')")
        first.execute("analyze")
        old = Session(first)
        for round in range(7):
            # Enough for a plan that is chosen afresh at first and then kept.
            every_statement(old, f"empty-{round}")
        old.faults.clear()

        filler.execute("set synchronous_commit = off")
        fill(filler, rows)

        faults: list[str] = []
        for statistics in STATISTICS:
            if statistics == "of the empty tables, plans too":
                session = old
            else:
                set_statistics(filler, statistics)
                session = Session(psycopg.connect(database, autocommit=True))
                every_statement(session, f"{statistics}, first")  # fills the catalogue caches
                session.faults.clear()
            every_statement(session, statistics)
            faults += [f"statistics {statistics}: {fault}" for fault in session.faults]
            session.connection.close()
        assert not faults, "\n".join(faults)
