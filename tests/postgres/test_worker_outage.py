"""Workers through lost connections, restarts and odd servers (R8.5)."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from worker_tasks import enqueue, task, until, work

from dever_sql import postgres_pool, postgres_sleeper
from dever_sql.errors import DatabaseUnavailable, DeverError, InstallError, SchemaVersion
from dever_sql.postgres import PostgresEngine
from dever_sql.worker import Worker, WorkerOptions

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def engine(pg_url: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(pg_url)
    yield engine
    engine.close()


class Proxy:
    """Forwards TCP; swallows what the session that listens says or hears, on request."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.swallow_listening = False
        self.refuse = False
        self.listened = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        listens = swallowed = False
        with client, socket.create_connection(self._target) as server:
            while not self._closed and not self.refuse:
                ready, _, _ = select.select([client, server], [], [], 0.05)
                swallowed = swallowed or (listens and self.swallow_listening)
                for source in ready:
                    try:
                        data = source.recv(65536)
                    except OSError:
                        return
                    if not data:
                        return
                    if b"listen dever" in data:
                        listens = True
                        self.listened += 1
                    if not swallowed:
                        (server if source is client else client).sendall(data)

    def close(self) -> None:
        self._closed = True
        self._server.close()


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    parts = urlsplit(pg_url)
    proxy = Proxy(parts.hostname or "", parts.port or 0)
    yield proxy
    proxy.close()


@pytest.fixture
def through_proxy(pg_url: str, proxy: Proxy) -> Iterator[PostgresEngine]:
    parts = urlsplit(pg_url)
    netloc = f"{parts.username}@127.0.0.1:{proxy.port}"
    engine = PostgresEngine(urlunsplit(parts._replace(netloc=netloc)), connect_timeout=1)
    yield engine
    engine.close()


@pytest.fixture
def started() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(engine: PostgresEngine, *tasks: Any, **options: Any) -> Worker:
        worker = Worker(engine, tasks, WorkerOptions(**{"shutdown_ms": 1_000, **options}))
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.abort()
        worker.wait(20)


@pytest.mark.req("R8.5")
def test_killed_backends_lose_nothing_and_start_nothing_twice(
    engine: PostgresEngine, connect: Connect, started: Callable[..., Worker]
) -> None:
    runs: list[int] = []

    async def handler() -> None:
        runs.append(1)
        await asyncio.sleep(0.01)

    each = task(handler)
    worker = started(engine, each, workers=4)
    admin = connect("admin")
    count = 0
    for _ in range(15):
        enqueue_patiently(engine, each, [f"k{count + n}" for n in range(10)])
        count += 10
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'dever' and datname = current_database()"
            " order by random() limit 1"
        )
        time.sleep(0.1)
    until(lambda: counted(admin) == count, 20)
    assert len(runs) == count
    worker.stop()
    assert worker.wait(20) == 0


def enqueue_patiently(engine: PostgresEngine, each: Any, keys: list[str]) -> None:
    while True:
        try:
            enqueue(engine, each, keys=keys)
            return
        except DatabaseUnavailable:
            time.sleep(0.05)


def counted(admin: psycopg.Connection[Any]) -> int:
    row = admin.execute("select count(*) from dever.finished where outcome = 'succeeded'")
    return row.fetchone()[0]  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.req("R8.5")
