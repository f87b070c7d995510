"""Old and new code of one program with a changed payload, as real processes under load (R5.4)."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from upgrade.fleet import Program, kill_all, lines, stop
from worker_tasks import until

from dever_sql.database import open_engine
from dever_sql.engine import Engine, JobRow

PATIENCE = 120.0

SHARED = """
reports = Jobs(queue="reports")


@jobs.job(retry=5, timeout=30_000)
def ping() -> None:
    ran()


@jobs.job(retry=5, timeout=30_000)
def send_receipt(receipt: Receipt) -> None:
    ran({name: getattr(receipt, name) for name in receipt.__dataclass_fields__})


@reports.job(retry=5, timeout=30_000)
def print_receipt(receipt: Receipt) -> None:
    ran({name: getattr(receipt, name) for name in receipt.__dataclass_fields__})


def enqueue(key):
    yield key, send_receipt.enqueue(RECEIPT, key=key)
    yield key + ":report", print_receipt.enqueue(RECEIPT, key=key + ":report")
    yield f"ping:{key}", ping.enqueue(key=f"ping:{key}")


if __name__ == "__main__":
    enqueue_until_stopped(sys.argv[1], float(sys.argv[2]), enqueue)
"""

OLD = f"""
@record
class Receipt:
    order_id: int


RECEIPT = Receipt(order_id=7)
{SHARED}"""

NEW = f"""
@record
class Receipt:
    order_id: int
    email: str


RECEIPT = Receipt(order_id=7, email="ada@example.org")
{SHARED}"""

PAYLOADS = {"old": {"order_id": 7}, "new": {"order_id": 7, "email": "ada@example.org"}}

# Writes down every job that is blocked although a worker that runs its contract is live. On
# PostgreSQL a worker that registers while the sweep runs is not seen by it: it does not count.
WATCH_POSTGRES = """
    create table public.wrongly_blocked (id bigint);
    create function public.watch() returns trigger language plpgsql as $$
    begin
        insert into public.wrongly_blocked
        select new.id
        where exists (
            select
            from dever.policy as p
            join dever.worker_policy as wp on wp.policy_id = p.id
            join dever.worker as w on w.name = wp.worker
            where p.contract_id = new.contract_id
                and w.alive_until > dever.clock()
                and w.started_at < now() - interval '5 seconds'
        );
        return null;
    end
    $$;
    create trigger watch after update on dever.job for each row
    when (new.run_at = 'infinity' and old.run_at <> 'infinity')
    execute function public.watch();
"""
WATCH_SQLITE = """
    create table wrongly_blocked (id integer);
    create trigger watch after update of run_at on dever_job
    when new.run_at = 9223372036854775807 and old.run_at <> 9223372036854775807
    begin
        insert into wrongly_blocked
        select new.id
        where exists (
            select 1
            from dever_policy as p
            join dever_worker_policy as wp on wp.policy_id = p.id
            join dever_worker as w on w.name = wp.worker
            where p.contract_id = new.contract_id
                and w.alive_until > (select now from dever_clock)
        );
    end;
"""


class Deploy:
    """Both versions of the program on one database, and what has happened so far."""

    def __init__(self, engine: Engine, url: str, directory: Path) -> None:
        self.engine = engine
        self.url = url
        self.directory = directory
        self.old = Program(directory / "old", OLD, url)
        self.new = Program(directory / "new", NEW, url)

    def query(self, text: str) -> list[Any]:
        """Rows of a test's own statement."""
        if self.engine.kind == "sqlite":
            path = self.url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
                return connection.execute(text).fetchall()
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(text).fetchall()

    def runs(self, version: str) -> int:
        """How many receipts the code of that version has sent."""
        effects = lines(self.directory / "effects")
        return sum(each["version"] == version and each["payload"] is not None for each in effects)

    def blocked(self) -> list[JobRow]:
        return self.engine.jobs(state="blocked", limit=10_000)

    def blocked_of(self, version: str) -> list[JobRow]:
        return [row for row in self.blocked() if (row.key or "").startswith(f"{version}:")]

    def until(self, condition: Callable[[], Any]) -> Any:
        try:
            return until(condition, PATIENCE)
        except AssertionError:
            raise AssertionError(self.old.logs() + self.new.logs()) from None

    def goes_on(self, version: str) -> None:
        """Waits until more receipts of that version have been sent."""
        before = self.runs(version)
        self.until(lambda: self.runs(version) >= before + 20)

    def joined(self, *workers: subprocess.Popen[str]) -> None:
        """Waits until the workers are live; before that a signal would just kill them."""
        pids = {worker.pid for worker in workers}
        self.until(lambda: pids <= {row.pid for row in self.engine.workers()})

    def finished(self) -> bool:
        rows = self.engine.queues()
        return not any(row.ready + row.scheduled + row.running + row.blocked for row in rows)


