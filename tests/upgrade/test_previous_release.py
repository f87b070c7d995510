"""The release before and the code of today on each other's schema, and both at work during an
upgrade (R9.2)."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import Cluster
from samples import declaration, record_schema, register
from upgrade.databases import PREVIOUS
from upgrade.fleet import RELEASED, Program, kill_all, lines, stop, unpack
from worker_tasks import until

from dever_sql.database import open_engine
from dever_sql.engine import Engine
from dever_sql.sql_files import schema_version, split_statements, sql_directory

PATIENCE = 90.0

pytestmark = pytest.mark.req("R9.2")

TASKS = """
from dever_sql import transaction


@record
class Receipt:
    order_id: int
    email: str


RECEIPT = Receipt(order_id=7, email="ada@example.org")


@jobs.job(retry=3, timeout=30_000)
def send_receipt(receipt: Receipt) -> None:
    ran(receipt.email)


@jobs.job(retry=3, timeout=30_000)
async def retried() -> None:
    ran()
    if job.current().attempt == 1:
        raise job.Retry()


@jobs.job(retry=2, timeout=30_000)
def failing() -> None:
    ran()
    raise ValueError("no")


@jobs.job(retry=3, timeout=30_000)
def given_up() -> None:
    raise job.Dead("no use")


@jobs.job(retry=3, timeout=30_000)
def completed_inside() -> None:
    with transaction() as tx:
        tx.execute("insert into effects (name) values ('once')")
        job.current().complete(tx)


@jobs.cron("0 3 * * *", retry=3, timeout=60_000)
def nightly() -> None:
    ran()


def enqueue(key):
    with transaction():
        enqueued = send_receipt.enqueue(RECEIPT, key=key)
    yield key, enqueued
    yield key + ":retried", retried.enqueue(key=key + ":retried")
    keys = [f"{key}:{number}" for number in range(3)]
    yield from zip(keys, send_receipt.enqueue_many([(RECEIPT, each) for each in keys]))


if __name__ == "__main__":
    enqueue_until_stopped(sys.argv[1], float(sys.argv[2]), enqueue)
"""

ENQUEUES = """
import asyncio
from datetime import UTC, datetime, timedelta

import tasks
from dever_sql import transaction
from dever_sql.errors import InvalidKey

with transaction() as tx:
    tx.execute("create table effects (name text)")
    first = tasks.send_receipt.enqueue(tasks.RECEIPT, key="a")
again = tasks.send_receipt.enqueue(tasks.RECEIPT, key="a")
assert first.created and again == type(again)(first.id, False), (first, again)
asyncio.run(tasks.send_receipt.aenqueue(tasks.RECEIPT, key="b"))
later = datetime.now(UTC) + timedelta(hours=1)
tasks.send_receipt.enqueue_at(tasks.RECEIPT, key="later", run_at=later)
tasks.send_receipt.enqueue_many([(tasks.RECEIPT, "c"), (tasks.RECEIPT, "d", later)])
tasks.retried.enqueue(key="a")
tasks.failing.enqueue(key="a")
tasks.given_up.enqueue(key="a")
tasks.completed_inside.enqueue(key="a")
try:
    tasks.retried.enqueue(key=" ")
except InvalidKey:
    pass
else:
    raise AssertionError("a blank key was accepted")
"""

VERBS = """
import asyncio
import threading
import time
from datetime import timedelta

from dever_sql import Store
from dever_sql.async_store import AsyncStore

store = Store.of()
hour, second = timedelta(hours=1), timedelta(seconds=1)

