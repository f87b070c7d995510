"""The store, sync and async: everything of R7 from one handle."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from engines import Clock, Installed

from dever_sql.async_store import AsyncStore
from dever_sql.errors import InstallError, InvalidArgument, InvalidSpec, ReservedName
from dever_sql.queue import Message
from dever_sql.store import Store

TTL = timedelta(seconds=10)


@pytest.mark.req("R7.2", "R7.4", "R7.7", "R7.8")
def test_a_store_has_everything(installed: Installed, clock: Clock) -> None:
    with Store.open(installed.url) as store:
        id = store.queue("mail").send({"to": "a"}, key="k")
        row = store.get_job(id)
        assert row is not None
        assert (row.queue, row.key, row.state) == ("mail", "k", "ready")
        (message,) = store.queue("mail").claim(5, worker="w")
        assert message.fail("no") is True
        assert [one.id for one in store.jobs(state="dead")] == [id]
        assert [one.outcome for one in store.redrive([id])] == ["pending"]
        assert [one.outcome for one in store.cancel([id])] == ["cancelled"]
        assert [one.outcome for one in store.drop_jobs([id])] == ["not_found"]
        lease = store.lock("l").acquire(ttl=TTL)
        assert lease is not None
        assert lease.renew(ttl=TTL) is True
        assert lease.release() is True
        assert store.schedule("s", "0 3 * * *", "mail", {"n": 1}).queue == "mail"
        assert store.pause_schedule("s") is True
        assert store.resume_schedule("s") is True
        assert [one.name for one in store.schedules()] == ["s"]
        assert store.unschedule("s") is True
        store.outbox("o").enqueue([1])
        seen: list[Any] = []
        assert store.outbox("o").run_once("relay", lambda m: seen.append(m.payload)) is True
        assert seen == [[1]]


@pytest.mark.req("R7.2", "R7.4", "R7.7", "R7.8")
@pytest.mark.asyncio
async def test_an_async_store_has_everything(installed: Installed, clock: Clock) -> None:
    async with await AsyncStore.open(installed.url) as store:
        queue = store.queue("mail")
        id = await queue.send({"to": "a"}, key="k")
        assert len(await queue.send_many([1, 2])) == 2
        (message,) = await queue.claim(1, worker="w")
        assert (message.id, message.payload, message.key) == (id, {"to": "a"}, "k")
        assert (message.attempt, message.max_attempts) == (1, 3)
        assert await message.heartbeat() is True
        assert await message.retry("no", timedelta(0)) is True
        (message, *_) = [one for one in await queue.claim(3, worker="w") if one.id == id]
        assert await message.fail("no") is True
        assert await message.ack() is False
        assert [one.id for one in await store.jobs(state="dead")] == [id]
        assert [one.outcome for one in await store.redrive([id])] == ["pending"]
        assert [one.outcome for one in await store.cancel([id])] == ["cancelled"]
        assert [one.outcome for one in await store.drop_jobs([id])] == ["not_found"]
        row = await store.get_job(id)
        assert row is not None
        assert row.state == "cancelled"
        lease = await store.lock("l").acquire(ttl=TTL)
        assert lease is not None
        assert lease.token > 0
        assert await store.lock("l").acquire(ttl=TTL) is None
        assert await lease.renew() is True
        assert await lease.release() is True
        with pytest.raises(InvalidSpec):
            await store.schedule("s", "@daily", "mail")
        assert (await store.schedule("s", "0 3 * * *", "mail")).name == "s"
        assert await store.pause_schedule("s") is True
        assert await store.resume_schedule("s") is True
        assert await store.rewind_schedule("s") is False
        assert len(await store.schedules()) == 1
        assert await store.unschedule("s") is True


@pytest.mark.req("R7.8")
@pytest.mark.asyncio
async def test_an_async_outbox_takes_coroutines_and_functions(
    installed: Installed, clock: Clock
) -> None:
    seen: list[Any] = []

    async def deliver(message: Message) -> None:
        seen.append(message.payload)

    def refuse(message: Message) -> None:
        raise ConnectionError("down")

    async with await AsyncStore.open(installed.url) as store:
        outbox = store.outbox("o")
        await outbox.enqueue(1)
        assert await outbox.run_once("relay", refuse) is True
        assert await outbox.run_once("relay", deliver) is False
        clock.advance(5)
        assert await outbox.run_once("relay", deliver) is True
        assert seen == [1]


@asynccontextmanager
async def async_caller(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@pytest.mark.req("R7.8", "R3.4")
@pytest.mark.asyncio
async def test_an_outbox_joins_an_async_connection(pg_url: str) -> None:
    async with await AsyncStore.open(pg_url) as store, async_caller(pg_url) as connection:
        await store.outbox("o").enqueue("kept", connection=connection)
        await store.queue("q").send("kept too", connection=connection)
        await connection.commit()
        await store.outbox("o").enqueue("dropped", connection=connection)
        await connection.rollback()
        with pytest.raises(InvalidArgument):
            Store(store.engine).outbox("o").enqueue(1, connection=connection)
        assert {row.payload for row in await store.jobs()} == {'"kept"', '"kept too"'}


@pytest.mark.req("R7.1")
def test_reserved_names_are_refused_in_a_caller_s_transaction_too(installed: Installed) -> None:
    connection: Any
    if installed.engine.kind == "postgresql":
        connection = psycopg.connect(installed.url)
    else:
        connection = sqlite3.connect(installed.url.removeprefix("sqlite:///"))
    store = Store(installed.engine)
    try:
        with pytest.raises(ReservedName):
            store.outbox("__dever_x").enqueue(1, connection=connection)
        connection.rollback()
        with pytest.raises(ReservedName):
            store.queue("__dever_x").send(1, connection=connection)
    finally:
        connection.close()
    assert store.jobs() == []


def test_opening_an_sqlite_file_makes_it_and_a_bare_postgresql_is_an_error(
    tmp_path: Path, pg_empty_url: str
) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'new.db'}") as store:
        assert store.queue("q").send(1) > 0
    with pytest.raises(InstallError, match="not installed"):
        Store.open(pg_empty_url)
