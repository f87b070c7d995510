"""Behind PgBouncer in transaction mode, where no session is one's own (R8.5)."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from worker_tasks import FINGERPRINT, enqueue, task, until, work

from dever_sql import database, postgres_pool
from dever_sql.errors import DatabaseUnavailable
from dever_sql.postgres import PostgresEngine
from dever_sql.worker import Worker, WorkerOptions

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)"
)
NOTICE = "behind a transaction pooler"


class PgBouncer:
    """A pooler with two server sessions for the database of `url`."""

    def __init__(self, url: str, directory: Path) -> None:
        parts = urlsplit(url)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{self._port}"))
        self._configuration = directory / "pgbouncer.ini"
        self._configuration.write_text(
            "[databases]\n"
            f"* = host={parts.hostname} port={parts.port} user={parts.username}\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {self._port}\n"
            "unix_socket_dir =\n"
            "auth_type = any\n"
            "pool_mode = transaction\n"
            "default_pool_size = 2\n"
            "max_client_conn = 200\n"
            "server_login_retry = 1\n"
        )
        self._log = directory / "pgbouncer.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # As root it would refuse to run.
        user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PROGRAM), str(self._configuration)], stdout=log, stderr=log, user=user
            )
        until(self._answers, 20)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def bouncer(pg_url: str) -> Iterator[PgBouncer]:
    # pytest's own directories are closed to the user that the pooler runs as.
    with tempfile.TemporaryDirectory(prefix="dever-bouncer-") as directory:
        Path(directory).chmod(0o755)
        bouncer = PgBouncer(pg_url, Path(directory))
        bouncer.start()
        yield bouncer
        bouncer.kill()


@pytest.fixture
def engine(bouncer: PgBouncer) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(bouncer.url)
    yield engine
    engine.close()


@pytest.fixture(params=["read committed", "serializable"])
def _isolation(request: pytest.FixtureRequest, connect: Callable[..., Any]) -> None:
    """The database's default, which cannot be changed behind the pooler."""
    admin = connect()
    admin.execute(
        f"alter database {admin.info.dbname} set default_transaction_isolation = '{request.param}'"
    )


async def nothing() -> None:
    pass


@pytest.mark.req("R8.5")
@pytest.mark.usefixtures("_isolation")
def test_workers_share_two_sessions_and_say_once_that_they_poll(
    engine: PostgresEngine, connect: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    each = task(nothing)
    with caplog.at_level(logging.INFO, "dever"):
        # More than two calls of each kind: a prepared statement would be on another session.
        for number in range(10):
            enqueue(engine, each, keys=[f"k{number}-{n}" for n in range(50)])
        workers = [Worker(engine, [each], WorkerOptions(workers=4, poll_ms=50)) for _ in range(4)]
        for worker in workers:
            worker.start(until_idle=True)
        assert [worker.wait(60) for worker in workers] == [0] * 4
    counts = connect().execute(
        "select outcome, attempt, count(*) from dever.finished group by 1, 2"
    )
    assert counts.fetchall() == [("succeeded", 1, 500)]
    messages = [record.getMessage() for record in caplog.records]
    assert sum(NOTICE in message for message in messages) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.req("R8.5")
def test_a_sleeping_worker_finds_work_by_polling_and_leaves_no_session_state(
    engine: PostgresEngine, connect: Callable[..., Any]
) -> None:
    ran = threading.Event()

    async def handler() -> None:
        ran.set()

    each = task(handler)
    enqueue(engine, each, keys=["first"])
    worker = Worker(engine, [each], WorkerOptions(poll_ms=50, shutdown_ms=5_000))
    worker.start()
    try:
        for number in range(3):
            assert ran.wait(10)
            ran.clear()
            enqueue(engine, each, keys=[f"k{number}"])
        assert ran.wait(10)
        admin = connect()
        locks = admin.execute("select count(*) from pg_locks where locktype = 'advisory'")
        assert locks.fetchone() == (0,)
    finally:
        worker.stop()
        assert worker.wait(20) == 0
    with closing(psycopg.connect(engine_url(engine), autocommit=True, prepare_threshold=None)) as s:
        for _ in range(4):  # both sessions of the pooler
            assert s.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)
            assert s.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