# A queue
queue = store.queue("mail")
ids = queue.send_many([1, 2, 3, 4])
keyed = queue.send({"to": "ada"}, key="k")
assert queue.send({"to": "bob"}, key="k") == keyed
queue.send(5, delay=hour, expires=2 * hour, max_attempts=2)
one, two, three, four = queue.claim(4, worker="w", lease=second * 30)
assert [each.payload for each in (one, two, three, four)] == [1, 2, 3, 4]
assert one.heartbeat() and one.ack() and not one.ack() and not one.heartbeat()
assert two.retry("not now", delay=timedelta(0))
assert three.fail("no use")
assert four.retry(ValueError("no"))
states = [store.get_job(id).state for id in ids]
assert states == ["succeeded", "ready", "dead", "scheduled"], states
assert store.redrive([three.id, 999_999])[0].outcome == "pending"
assert store.cancel([three.id])[0].outcome == "cancelled"
(again,) = queue.claim(1, worker="w")
assert again.attempt == 1 and again.key == "k" and again.fail("no use")
assert store.drop_jobs([again.id])[0].outcome == "dropped"
assert store.configure_queue("mail", keep_dead=hour).keep_dead == hour
assert store.engine.pause_queue("mail") and queue.claim(9, worker="w") == []
assert store.engine.resume_queue("mail")
assert len(store.jobs(queue="mail")) == 5

# An outbox
outbox = store.outbox("notify")
outbox.enqueue({"order": 7}, key="7")
delivered = []
assert outbox.run_once("w", lambda message: delivered.append(message.payload))
assert not outbox.run_once("w", delivered.append)
assert delivered == [{"order": 7}]

# A lock
lease = store.lock("report").acquire(ttl=second * 30)
assert store.lock("report").acquire(ttl=second) is None
assert lease.renew() and lease.release() and not lease.renew()

# Schedules
assert store.schedule("tidy", "0 3 * * mon-fri", "reports", {"kind": "tidy"}).status == "active"
assert store.pause_schedule("tidy") and store.resume_schedule("tidy")
assert not store.rewind_schedule("tidy")
store.schedule("beat", "@every 1s", "beats", missed="latest", expires=hour, max_attempts=1)
assert {row.name for row in store.schedules()} >= {"tidy", "beat"}
stop = threading.Event()
runner = threading.Thread(target=store.run_schedules, args=[stop])
runner.start()
deadline = time.monotonic() + 30
while not store.queue("beats").claim(1, worker="w") and time.monotonic() < deadline:
    time.sleep(0.05)
assert time.monotonic() < deadline
stop.set()
runner.join()
assert store.unschedule("tidy") and store.unschedule("beat") and not store.unschedule("beat")


async def asynchronously():
    other = AsyncStore(store).queue("other")
    await other.send("x")
    (message,) = await other.claim(1, worker="w")
    assert await message.heartbeat() and await message.ack()


