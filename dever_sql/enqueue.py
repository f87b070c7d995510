"""How an enqueue of a declared job reaches its database: encode, register once, insert (R3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from . import connection as caller
from . import database
from .engine import Engine, Enqueued, Steps
from .errors import InvalidArgument, InvalidKey, InvalidPayload, MissingRight, UnknownJob

if TYPE_CHECKING:
    from .declare import Job
    from .wire import Codec

ABSENT: Final = object()
"""Stands for a payload that was not given."""

# A registration without a worker is never live; the database wants a duration all the same.
_ALIVE: Final = timedelta(minutes=1)

_registered_lock = threading.Lock()
_registered: WeakKeyDictionary[Engine, set[tuple[str, str]]] = WeakKeyDictionary()
"""The contracts that each engine's database is known to hold."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One job to insert."""

    payload: Any
    key: str
    run_at: datetime | None = None


def entries_of(job: Job[Any], items: Iterable[Any]) -> list[Entry]:
    """The entries of `enqueue_many`. Raises InvalidArgument naming the one that is none."""
    found: list[Entry] = []
    for number, item in enumerate(items, 1):
        parts = cast("tuple[Any, ...]", item if isinstance(item, tuple) else (item,))
        if not job.takes_input:
            # Also (None, key): None is what the payload of such a job is.
            parts = cast("Any", (ABSENT, *(parts[1:] if parts[:1] == (None,) else parts)))
        if len(parts) not in (2, 3):
            form = "(payload, key) or (payload, key, run_at)"
            raise InvalidArgument(
                f"entry {number} of enqueue_many is not of the form the job takes",
                hint=f"write {form if job.takes_input else 'key, (key,) or (key, run_at)'}",
            )
        run_at = parts[2] if len(parts) == 3 else None
        found.append(Entry(parts[0], parts[1], None if run_at is None else instant(run_at)))
    return found


def instant(run_at: Any) -> datetime:
    """`run_at` in UTC. Raises InvalidArgument unless it is an aware datetime."""
    if not isinstance(run_at, datetime):
        raise InvalidArgument(f"run_at must be a datetime, got {type(run_at).__name__}")
    if run_at.utcoffset() is None:
        raise InvalidArgument(
            "run_at has no time zone", hint="use an aware datetime: datetime.now(UTC) + ..."
        )
    try:
        return run_at.astimezone(UTC)
    except OverflowError:
        raise InvalidArgument("run_at is outside the years 1 to 9999") from None


def insert(job: Job[Any], entries: Sequence[Entry], connection: object | None) -> list[Enqueued]:
    """Insert on the caller's connection, in the open `transaction()`, or on an own connection."""
    batch = _Batch(job, entries)
    if connection is None:
        connection = database.current_transaction(job.database)
    engine = database.engine_for(job.database)
    if connection is None:
        return _insert_alone(engine, batch)
    if _needs_registration(engine, batch):
        if engine.kind == "sqlite":
            caller.run(engine, connection, batch.registration(engine))
        else:
            _register(engine, batch)
    return caller.run(engine, connection, batch.insertion(engine))


async def ainsert(
    job: Job[Any], entries: Sequence[Entry], connection: object | None
) -> list[Enqueued]:
    """`insert` for async code: an async connection, or a thread for an own one."""
    batch = _Batch(job, entries)
    if connection is None:
        connection = database.current_transaction(job.database)
    engine = await asyncio.to_thread(database.engine_for, job.database)
    if connection is None:
        return await asyncio.to_thread(_insert_alone, engine, batch)
    if _needs_registration(engine, batch):
        if engine.kind == "sqlite":
            await caller.arun(engine, connection, batch.registration(engine))
        else:
            await asyncio.to_thread(_register, engine, batch)
    return await caller.arun(engine, connection, batch.insertion(engine))


class _Batch:
    """Entries in the shape of `enqueue_as`. Everything is checked before any database is asked."""

    def __init__(self, job: Job[Any], entries: Sequence[Entry]) -> None:
        codec = job.codec
        self.contract = (job.target, codec.fingerprint)
        self._job = job
        alone = len(entries) == 1
        self._keys = [_key(entry.key) for entry in entries]
        self._payloads = [
            _payload(job, codec, entry, None if alone else number)
            for number, entry in enumerate(entries, 1)
        ]
        run_ats = [entry.run_at for entry in entries]
        self._run_ats = run_ats if any(run_ats) else None

    def insertion(self, engine: Engine) -> Steps:
        return engine.enqueue_as_steps(*self.contract, self._keys, self._payloads, self._run_ats)

    def registration(self, engine: Engine) -> Steps:
        # On the transaction that may write at that time; whether it commits nobody knows, so it
        # is not remembered.
        return engine.register_steps(None, [self._declared()], _ALIVE)

    def insert(self, engine: Engine) -> list[Enqueued]:
        return engine.enqueue_as(*self.contract, self._keys, self._payloads, self._run_ats)

    def register(self, engine: Engine) -> None:
        engine.register(None, [self._declared()], _ALIVE)

    def _declared(self) -> dict[str, Any]:
        return self._job.contract(**database.backoff_settings())


def _insert_alone(engine: Engine, batch: _Batch) -> list[Enqueued]:
    if _needs_registration(engine, batch):
        _register(engine, batch)
    try:
        return batch.insert(engine)
    except UnknownJob:  # the database was made anew since
        _register(engine, batch)
        return batch.insert(engine)


def _needs_registration(engine: Engine, batch: _Batch) -> bool:
    with _registered_lock:
        return batch.contract not in _registered.get(engine, ())


def _register(engine: Engine, batch: _Batch) -> None:
    # A role that may enqueue and no more leaves it to a worker or to `dever sql contracts`; until
    # then the insert says that the job is unknown.
    with suppress(MissingRight):
        batch.register(engine)
    with _registered_lock:
        _registered.setdefault(engine, set()).add(batch.contract)


def _payload(job: Job[Any], codec: Codec[Any], entry: Entry, item: int | None) -> str:
    if (entry.payload is ABSENT) is job.takes_input:
        name = job.handler.__name__
        call = f"{name}.enqueue({'payload, ' if job.takes_input else ''}key=...)"
        raise InvalidPayload(
            f"job {job.target} takes {'a' if job.takes_input else 'no'} payload", hint=f"use {call}"
        )
    return codec.encode(None if entry.payload is ABSENT else entry.payload, item=item)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidKey(f"a key must be text, got {type(key).__name__}")
    return key
