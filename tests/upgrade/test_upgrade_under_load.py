"""An upgrade of PostgreSQL while jobs are enqueued and worked and somebody reads for long (R9.1).

DEVER_UPGRADE_SCALE=10 takes 1,000,000 rows and a reader of half a minute.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from sessions import Blocked
from upgrade.databases import PREVIOUS
from upgrade.test_previous_release import install_previous
from worker_tasks import task, until

from dever_sql import postgres_install
from dever_sql.postgres import PostgresEngine
from dever_sql.sql_files import schema_version, upgrade_scripts
from dever_sql.worker import Worker, WorkerOptions

SCALE = float(os.environ.get("DEVER_UPGRADE_SCALE", "1"))
ROWS = round(100_000 * SCALE)
READER_SECONDS = 5.0 if SCALE < 2 else 30.0
RATE = 100
LOCK_TIMEOUT = 1.2
"""Seconds; what the head of every upgrade sets."""

LOCKS = re.compile(r"(?<=v_locks text\[\] := )('\{\}'|array\[.*?\n    \])(?=;)", re.DOTALL)
STATED = re.compile(r"\['([\w.]+)', '", re.MULTILINE)

# A step that needs what a reader holds; the real upgrade may need nothing of the kind.
COLUMN = "\nalter table dever.job add column later text;\n"
COLUMN_LOCKS = """array[
        ['dever.job', 'lock table dever.job in access exclusive mode', 'readers']
    ]"""


def load_job() -> None:
    """The job under load does nothing: what is measured is the way to it."""


LOAD = task(load_job)

FILL = """
insert into dever.job (
    queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
    created_at, target, key, payload
)
select q.id, now() + interval '1 day' + g * interval '1 second', 3, c.id, 300000000, 1000000,
    300000000, now(), c.target, 'filled:' || g, '{"number": 7}'