asyncio.run(asynchronously())
print("done")
"""


@pytest.fixture(scope="session")
def previous_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("previous")
    return unpack(f"dever_sql-{PREVIOUS}-py3-none-any.whl", directory)


def install_previous(url: str) -> None:
    """The schema of the release before, from its frozen script."""
    if url.startswith("sqlite:///"):
        script = sql_directory("sqlite") / f"dever--{PREVIOUS}.sql"
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute("begin immediate")
            for statement in split_statements(script.read_text(encoding="utf-8")):
                connection.execute(statement)
            connection.commit()
        return
    script = sql_directory("postgresql") / f"dever--{PREVIOUS}.sql"
    with psycopg.connect(url) as connection:
        connection.execute(script.read_bytes())


def install_current(url: str) -> None:
    engine = open_engine(url)
    engine.install()
    engine.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each engine in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("pg_empty_url")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """Of today, to look at what became of things."""
    engine = open_engine(url)
    yield engine
    engine.close()


@pytest.fixture(params=["previous package, new schema", "new package, previous schema"])
def program(
    request: pytest.FixtureRequest, url: str, previous_package: Path, tmp_path: Path
) -> Iterator[Program]:
    """A program that works on a schema of the release beside its own."""
    if request.param.startswith("previous"):
        install_current(url)
        program = Program(tmp_path / "program", TASKS, url, previous_package)
    else:
        install_previous(url)
        program = Program(tmp_path / "program", TASKS, url)
    yield program
    kill_all(program)


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_packages_are_what_they_are_called(previous_package: Path, tmp_path: Path) -> None:
    """The whole file would prove nothing if a subprocess imported the code of today."""
    said = [
        succeed(
            program.run("-c", "import dever_sql.sql_files as s; print(s.schema_version())")
        ).strip()
        for program in (
            Program(tmp_path / "old", TASKS, "sqlite:///x.db", previous_package),
            Program(tmp_path / "new", TASKS, "sqlite:///x.db"),
        )
    ]
    assert said == [PREVIOUS, schema_version()]
    assert schema_version() != PREVIOUS


def test_worker_and_enqueues(program: Program, engine: Engine) -> None:
    succeed(program.run("-c", ENQUEUES))
    done = program.run("-m", "dever_sql", "worker", "tasks.py", "--until-idle")
    assert done.returncode == 1, done.stdout + done.stderr  # one job became dead
    # Retries come after a pause, which the worker does not wait for.
    worker = program.work()
    until(lambda: [row.pid for row in engine.workers()] == [worker.pid], PATIENCE)
    until(lambda: {row.state for row in engine.jobs(target="tasks.failing")} == {"dead"}, PATIENCE)
    until(
        lambda: {row.state for row in engine.jobs(target="tasks.retried")} == {"succeeded"},
        PATIENCE,
    )
    assert stop([worker]) == [0]
    found = {
        (row.target or "").removeprefix("tasks."): (row.state, row.attempt, row.reason)
        for row in engine.jobs(limit=100)
        if row.target != "tasks.send_receipt"
    }
    assert found == {
        "retried": ("succeeded", 2, None),
        "failing": ("dead", 2, "handler_failed"),
        "given_up": ("dead", 1, "no use"),
        "completed_inside": ("succeeded", 1, None),
    }
    receipts = {row.key: row.state for row in engine.jobs(target="tasks.send_receipt")}
    assert receipts == dict.fromkeys("abc", "succeeded") | dict.fromkeys(
        ("d", "later"), "scheduled"
    )
    assert [row.name for row in engine.schedules()] == ["tasks.nightly"]


def test_every_verb_of_a_store(program: Program) -> None:
    assert succeed(program.run("-c", VERBS)).strip() == "done"


def test_the_command_line(program: Program, engine: Engine) -> None:
    program.dever("sql", "contracts", "tasks.py", program.url)
    ids = engine.send_many("mail", ["1", "2", "3"])
    (claimed,) = engine.claim("mail", "w", 1)
    engine.bury([claimed.id], [claimed.token], ["no"])
    engine.schedule("tidy", "0 3 * * *", "mail")
    jobs, mail, shown, *_, queues, schedules, preview, workers = program.dever_many(
        ["jobs"],
        ["jobs", "--json", "--queue", "mail"],
        ["jobs", "show", str(ids[1]), "--json"],
        ["jobs", "redrive", "--state", "dead"],
        ["jobs", "cancel", str(ids[1])],
        ["queues", "pause", "mail"],
        ["queues", "resume", "mail"],
        ["queues", "configure", "mail", "--keep-dead", "90d"],
        ["schedules", "pause", "tidy"],
        ["schedules", "resume", "tidy"],
        ["queues", "--json"],
        ["schedules"],
        ["schedules", "preview", "tidy"],
        ["workers", "--json"],
    )
    assert str(ids[0]) in jobs
    assert [row["state"] for row in json.loads(mail)] == ["ready", "ready", "dead"]
    assert json.loads(shown)["id"] == ids[1]
    rows = {row.id: row.state for row in engine.jobs(queue="mail")}
    assert [rows[id] for id in ids] == ["ready", "cancelled", "ready"]
    (queue,) = (row for row in json.loads(queues) if row["queue"] == "mail")
    assert (queue["ready"], queue["paused"]) == (2, False)
    assert "tidy" in schedules
    assert "03:00" in preview
    assert json.loads(workers) == []


def test_doctor_and_check_say_which_version_is_which(program: Program) -> None:
    """They find fault with another version, and with nothing else."""
    done = program.run("-m", "dever_sql", "doctor", "--json")
    assert done.returncode == 1, done.stderr
    faults = [check for check in json.loads(done.stdout) if not check["ok"]]
    assert [check["check"] for check in faults] == ["version"]
    assert PREVIOUS in faults[0]["found"]
    assert schema_version() in faults[0]["found"]
    done = program.run("-m", "dever_sql", "sql", "check", program.url)
    assert done.returncode == 1
    assert PREVIOUS in done.stderr
    assert schema_version() in done.stderr


def set_protocol(url: str, lowest: int, highest: int) -> None:
    text = f"update {{}} set protocol_min = {lowest}, protocol_max = {highest}"
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(text.format("dever_installation"))
    else:
        with psycopg.connect(url) as connection:
            connection.execute(text.format("dever.installation"))


def test_outside_the_protocol_range_both_versions_are_named(program: Program) -> None:
    """Nothing is enqueued or worked then, by a worker, an enqueue or the command line."""
    set_protocol(program.url, 7, 8)
    for command in (
        ("-c", 'import tasks; tasks.send_receipt.enqueue(tasks.RECEIPT, key="k")'),
        ("-m", "dever_sql", "worker", "tasks.py", "--until-idle"),
        ("-m", "dever_sql", "jobs"),
    ):
        done = program.run(*command)
        assert done.returncode != 0
        assert "protocol 7 to 8" in done.stderr, (command, done.stderr)
        assert re.search(r"this program speaks protocol 1 to \d", done.stderr)
        assert (PREVIOUS if program.package is None else schema_version()) in done.stderr


def test_a_store_opens_on_a_schema_that_is_not_its_own(url: str, tmp_path: Path) -> None:
    """It uses what is there; upgrading is a command of its own."""
    install_previous(url)
    program = Program(tmp_path / "program", TASKS, url)
    code = f"from dever_sql import Store; print(Store.open({url!r}).queue('q').send(1))"
    assert succeed(program.run("-c", code)).strip() == "1"
    with closing(open_engine(url)) as engine:
        assert engine.version() == PREVIOUS


def test_a_store_of_the_release_before_opens_on_the_schema_of_today(
    url: str, previous_package: Path, tmp_path: Path
) -> None:
    install_current(url)
    program = Program(tmp_path / "program", TASKS, url, previous_package)
    code = f"from dever_sql import Store; print(Store.open({url!r}).queue('q').send(1))"
    assert succeed(program.run("-c", code)).strip() == "1"
    with closing(open_engine(url)) as engine:
        assert engine.version() == schema_version()


class TestMixedFleet:
    """Both packages work and enqueue on one database."""

    @pytest.fixture
    def fleet(
        self, url: str, previous_package: Path, tmp_path: Path
    ) -> Iterator[tuple[Program, Program]]:
        install_previous(url)
        programs = (
            Program(tmp_path / "old", TASKS, url, previous_package),
            Program(tmp_path / "new", TASKS, url),
        )
        yield programs
        kill_all(*programs)

    def test_an_upgrade_in_the_middle_loses_nothing(
        self, fleet: tuple[Program, Program], engine: Engine, tmp_path: Path
    ) -> None:
        old, new = fleet

        def until_done(condition: Callable[[], Any]) -> Any:
            try:
                return until(condition, PATIENCE)
            except AssertionError:
                raise AssertionError(old.logs() + new.logs()) from None

        def both_go_on(count: int = 150) -> None:
            before = len(lines(tmp_path / "effects"))
            until_done(
                lambda: all(
                    sum(each["version"] == version for each in lines(tmp_path / "effects")[before:])
                    >= count
                    for version in ("old", "new")
                )
            )

        workers = [old.work(), new.work()]
        enqueuers = [old.enqueue("api", 0.02), new.enqueue("api", 0.02)]
        both_go_on()
        new.dever("sql", "upgrade", new.url)
        assert engine.version() == schema_version()
        both_go_on()
        # Those that start after the upgrade find the new schema.
        workers += [old.work(), new.work()]
        enqueuers += [old.enqueue("late", 0.02), new.enqueue("late", 0.02)]
        both_go_on()
        until_done(
            lambda: (
                {"old:late:1", "new:late:1"}
                <= {each["key"] for each in lines(tmp_path / "acknowledged")}
            )
        )
        until_done(lambda: {row.pid for row in engine.workers()} == {each.pid for each in workers})
        assert stop(enqueuers) == [0] * 4
        until_done(
            lambda: (
                not any(
                    row.ready + row.scheduled + row.running + row.blocked for row in engine.queues()
                )
            )
        )
        assert stop(workers) == [0] * 4

        acknowledged = {each["key"] for each in lines(tmp_path / "acknowledged")}
        runs = [each["key"] for each in lines(tmp_path / "effects")]
        assert acknowledged == set(runs)
        twice = [key for key in acknowledged if key.endswith(":retried")]
        assert len(runs) == len(acknowledged) + len(twice), "something ran too often"
        assert engine.jobs(state="dead") == []
        assert "Traceback" not in old.logs() + new.logs()


# Clients that speak SQL


def test_every_statement_that_it_documented_still_works(
    pg_empty_url: str, pg_cluster: Cluster
) -> None:
    install_previous(pg_empty_url)
    psql = shutil.which("psql")
    if pg_cluster.bindir is not None and (pg_cluster.bindir / "psql").exists():
        psql = str(pg_cluster.bindir / "psql")
    if psql is None:
        pytest.skip("needs psql")

    def run() -> str:
        command = [psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", pg_empty_url]
        path = RELEASED / f"statements-{PREVIOUS}-postgresql.sql"
        return succeed(
            subprocess.run(
                [*command, "-f", path], capture_output=True, text=True, timeout=120, check=False
            )
        )

    before = run()
    install_current(pg_empty_url)
    assert run() == before


def test_every_sqlite_statement_that_it_documented_still_works(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    install_previous(url)
    path = RELEASED / f"statements-{PREVIOUS}-sqlite.sql"
    statements = split_statements(path.read_text(encoding="utf-8"))

    def run() -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
            connection.execute("begin")
            rows = [connection.execute(statement).fetchall() for statement in statements]
            connection.execute("rollback")
            return rows

    with closing(open_engine(url)) as engine:
        schema = record_schema("Receipt", order_id="int", email="text")
        register(engine, declaration("shop.send", schema, queue="shop"), worker=None)
    before = run()
    install_current(url)
    assert run() == before


GRANTED = """
select p.oid::pg_catalog.regprocedure::text, pg_catalog.pg_get_function_arguments(p.oid),
    pg_catalog.pg_get_function_result(p.oid),
    array(
        select r.rolname::text
        from pg_catalog.pg_roles as r
        where r.rolname in ('dever_enqueue', 'dever_worker', 'dever_observe', 'dever_admin')
            and pg_catalog.has_function_privilege(r.oid, p.oid, 'execute')
        order by r.rolname
    )