@pytest.fixture(params=["sqlite", "postgresql"])
def deploy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deploy]:
    """Each engine in turn; a job that nobody has been able to run for a second is blocked."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.db"
        engine = open_engine(url)
        engine.install()
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            connection.executescript(WATCH_SQLITE)
    else:
        url = request.getfixturevalue("pg_url")
        engine = open_engine(url)
        with psycopg.connect(url) as connection:
            connection.execute(WATCH_POSTGRES)
    for queue in ("default", "reports"):
        engine.configure_queue(queue, block_after=timedelta(seconds=1))
    deploy = Deploy(engine, url, tmp_path)
    yield deploy
    kill_all(deploy.old, deploy.new)
    engine.close()


@pytest.mark.req("R5.4", "R5.3")
@pytest.mark.timeout(900)
def test_old_then_both_then_new_then_back_to_old(deploy: Deploy) -> None:
    """Both versions enqueue all the time, so each phase has work that somebody cannot run."""
    old, new = deploy.old, deploy.new

    # The new API is ahead of its workers: it is no worker, its jobs wait and are blocked.
    old_workers = [old.work(), old.work()]
    enqueuers = [old.enqueue("api", 0.03), new.enqueue("api", 0.03)]
    deploy.goes_on("old")
    waiting = deploy.until(deploy.blocked)
    assert {row.reason for row in waiting} == {"schema_mismatch"}
    deploy.goes_on("old")
    assert deploy.blocked_of("old") == []
    assert deploy.runs("new") == 0

    # Both: what was blocked comes back by itself, and nothing is blocked any more.
    new_workers = [new.work(), new.work()]
    deploy.joined(*old_workers, *new_workers)
    deploy.until(lambda: deploy.runs("new") and not deploy.blocked())
    deploy.goes_on("old")
    deploy.goes_on("new")
    assert deploy.blocked() == []

    # New only: now the old API's jobs are the ones that nobody runs.
    assert stop(old_workers) == [0, 0]
    deploy.until(lambda: deploy.blocked_of("old"))
    before = deploy.runs("old")
    deploy.goes_on("new")
    assert deploy.blocked_of("new") == []
    assert deploy.runs("old") == before

    # Back to old, which takes up what was left for it.
    old_workers = [old.work(), old.work()]
    deploy.joined(*old_workers)
    deploy.until(lambda: not deploy.blocked_of("old"))
    assert stop(new_workers) == [0, 0]
    deploy.goes_on("old")
    deploy.until(lambda: deploy.blocked_of("new"))
    assert stop(enqueuers) == [0, 0]

    # With a worker for everything all of it ends, each job by the code it was made for.
    new_workers = [new.work()]
    deploy.until(deploy.finished)
    assert stop(old_workers + new_workers) == [0, 0, 0]
    effects = lines(deploy.directory / "effects")
    receipts = [each for each in effects if each["payload"] is not None]
    assert all(each["payload"] == PAYLOADS[each["version"]] for each in receipts)
    assert all(each["key"].startswith(each["version"] + ":") for each in receipts)
    acknowledged = {each["key"] for each in lines(deploy.directory / "acknowledged")}
    keys = [each["key"] for each in effects]
    assert acknowledged == set(keys)
    assert len(keys) == len(acknowledged), sorted(key for key in set(keys) if keys.count(key) > 1)
    (dead,) = deploy.query(
        "select count(*) from dever_jobs where state <> 'succeeded'"
        if deploy.engine.kind == "sqlite"
        else "select count(*) from dever.jobs where state <> 'succeeded'"
    )
    assert dead == (0,)
    assert deploy.query("select id from wrongly_blocked") == []


@pytest.mark.req("R5.4")
def test_only_workers_count_as_workers(deploy: Deploy) -> None:
    """Enqueuers of both versions and the command line are there; only the worker is listed."""
    worker = deploy.old.work()
    enqueuers = [deploy.old.enqueue("api"), deploy.new.enqueue("api")]
    deploy.new.dever("sql", "contracts", "tasks.py", deploy.url)
    deploy.goes_on("old")
    deploy.until(lambda: deploy.blocked_of("new"))
    assert [row.pid for row in deploy.engine.workers()] == [worker.pid]
    assert stop([worker, *enqueuers]) == [0, 0, 0]


@pytest.mark.req("R5.4", "R3.6")
def test_sql_clients_follow_the_workers_that_are_live(deploy: Deploy) -> None:
    """A client that names no version is held to the newest contract that a live worker runs."""
    enqueue = {
        "sqlite": "insert into dever_enqueue (job, key, payload)"
        " values ('tasks.send_receipt', '{key}', '{payload}')",
        "postgresql": "select dever.enqueue('tasks.send_receipt', '{key}', '{payload}')",
    }[deploy.engine.kind]
    receipts = {
        "old": '{"order_id": 7}',
        "new": '{"order_id": 7, "email": "ada@example.org"}',
    }

    def send(version: str, number: int) -> None:
        key = f"{version}:sql:{number}"
        deploy.query(enqueue.format(key=key, payload=receipts[version]))
        deploy.until(
            lambda: any(
                each["key"] == key and each["version"] == version
                for each in lines(deploy.directory / "effects")
            )
        )

    def refuses(version: str) -> None:
        with pytest.raises((sqlite3.Error, psycopg.Error), match=r"DV005|email"):
            deploy.query(enqueue.format(key=f"{version}:no", payload=receipts[version]))

    old_worker = deploy.old.work()
    deploy.joined(old_worker)
    deploy.new.dever("sql", "contracts", "tasks.py", deploy.url)
    send("old", 1)
    refuses("new")
    new_worker = deploy.new.work()
    deploy.joined(new_worker)
    send("new", 2)
    refuses("old")
    assert stop([old_worker]) == [0]
    send("new", 3)
    # Back to old: with the new worker gone the old contract is in force again.
    old_worker = deploy.old.work()
    deploy.joined(old_worker)
    assert stop([new_worker]) == [0]
    send("old", 4)
    refuses("new")
    assert stop([old_worker]) == [0]


@pytest.mark.req("R5.4")
def test_paused_queue_blocks_nothing(deploy: Deploy) -> None:
    """What nobody can run is blocked in the queue beside it, and waits in the paused one."""
    deploy.engine.pause_queue("reports")
    processes = [deploy.old.work(), deploy.new.enqueue("api")]
    deploy.until(deploy.blocked)
    # What is blocked from here on tells of later passes over all queues.
    newest = max(row.id for row in deploy.engine.jobs(queue="reports", limit=1))
    deploy.until(lambda: any(row.id > newest for row in deploy.blocked()))
    assert {row.queue for row in deploy.blocked()} == {"default"}
    assert deploy.engine.jobs(queue="reports", state="ready")

    processes.append(deploy.new.work())
    deploy.engine.resume_queue("reports")
    deploy.goes_on("new")
    assert stop(processes[1:2]) == [0]
    deploy.until(deploy.finished)
    assert stop([processes[0], processes[2]]) == [0, 0]
