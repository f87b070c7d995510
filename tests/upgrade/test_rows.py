"""Work of every kind that is there before an upgrade is there afterwards, and goes on (R9.1)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from samples import LEASE, LONG, RECEIPT, RECEIPT_SCHEMA, TARGET, declaration
from upgrade.catalogue import contents
from upgrade.databases import FIRST, sqlite_database

from dever_sql.database import open_engine
from dever_sql.engine import Claimed, Engine
from dever_sql.sql_files import schema_version

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Filled:
    """An engine of the old version, with something of everything in it."""

    engine: Engine
    url: str
    contract: int
    running: Claimed
    scheduled: int
    blocked: int
    dead: int
    lock: int


def filled(url: str) -> Filled:
    engine = open_engine(url)
    contract = declaration(TARGET, RECEIPT_SCHEMA, queue="mail")
    (registered,) = engine.register("w", [contract], LONG, {"host": "here"})
    keys = ["running", "ready", "later"]
    enqueued = engine.enqueue_as(
        TARGET, registered.fingerprint, keys, [RECEIPT] * 3, [None, None, LATER]
    )
    (running,) = engine.claim("mail", "w", 1, LONG, [registered.contract_id])
    ends: dict[str, int] = {}
    for end in ("block", "bury", "complete", "retry", "cancel"):
        ends[end] = engine.send(end, '{"a": [1, "😀"]}', key=end)
        if end == "cancel":
            engine.cancel([ends[end]])
            continue
        (claimed,) = engine.claim(end, "w", 1, LEASE)
        if end == "complete":
            engine.complete([claimed.id], [claimed.token])
        elif end == "retry":
            engine.retry([claimed.id], [claimed.token], ["no luck"], None, [LONG])
        elif end == "bury":
            engine.bury([claimed.id], [claimed.token], ["never"])
        else:
            engine.block([claimed.id], [claimed.token], ["invalid_payload"])
    engine.outbox_enqueue("orders", "1", key="o")
    engine.schedule("nightly", "0 2 * * *", "reports", '{"n": 1}')
    engine.schedule("paused", "@every 1h", "reports")
    engine.pause_schedule("paused")
    engine.configure_queue("mail", max_attempts=9, visibility=timedelta(minutes=7))
    engine.pause_queue("reports")
    token = engine.lock_acquire("nightly", "w", LONG)
    assert token is not None
    return Filled(
        engine=engine,
        url=url,
        contract=registered.contract_id,
        running=running,
        scheduled=enqueued[2].id,
        blocked=ends["block"],
        dead=ends["bury"],
        lock=token,
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filled]:
    if request.param == "sqlite":
        url = f"sqlite:///{sqlite_database(tmp_path / 'jobs.db', FIRST)}"
    else:
        url = request.getfixturevalue("old_url")
    found = filled(url)
    yield found
    found.engine.close()


@pytest.fixture
def upgraded(old: Filled) -> Filled:
    operator = open_engine(old.url)
    assert operator.install() == schema_version()
    operator.close()
    return old


def rows(url: str) -> dict[str, list[str]]:
    """Everything but the row that says which version is installed; identities and sequences too."""
    if not url.startswith("sqlite"):
        with psycopg.connect(url, autocommit=True) as session:
            found = contents(session)
        del found["installation"]
        return found
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        names = connection.execute(
            "select name from sqlite_master where type = 'table' and name <> 'dever_installation'"
        ).fetchall()
        return {
            name: sorted(map(repr, connection.execute(f"select * from {name}")))
            for (name,) in names
        }


@pytest.mark.req("R9.1")
def test_every_row_and_sequence_survives(old: Filled) -> None:
    before = rows(old.url)
    assert all(before.values()), [name for name, found in before.items() if not found]
    operator = open_engine(old.url)
    operator.install()
    operator.close()
    assert rows(old.url) == before


@pytest.mark.req("R9.1")
def test_the_installation_stays_the_same_one(old: Filled) -> None:
    identity = old.engine.installation_id()
    operator = open_engine(old.url)
    operator.install()
    assert operator.installation_id() == identity
    operator.close()


@pytest.mark.req("R9.1")
def test_what_was_claimed_before_is_finished_afterwards(upgraded: Filled) -> None:
    engine, running = upgraded.engine, upgraded.running
    (renewed,) = engine.renew([running.id], [running.token], LONG)
    assert renewed.ok
    (completed,) = engine.complete([running.id], [running.token])
    assert completed.ok


@pytest.mark.req("R9.1")
def test_what_was_ready_is_claimed_with_a_later_token(upgraded: Filled) -> None:
    (claimed,) = upgraded.engine.claim("mail", "w", 10, LEASE, [upgraded.contract])
    assert claimed.key == "ready"
    assert claimed.payload == upgraded.running.payload
    assert claimed.token > upgraded.running.token


@pytest.mark.req("R9.1")
def test_keys_stay_taken_and_free_ones_free(upgraded: Filled) -> None:
    engine = upgraded.engine
    assert not engine.enqueue(TARGET, "later", RECEIPT).created
    assert engine.enqueue(TARGET, "another", RECEIPT).created
    assert engine.send("complete", "1", key="complete") > upgraded.dead


@pytest.mark.req("R9.1")
@pytest.mark.parametrize("kind", ["blocked", "dead"])
def test_what_had_failed_is_redriven(upgraded: Filled, kind: str) -> None:
    id: int = getattr(upgraded, kind)
    (outcome,) = upgraded.engine.redrive([id])
    assert outcome.outcome == "pending"
    (claimed,) = upgraded.engine.claim("block" if kind == "blocked" else "bury", "w", 1, LEASE)
    assert claimed.id == id


@pytest.mark.req("R9.1")
def test_what_waits_for_its_time_is_cancelled(upgraded: Filled) -> None:
    (outcome,) = upgraded.engine.cancel([upgraded.scheduled])
    assert outcome.outcome == "cancelled"


@pytest.mark.req("R9.1")
def test_schedules_and_settings_stay(upgraded: Filled) -> None:
    engine = upgraded.engine
    assert {each.name: each.status for each in engine.schedules()}["paused"] == "paused"
    queues = {each.queue: each for each in engine.queues()}
    assert queues["mail"].max_attempts == 9
    assert queues["mail"].visibility == timedelta(minutes=7)
    assert queues["reports"].paused
    assert engine.resume_schedule("paused")
    assert engine.next_tick_at() is not None
    engine.tick()


@pytest.mark.req("R9.1")
def test_locks_and_workers_stay(upgraded: Filled) -> None:
    engine = upgraded.engine
    assert engine.lock_acquire("nightly", "somebody else", LEASE) is None
    assert engine.lock_renew("nightly", "w", upgraded.lock, LEASE)
    assert [each.worker for each in engine.workers()] == ["w"]
    assert engine.alive("w", LONG)
    assert engine.leave("w")


@pytest.mark.req("R9.1")
def test_sweep_goes_on(upgraded: Filled) -> None:
    moved: dict[str, Any] = upgraded.engine.sweep()
    assert isinstance(moved, dict)
    assert upgraded.engine.get_job(upgraded.dead) is not None
