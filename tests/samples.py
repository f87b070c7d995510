"""Declarations, and the shortest way to a job in a given state, for tests of the engines."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from dever_sql.engine import Claimed, Engine, Registered

TARGET = "shop.order.job.send_receipt"
LEASE = timedelta(seconds=60)
LONG = timedelta(days=3650)

NULL_SCHEMA: dict[str, Any] = {"kind": "null"}


def record_schema(name: str, **fields: dict[str, Any] | str) -> dict[str, Any]:
    """A record; a field given as a text is that kind without anything more to say."""
    return {
        "kind": "record",
        "name": name,
        "fields": [
            {"name": field, "type": {"kind": node} if isinstance(node, str) else node}
            for field, node in fields.items()
        ],
    }


RECEIPT_SCHEMA = record_schema("Receipt", order_id="int", email="text")
RECEIPT = '{"order_id": 7, "email": "a@example.org"}'


def fingerprint(schema: dict[str, Any]) -> str:
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def declaration(
    target: str = TARGET,
    schema: dict[str, Any] = NULL_SCHEMA,
    *,
    queue: str = "default",
    retry: int = 3,
    timeout_ms: int = 30_000,
    backoff_base_ms: int = 1_000,
    backoff_max_ms: int = 300_000,
    **more: Any,
) -> dict[str, Any]:
    """One element of `register`'s contracts; `more` overrides or adds members."""
    return {
        "target": target,
        "fingerprint": fingerprint(schema),
        "queue": queue,
        "schema": schema,
        "retry": retry,
        "timeout_ms": timeout_ms,
        "backoff_base_ms": backoff_base_ms,
        "backoff_max_ms": backoff_max_ms,
        "schedule": None,
        **more,
    }


def register(
    engine: Engine,
    *declarations: dict[str, Any],
    worker: str | None = "w1",
    alive: timedelta = LONG,
) -> list[int]:
    """Registers and returns the contract ids, in the order of the declarations."""
    rows: list[Registered] = engine.register(worker, declarations or [declaration()], alive)
    ids = {(row.target, row.fingerprint): row.contract_id for row in rows}
    return [ids[(one["target"], one["fingerprint"])] for one in (declarations or [declaration()])]


def claim(
    engine: Engine,
    contracts: Sequence[int] | None,
    *,
    n: int = 10,
    queue: str = "default",
    worker: str = "w1",
    lease: timedelta | None = LEASE,
    expect: int = 0,
) -> list[Claimed]:
    """Claims once, or again until `expect` jobs are there.

    After a scan that was dear (a loaded machine is enough) PostgreSQL may leave out rows whose
    lease ran out for 20 times the scan's cost (R4.5), so a test that expects jobs says so.
    """
    claimed = engine.claim(queue, worker, n, lease, contracts)
    deadline = time.monotonic() + 10
    while len(claimed) < expect and time.monotonic() < deadline:
        time.sleep(0.01)
        claimed += engine.claim(queue, worker, n - len(claimed), lease, contracts)
    assert len(claimed) >= expect
    return claimed


def claim_one(engine: Engine, contracts: Sequence[int] | None, **more: Any) -> Claimed:
    """The one job there is to claim."""
    (claimed,) = claim(engine, contracts, expect=1, **more)
    return claimed


def running(engine: Engine, key: str = "k", **more: Any) -> Claimed:
    """Registers a job without input, enqueues it and claims it. `more`: see `declaration`."""
    contracts = register(engine, declaration(**more))
    engine.enqueue(more.get("target", TARGET), key)
    return claim_one(engine, contracts, queue=more.get("queue", "default"))


def state(engine: Engine, id: int) -> str:
    row = engine.get_job(id)
    assert row is not None
    return row.state
