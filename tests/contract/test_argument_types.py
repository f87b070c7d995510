"""Arguments of a wrong Python type: the same refusal on both engines, with nothing stored."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from engines import Raw
from samples import TARGET, declaration

from dever_sql.engine import Engine
from dever_sql.errors import DeverError, InvalidArgument, InvalidKey, InvalidName, InvalidSpec
from dever_sql.store import Store

MINUTE = timedelta(minutes=1)
Call = Callable[[Store, Any], object]

TEXTS: dict[str, tuple[type[DeverError], Call]] = {
    "queue": (InvalidName, lambda store, value: store.queue(value).send(1)),
    "queue of many": (InvalidName, lambda store, value: store.queue(value).send_many([1])),
    "outbox": (InvalidName, lambda store, value: store.outbox(value).enqueue(1)),
    "key": (InvalidKey, lambda store, value: store.queue("q").send(1, key=value)),
    "worker": (InvalidName, lambda store, value: store.queue("q").claim(1, worker=value)),
    "schedule": (InvalidName, lambda store, value: store.schedule(value, "@every 1h", "q")),
    "spec": (InvalidSpec, lambda store, value: store.schedule("s", value, "q")),
    "missed": (
        InvalidArgument,
        lambda store, value: store.schedule("s", "@every 1h", "q", missed=value),
    ),
    "unschedule": (InvalidName, lambda store, value: store.unschedule(value)),
    "job": (InvalidName, lambda store, value: store.engine.enqueue(value, "k", "null")),
    "job's key": (InvalidKey, lambda store, value: store.engine.enqueue(TARGET, value, "null")),
    "job's keys": (
        InvalidKey,
        lambda store, value: store.engine.enqueue_many(TARGET, ["a", value], ["null", "null"]),
    ),
    "owner": (
        InvalidName,
        lambda store, value: store.engine.lock_release("l", value, 1),
    ),
}
INTEGERS: dict[str, Call] = {
    "n": lambda store, value: store.queue("q").claim(value, worker="w"),
    "max_attempts": lambda store, value: store.queue("q").send(1, max_attempts=value),
    "id": lambda store, value: store.get_job(value),
    "ids": lambda store, value: store.cancel([1, value]),
    "redriven": lambda store, value: store.redrive([value]),
    "dropped": lambda store, value: store.drop_jobs([value]),
    "token": lambda store, value: store.engine.complete([1], [value]),
    "contract": lambda store, value: store.engine.claim("q", "w", 1, contracts=[value]),
    "limit": lambda store, value: store.jobs(limit=value),
    "before": lambda store, value: store.jobs(before=value),
}
TIMES: dict[str, Call] = {
    "delay": lambda store, value: store.queue("q").send(1, delay=value),
    "expires": lambda store, value: store.queue("q").send(1, expires=value),
    "run_at": lambda store, value: store.queue("q").send(1, run_at=value),
    "ttl": lambda store, value: store.lock("l").acquire(ttl=value),
    "lease": lambda store, value: store.queue("q").claim(1, worker="w", lease=value),
    "visibility": lambda store, value: store.configure_queue("q", visibility=value),
    "job's run_at": lambda store, value: store.engine.enqueue(TARGET, "k", "null", value),
}


@pytest.fixture
def store(engine: Engine) -> Store:
    engine.register(None, [declaration()], MINUTE)
    return Store(engine)


def is_empty(raw: Raw) -> bool:
    return all(raw.count(table) == 0 for table in ("job", "finished", "schedule", "lock"))


@pytest.mark.req("R7.1")
@pytest.mark.parametrize("argument", TEXTS)
@pytest.mark.parametrize("value", [5, b"x", uuid.UUID(int=1)], ids=repr)
def test_what_is_no_text_is_refused(store: Store, raw: Raw, argument: str, value: object) -> None:
    error, call = TEXTS[argument]
    with pytest.raises(error, match="is not text, got"):
        call(store, value)
    assert is_empty(raw)


@pytest.mark.req("R7.1")
@pytest.mark.parametrize("argument", TEXTS)
@pytest.mark.parametrize("value", ["a\0b", "\ud800"], ids=ascii)
def test_text_that_no_column_holds_is_refused(
    store: Store, raw: Raw, argument: str, value: str
) -> None:
    error, call = TEXTS[argument]
    with pytest.raises(error, match="cannot be stored"):
        call(store, value)
    assert is_empty(raw)


@pytest.mark.req("R7.2")
@pytest.mark.parametrize("argument", INTEGERS)
@pytest.mark.parametrize("value", ["3", 1.0, True, 2**63], ids=repr)
def test_what_is_no_integer_is_refused(
    store: Store, raw: Raw, argument: str, value: object
) -> None:
    with pytest.raises(InvalidArgument, match=r"is not an integer, got|is beyond 64 bits"):
        INTEGERS[argument](store, value)
    assert is_empty(raw)


@pytest.mark.req("R7.2")
@pytest.mark.parametrize("argument", TIMES)
@pytest.mark.parametrize("value", [5, "5 s"], ids=repr)
def test_what_is_no_duration_or_instant_is_refused(
    store: Store, raw: Raw, argument: str, value: object
) -> None:
    with pytest.raises(InvalidArgument, match="is not a"):
        TIMES[argument](store, value)
    assert is_empty(raw)


@pytest.mark.req("R7.2")
def test_missing_count_is_refused_and_none_left_gives_nothing(store: Store) -> None:
    missing: Any = None
    store.queue("q").send(1)
    with pytest.raises(InvalidArgument):
        store.queue("q").claim(missing, worker="w")
    with pytest.raises(InvalidArgument):
        store.jobs(limit=missing)
    assert store.jobs(limit=0) == store.jobs(limit=-1) == []