from pg_catalog.pg_proc as p
where p.pronamespace = 'dever'::pg_catalog.regnamespace
    and (
        pg_catalog.has_function_privilege('dever_admin', p.oid, 'execute')
        or pg_catalog.has_function_privilege('dever_observe', p.oid, 'execute')
    )
"""
COLUMNS = """
select c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)
from pg_catalog.pg_class as c
join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum > 0
where c.relnamespace = 'dever'::pg_catalog.regnamespace and c.relkind = 'v'
"""


def test_every_signature_and_right_of_the_release_before_is_still_there(
    pg_empty_url: str, previous_package: Path
) -> None:
    """Names and order of parameters, defaults, results, columns of views. The roles script of the
    release before runs on the new schema, too."""
    roles = (previous_package / "dever_sql" / "sql" / "roles.sql").read_bytes()

    def surface() -> tuple[set[Any], set[Any]]:
        with psycopg.connect(pg_empty_url) as connection:
            connection.execute(roles)
            granted = connection.execute(GRANTED).fetchall()
            columns = connection.execute(COLUMNS).fetchall()
        return {(*row[:3], tuple(row[3])) for row in granted}, set(columns)

    install_previous(pg_empty_url)
    functions, columns = surface()
    assert len(functions) > 50
    install_current(pg_empty_url)
    functions_now, columns_now = surface()
    assert functions - functions_now == set()
    assert columns - columns_now == set()