from dever.contract as c, dever.queue as q, generate_series(1, %s) as g
where q.name = 'default'
"""


class Load:
    """RATE jobs a second, enqueued on one thread and worked by a worker, and their instants."""

    def __init__(self, url: str) -> None:
        self.engine = PostgresEngine(url)
        self.worker = Worker(self.engine, [LOAD], WorkerOptions(workers=4, poll_ms=50))
        self.acknowledged: list[int] = []
        self._stopped = threading.Event()
        self._enqueuer = threading.Thread(target=self._enqueue)
        self._failures: list[BaseException] = []

    def start(self) -> None:
        self.worker.start()
        self._enqueuer.start()

    def stop(self) -> None:
        self._stopped.set()
        self._enqueuer.join()
        until(lambda: self.worked() == len(self.acknowledged), 60)
        self.worker.stop()
        assert self.worker.wait(60) == 0
        assert self._failures == []
        self.engine.close()

    def worked(self) -> int:
        rows = self.engine.queues()
        return len(self.acknowledged) if all(row.ready + row.running == 0 for row in rows) else -1

    def _enqueue(self) -> None:
        started = time.monotonic()
        try:
            number = 0
            while not self._stopped.wait(max(0.0, started + number / RATE - time.monotonic())):
                number += 1
                (row,) = self.engine.enqueue_as(
                    LOAD.target, LOAD.fingerprint, [f"load:{number}"], ["null"]
                )
                self.acknowledged.append(row.id)
        except BaseException as error:
            self._failures.append(error)


class LockWatch:
    """Looks all the time at who waits for a lock that stops everybody else."""

    def __init__(self, url: str) -> None:
        self.longest: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, args=[url])
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as session:
            while not self._stopped.wait(0.01):
                for relation, waited in session.execute(
                    "select l.relation::regclass::text,"
                    " extract(epoch from clock_timestamp() - l.waitstart)::float8"
                    " from pg_locks as l"
                    " where not l.granted and l.mode = 'AccessExclusiveLock'"
                    " and l.relation is not null and l.waitstart is not null"
                ).fetchall():
                    self.longest[relation] = max(self.longest.get(relation, 0.0), waited)


@contextmanager
def reader(url: str) -> Iterator[threading.Timer]:
    """A transaction that has read the jobs and goes on for READER_SECONDS."""
    session = psycopg.connect(url, options="-c default_transaction_isolation=repeatable\\ read")
    session.execute("select count(*) from dever.job where id < 100")
    session.execute("select queue from dever.queues")
    end = threading.Timer(READER_SECONDS, session.rollback)
    end.start()
    try:
        yield end
    finally:
        end.join()
        session.close()


def longest_gap(url: str, start: datetime, end: datetime) -> float:
    """Seconds, within this time, in which not one job was completed."""
    with psycopg.connect(url) as session:
        rows = session.execute(
            "select finished_at from dever.finished where finished_at between %s and %s"
            " order by finished_at",
            [start, end],
        ).fetchall()
    instants = [start, *(row[0] for row in rows), end]
    return max((after - before).total_seconds() for before, after in itertools.pairwise(instants))


@pytest.mark.req("R9.1", "R9.2")
@pytest.mark.parametrize("step", ["the upgrade", "the upgrade and a column for dever.job"])
def test_work_goes_on(
    pg_empty_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: str,
) -> None:
    url = pg_empty_url
    if "column" in step:
        monkeypatch.setattr(postgres_install, "upgrade_scripts", _with_a_column)
    install_previous(url)
    load = Load(url)
    load.engine.register(None, [LOAD.contract], timedelta(minutes=1))
    with psycopg.connect(url) as session:
        session.execute(FILL, [ROWS])
    load.start()
    until(lambda: len(load.acknowledged) > 100)
    before = load.engine.clock()
    until(lambda: len(load.acknowledged) > 400, 30)

    watch = LockWatch(url)
    with reader(url) as reading, closing(PostgresEngine(url)) as installer:
        start = load.engine.clock()
        assert installer.install() == schema_version()
        reader_was_over = not reading.is_alive()
        until(lambda: len(load.acknowledged) > 600, 30)
        end = load.engine.clock()
    watch.stop()
    load.stop()

    usual, longest = longest_gap(url, before, start), longest_gap(url, start, end)
    with capsys.disabled():
        print(
            f"\n{step}: {ROWS:,} rows, {(end - start).total_seconds():.1f} s, longest pause in the"
            f" work {longest:.2f} s (before: {usual:.2f} s), waits for locks {watch.longest}"
        )
    # What a busy machine adds is taken from the same run.
    assert longest < 2.0 + 3 * usual
    assert all(waited < LOCK_TIMEOUT + 0.5 for waited in watch.longest.values()), watch.longest
    if "column" in step:
        assert "dever.job" in watch.longest
        assert reader_was_over, "a column was added to a table that somebody was reading"
    with psycopg.connect(url) as session:
        (left, filled) = session.execute(
            "select count(*) filter (where key like 'load:%'),"
            " count(*) filter (where key like 'filled:%') from dever.job"
        ).fetchone() or (None, None)
        done = session.execute("select id from dever.finished where outcome = 'succeeded'")
        ids = {row[0] for row in done.fetchall()}
    assert (left, filled) == (0, ROWS)
    assert ids == set(load.acknowledged)


def _with_a_column(engine: Any, installed: str) -> list[str]:
    scripts = upgrade_scripts(engine, installed)
    scripts[-1] = LOCKS.sub(COLUMN_LOCKS, scripts[-1], count=1) + COLUMN
    return scripts


@pytest.mark.req("R9.1")
def test_upgrade_takes_the_locks_that_it_states(pg_empty_url: str) -> None:
    """None on a table that would stop its readers or writers, and none by surprise."""
    install_previous(pg_empty_url)
    (script,) = upgrade_scripts("postgresql", PREVIOUS)
    stated = LOCKS.search(script)
    assert stated is not None
    with psycopg.connect(pg_empty_url) as session:
        before = session.execute(
            "select oid from pg_class where relnamespace = 'dever'::regnamespace"
        ).fetchall()
        session.execute(script.encode())
        taken = session.execute(
            "select c.relname, c.relkind, l.mode"
            " from pg_locks as l join pg_class as c on c.oid = l.relation"
            " where l.pid = pg_backend_pid() and c.relnamespace = 'dever'::regnamespace"
            " and c.oid = any (%s) and l.mode not in"
            " ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')",
            [[oid for (oid,) in before]],
        ).fetchall()
    assert {f"dever.{name}" for name, _, _ in taken} == set(STATED.findall(stated[0]))
    assert [name for name, kind, _ in taken if kind == "r"] == []


CALLS = {
    "enqueue": "select dever.enqueue('app.job.load_job', 'new', 'null')",
    "enqueue_many": "select dever.enqueue_many('app.job.load_job', array['a', 'b'])",
    "send": "select dever.send('q', '1')",
    "outbox_enqueue": "select dever.outbox_enqueue('o', '1')",
    "claim": "select dever.claim('q', 'w', 1)",
    "renew": "select ok from dever.renew({ids}, {tokens}, '1 minute')",
    "complete": "select ok from dever.complete({ids}, {tokens})",
    "retry": "select outcome <> 'lost' from dever.retry({ids}, {tokens}, array['no', 'no'])",
    "bury": "select ok from dever.bury({ids}, {tokens}, array['no', 'no'])",
    "block": "select ok from dever.block({ids}, {tokens}, {reasons})",
    "release": "select ok from dever.release({ids}, {tokens})",
    "cancel": "select outcome = 'cancelled' from dever.cancel({ids})",
    "sweep": "select dever.sweep()",
    "jobs": "select count(*) > 0 from dever.jobs",
    "queues": "select count(*) > 0 from dever.queues",
}


@pytest.mark.req("R9.2")
@pytest.mark.parametrize("warm", [False, True], ids=["first call", "planned before"])
@pytest.mark.parametrize("call", CALLS)
def test_calls_that_the_upgrade_overtakes_succeed(pg_empty_url: str, call: str, warm: bool) -> None:
    """They began with the functions of before and go on when these have been replaced."""
    install_previous(pg_empty_url)
    with closing(PostgresEngine(pg_empty_url)) as engine:
        engine.register(None, [LOAD.contract], timedelta(minutes=1))
        engine.send_many("q", ["1"] * 9)
        claims = [engine.claim("q", "w", 2), engine.claim("q", "w", 2)]
    with (
        psycopg.connect(pg_empty_url, autocommit=True) as observer,
        psycopg.connect(pg_empty_url, autocommit=True) as session,
        psycopg.connect(pg_empty_url) as installer,
    ):
        texts = [
            CALLS[call].format(
                ids=f"array{[each.id for each in claim]}::bigint[]",
                tokens=f"array{[each.token for each in claim]}::bigint[]",
                reasons="array['unknown_target', 'unknown_target']",
            )
            for claim in claims
        ]
        if warm:
            session.execute(texts[1].encode())
        installer.execute("lock table dever.job in access exclusive mode")
        blocked = Blocked(
            session, observer, lambda each: each.execute(texts[0].encode()).fetchall()
        )
        assert blocked.is_waiting()
        for script in upgrade_scripts("postgresql", PREVIOUS):
            installer.execute(script.encode())
        installer.commit()
        rows = blocked.result()
    if " ok " in CALLS[call] or " outcome " in CALLS[call]:
        assert rows == [(True,), (True,)]