def engine_url(engine: PostgresEngine) -> str:
    return engine._pool._url


@pytest.fixture
def program(engine: PostgresEngine) -> Iterator[None]:
    database.close_all()
    database.use_engine("default", engine)
    yield
    database.close_all()


@pytest.mark.req("R8.5", "R3.4")
@pytest.mark.usefixtures("program", "_isolation")
def test_transactions_keep_rows_and_jobs_together(
    engine: PostgresEngine, connect: Callable[..., Any]
) -> None:
    each = task(nothing)
    engine.register(None, [each.contract], timedelta(minutes=1))
    admin = connect()
    admin.execute("create table business (n integer)")

    def place(number: int) -> None:
        with database.transaction() as tx:
            tx.execute("insert into business values (%s)", [number])
            engine.enqueue_as(
                each.target,
                FINGERPRINT,
                [f"k{number}"],
                ["null"],
                connection=tx.dever_connection,
            )
            if number % 2:
                raise ValueError("rolled back")

    async def aplace(number: int) -> None:
        async with database.transaction() as tx:
            await tx.execute("insert into business values (%s)", [number])
            await tx.execute(
                "select dever.enqueue_as(%s, %s, array[%s], array['null']::jsonb[])",
                [each.target, FINGERPRINT, f"k{number}"],
            )
            if number % 2:
                raise ValueError("rolled back")

    async def aplaces() -> None:
        for number in range(8, 16):
            try:
                await aplace(number)
            except ValueError:
                assert number % 2

    for number in range(8):
        try:
            place(number)
        except ValueError:
            assert number % 2
    asyncio.run(aplaces())
    rows = admin.execute("select n from business order by n").fetchall()
    assert rows == [(number,) for number in range(0, 16, 2)]
    assert sorted(row.key or "" for row in engine.jobs()) == sorted(f"k{n}" for (n,) in rows)


@pytest.mark.req("R8.5")
def test_a_pooler_that_is_killed_and_comes_back_ends_nothing(
    engine: PostgresEngine, bouncer: PgBouncer, connect: Callable[..., Any]
) -> None:
    each = task(nothing)
    enqueue(engine, each, keys=["first"])
    worker = Worker(engine, [each], WorkerOptions(poll_ms=50, lease_ms=2_000, shutdown_ms=5_000))
    worker.start()
    admin = connect()
    keys: list[str] = []

    def succeeded() -> bool:
        count = admin.execute("select count(*) from dever.finished where outcome = 'succeeded'")
        return count.fetchone() == (len(keys) + 1,)

    for number in range(3):
        bouncer.kill()
        with pytest.raises(DatabaseUnavailable):
            enqueue(engine, each, keys=["refused"])
        bouncer.start()
        keys.append(f"k{number}")
        enqueue(engine, each, keys=keys[-1:])
    until(succeeded, 30)
    worker.stop()
    assert worker.wait(20) == 0


@pytest.mark.req("R8.5")
def test_the_notice_names_the_database_and_no_password(
    engine: PostgresEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "_told_pooled", set())
    url = urlsplit(engine_url(engine))
    secret = urlunsplit(url._replace(netloc=url.netloc.replace("@", ":hunter2@", 1)))
    with caplog.at_level(logging.INFO, "dever"), closing(PostgresEngine(secret)) as other:
        other.queues()
        other.queues()
    [line] = [r.getMessage() for r in caplog.records if NOTICE in r.getMessage()]
    assert str(url.port) in line
    assert "hunter2" not in line


@pytest.mark.req("R8.5")
def test_a_worker_drains_through_a_pooler_alone(engine: PostgresEngine) -> None:
    each = task(nothing)
    enqueue(engine, each, keys=[f"k{n}" for n in range(20)])
    worker = work(engine, each, workers=4)
    assert worker.name not in [row.worker for row in engine.workers()]
    assert {row.state for row in engine.jobs()} == {"succeeded"}
