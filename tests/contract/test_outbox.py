"""The outbox: commits with the caller's rows, delivered at least once (R7.8)."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from engines import START, Clock, Installed

from dever_sql.engine import Engine
from dever_sql.errors import InvalidKey, InvalidName, ReservedName
from dever_sql.outbox import Outbox
from dever_sql.queue import Message, Queue

SECOND = timedelta(seconds=1)


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    return Outbox(engine, "notify")


@contextmanager
def caller(installed: Installed) -> Iterator[Any]:
    """A connection of the caller's own to the same database."""
    if installed.engine.kind == "postgresql":
        with psycopg.connect(installed.url) as connection:
            yield connection
        return
    connection = sqlite3.connect(installed.url.removeprefix("sqlite:///"), timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def deliver_all(outbox: Outbox, into: list[Any]) -> None:
    while outbox.run_once("relay", lambda message: into.append(message.payload)):
        pass


@pytest.mark.req("R7.8")
def test_the_defaults_of_an_outbox(engine: Engine, clock: Clock, outbox: Outbox) -> None:
    id = outbox.enqueue({"n": 1}, key="k")
    row = engine.get_job(id)
    assert row is not None
    assert (row.queue, row.key, row.max_attempts) == ("__dever_outbox:notify", "k", 5)
    message = outbox.claim("relay")
    assert message is not None
    assert message.lease_until == clock.now + 60 * SECOND
    assert message.retry("down") is True
    row = engine.get_job(id)
    assert row is not None
    assert row.run_at == START + 5 * SECOND


@pytest.mark.req("R7.8")
def test_a_delivery_that_returns_is_acknowledged(engine: Engine, outbox: Outbox) -> None:
    id = outbox.enqueue({"n": 1}, key="order:1")
    seen: list[tuple[Any, str | None]] = []
    assert outbox.run_once("relay", lambda m: seen.append((m.payload, m.key))) is True
    assert outbox.run_once("relay", lambda m: seen.append((m.payload, m.key))) is False
    assert seen == [({"n": 1}, "order:1")]
    row = engine.get_job(id)
    assert row is not None
    assert row.state == "succeeded"


@pytest.mark.req("R7.8", "R5.1")
def test_a_delivery_that_raises_is_repeated_on_the_curve_and_then_dead(
    engine: Engine, clock: Clock, outbox: Outbox
) -> None:
    id = outbox.enqueue()

    def delivery(message: Message) -> None:
        raise ConnectionError("refused")

    for wait in (5, 10, 20, 40, None):
        assert outbox.run_once("relay", delivery) is True
        assert outbox.run_once("relay", delivery) is False
        row = engine.get_job(id)
        assert row is not None
        assert row.error is not None
        assert "ConnectionError" in row.error
        if wait is not None:
            assert row.run_at == clock.now + wait * SECOND
            clock.advance(wait)
        else:
            assert (row.state, row.attempt) == ("dead", 5)


@pytest.mark.req("R7.8")
def test_a_relay_that_dies_delivers_again(clock: Clock, outbox: Outbox) -> None:
    outbox.enqueue(1)
    assert outbox.claim("dies") is not None
    assert outbox.run_once("relay", lambda message: None) is False
    clock.advance(60)
    assert outbox.run_once("relay", lambda message: None) is True


@pytest.mark.req("R7.8", "R3.4")
def test_it_commits_and_rolls_back_with_the_caller_s_rows(
    installed: Installed, outbox: Outbox
) -> None:
    with caller(installed) as connection:
        outbox.enqueue("kept", connection=connection)
        connection.commit()
        outbox.enqueue("dropped", connection=connection)
        connection.rollback()
    seen: list[Any] = []
    deliver_all(outbox, seen)
    assert seen == ["kept"]


@pytest.mark.req("R7.8", "R7.1")
def test_ordinary_sends_and_schedules_do_not_reach_it(engine: Engine, outbox: Outbox) -> None:
    outbox.enqueue(1)
    reserved = "__dever_outbox:notify"
    with pytest.raises(ReservedName):
        Queue(engine, reserved).send()
    with pytest.raises(ReservedName):
        Queue(engine, reserved).send_many([1])
    with pytest.raises(ReservedName):
        engine.schedule("s", "* * * * *", reserved)
    assert Queue(engine, "notify").claim(1, worker="w") == []


@pytest.mark.req("R7.8", "R7.1")
def test_names_and_keys_are_checked(engine: Engine) -> None:
    for name in ("", " \t", "n" * 256, "a\0b"):
        with pytest.raises(InvalidName):
            Outbox(engine, name).enqueue()
    with pytest.raises(ReservedName):
        Outbox(engine, "__dever_x").enqueue()
    with pytest.raises(InvalidKey):
        Outbox(engine, "notify").enqueue(key=" ")
    assert Outbox(engine, "n" * 255).enqueue() > 0


@pytest.mark.req("R7.8")
def test_a_key_is_unique_among_the_undelivered(outbox: Outbox) -> None:
    first = outbox.enqueue(1, key="k")
    assert outbox.enqueue(2, key="k") == first
    seen: list[Any] = []
    deliver_all(outbox, seen)
    assert seen == [1]
    assert outbox.enqueue(3, key="k") != first


@pytest.mark.req("R7.8")
def test_what_commits_is_delivered_and_nothing_else(installed: Installed, outbox: Outbox) -> None:
    """Eight writers with random commits and rollbacks, and a relay that runs meanwhile."""
    committed: list[str] = []
    delivered: list[Any] = []
    done = threading.Event()
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        rng = random.Random(writer)
        try:
            with caller(installed) as connection:
                for n in range(25):
                    names = [f"{writer}:{n}:{part}" for part in range(rng.randint(1, 3))]
                    for name in names:
                        outbox.enqueue(name, connection=connection)
                    if rng.random() < 0.6:
                        connection.commit()
                        committed.extend(names)
                    else:
                        connection.rollback()
        except BaseException as error:
            errors.append(error)

    def relay() -> None:
        while not done.is_set():
            deliver_all(outbox, delivered)
            done.wait(0.002)

    running = threading.Thread(target=relay)
    running.start()
    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    running.join()
    deliver_all(outbox, delivered)
    assert errors == []
    assert set(delivered) == set(committed)
    assert len(delivered) == len(committed)