def test_an_outage_ends_nothing_and_is_one_short_story_in_the_log(
    through_proxy: PostgresEngine,
    proxy: Proxy,
    started: Callable[..., Worker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran = threading.Event()

    async def handler() -> None:
        ran.set()

    each = task(handler)
    with caplog.at_level(logging.INFO, "dever"):
        started(through_proxy, each, poll_ms=100)
        enqueue(through_proxy, each)
        assert ran.wait(10)
        proxy.refuse = True
        time.sleep(4)
        warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert 1 <= len(warnings) <= 5
        proxy.refuse = False
        ran.clear()
        enqueue_patiently(through_proxy, each, ["after"])
        assert ran.wait(6)
        until(lambda: "database available again" in caplog.text)


@pytest.mark.req("R8.5")
def test_a_swallowed_listening_session_is_replaced_and_polling_goes_on(
    through_proxy: PostgresEngine,
    proxy: Proxy,
    started: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_sleeper, "_SIGN_OF_LIFE", 0.5)
    monkeypatch.setattr(postgres_sleeper, "_PATIENCE", 0.5)
    ran = threading.Event()

    async def handler() -> None:
        ran.set()

    each = task(handler)
    through_proxy.register(None, [each.contract], timedelta(minutes=1))
    started(through_proxy, each, poll_ms=200)
    until(lambda: proxy.listened == 1)
    proxy.swallow_listening = True
    for number in range(6):
        ran.clear()
        enqueue(through_proxy, each, keys=[f"k{number}"])
        assert ran.wait(2)
        time.sleep(0.3)
    proxy.swallow_listening = False
    before = proxy.listened
    until(lambda: proxy.listened > before, 20)


@pytest.mark.req("R8.5")
def test_no_answer_at_all_counts_as_a_lost_connection(
    engine: PostgresEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "CALL_TIMEOUT", 0.5)

    async def handler() -> None:
        pass

    each = task(handler)
    blocker = connect(autocommit=False)
    blocker.execute("lock table dever.contract in access exclusive mode")
    with pytest.raises(DatabaseUnavailable, match="no answer"):
        engine.register(None, [each.contract], timedelta(minutes=1))
    blocker.rollback()


@pytest.mark.req("R8.5")
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_stricter_default_isolation_fails_no_claim(
    engine: PostgresEngine, connect: Connect, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin = connect()
    name = admin.info.dbname
    admin.execute(f"alter database {name} set default_transaction_isolation = '{isolation}'")

    async def handler() -> None:
        pass

    each = task(handler)
    enqueue(engine, each, keys=[f"k{n}" for n in range(300)])
    workers = [Worker(engine, [each], WorkerOptions(workers=4)) for _ in range(3)]
    with caplog.at_level(logging.WARNING, "dever"):
        for worker in workers:
            worker.start(until_idle=True)
        assert [worker.wait(30) for worker in workers] == [0, 0, 0]
    assert counted(admin) == 300
    assert caplog.text == ""


@pytest.mark.req("R8.5")
def test_settings_that_shape_text_change_no_value(engine: PostgresEngine, connect: Connect) -> None:
    admin = connect()
    name = admin.info.dbname
    for setting in (
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'sql_standard'",
        "timezone = 'Australia/Lord_Howe'",
        "bytea_output = 'escape'",
        "standard_conforming_strings = off",
        "search_path = ''",
    ):
        admin.execute(f"alter database {name} set {setting}")

    async def handler() -> None:
        raise ValueError("x")

    each = task(handler, base_ms=3_600_000)
    [id] = enqueue(engine, each, keys=["a \"quoted\\ key' {}"])
    work(engine, each)
    row = engine.get_job(id)
    assert row is not None
    assert row.key == "a \"quoted\\ key' {}"
    assert row.run_at.utcoffset() == timedelta(0)
    assert timedelta(minutes=59) < row.run_at - engine.clock() <= timedelta(hours=1)
    stored = engine.configure_queue("default", visibility=timedelta(days=2, seconds=3))
    assert stored.visibility == timedelta(days=2, seconds=3)


@pytest.mark.req("R8.5")
def test_a_read_only_server_is_an_outage(
    engine: PostgresEngine, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    admin = connect()
    admin.execute(f"alter database {admin.info.dbname} set default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        engine.register(None, [task(lambda: None).contract], timedelta(minutes=1))


@pytest.mark.req("R4.1")
def test_without_the_schema_the_error_says_what_to_do(pg_empty_url: str) -> None:
    engine = PostgresEngine(pg_empty_url)
    assert engine.version() is None
    with pytest.raises(InstallError, match="not installed"):
        engine.queues()
    with pytest.raises(InstallError, match="not installed"):
        Worker(engine, []).run()
    engine.close()


@pytest.mark.req("R4.1")
def test_installers_race_and_the_second_does_nothing(pg_empty_url: str) -> None:
    engines = [PostgresEngine(pg_empty_url) for _ in range(3)]
    found: list[Any] = []

    def install(engine: PostgresEngine) -> None:
        try:
            found.append(engine.install())
        except DeverError as error:
            found.append(error)

    threads = [threading.Thread(target=install, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1, found
    assert isinstance(found[0], str)
    identity = engines[0].installation_id()
    assert engines[1].install() == found[0]
    assert engines[1].installation_id() == identity
    for engine in engines:
        engine.close()


@pytest.mark.req("R4.1", "R9.2")
def test_an_unknown_newer_version_is_refused_with_both_named(
    engine: PostgresEngine, connect: Connect, pg_url: str
) -> None:
    brought = engine.version()
    connect().execute("update dever.installation set version = '99.1.0'")
    with pytest.raises(SchemaVersion) as refused:
        engine.install()
    assert "99.1.0" in refused.value.message
    assert str(brought) in refused.value.message
    connect().execute("update dever.installation set protocol_min = 7, protocol_max = 9")
    other = PostgresEngine(pg_url)
    with pytest.raises(SchemaVersion, match="protocol 7 to 9"):
        other.queues()
    other.close()


@pytest.mark.req("R5.5")
def test_passwords_are_in_no_message_and_no_repr() -> None:
    engine = PostgresEngine("postgresql://ann:hunter2@127.0.0.1:1/none", connect_timeout=1)
    with pytest.raises(DatabaseUnavailable) as refused:
        engine.version()
    for shown in (str(refused.value), repr(refused.value), repr(engine), repr(engine.__dict__)):
        assert "hunter2" not in shown
