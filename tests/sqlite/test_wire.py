"""The payload check of the SQLite triggers against the golden examples of the wire format."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from samples import declaration, record_schema
from wire_cases import WireCase, cases, schemas

from dever_sql.sqlite import SQLiteEngine

CASES = cases("sqlite")


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A plain connection to a database where every golden schema is a registered job."""
    path = tmp_path_factory.mktemp("wire") / "jobs.db"
    engine = SQLiteEngine(path, synchronous="normal")
    engine.install()
    declarations = [
        {**declaration(target=entry["name"], schema=entry["schema"]), "fingerprint": "f"}
        for entry in schemas()
    ]
    engine.register(None, declarations, timedelta(minutes=1))
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()
    engine.close()


@pytest.mark.req("R2.3", "R3.6")
@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_golden(wire: sqlite3.Connection, case: WireCase) -> None:
    wire.execute("begin")
    insert = "insert into dever_enqueue (job, key, payload) values (?, 'k', ?)"
    try:
        if case.path is None:
            wire.execute(insert, [case.schema_name, case.payload])
            stored = wire.execute("select payload from dever_jobs where key = 'k'").fetchone()
            # Stored without the white space, otherwise as it was spelt.
            assert json.loads(stored[0]) == json.loads(case.payload)
            return
        with pytest.raises(sqlite3.DatabaseError) as caught:
            wire.execute(insert, [case.schema_name, case.payload])
        message = str(caught.value).split("\nhint:")[0]
        assert "DV005 InvalidPayload: " in message
        if case.unparsable:
            return
        assert re.search(rf"[\s]{re.escape(case.path)}(?!\w)", message), message
        assert wire.execute("select count(*) from dever_jobs").fetchone() == (0,)
    finally:
        wire.execute("rollback")


@pytest.mark.req("R2.4")
def test_check_is_linear(tmp_path: Path) -> None:
    """4,000 records cost a fraction of a second, not the square of one."""
    engine = SQLiteEngine(tmp_path / "jobs.db", synchronous="normal")
    engine.install()
    item = record_schema("Item", sku="text", count="int", at="datetime")
    schema = record_schema("Order", items={"kind": "list", "item": item})
    engine.register(None, [declaration(schema=schema)], timedelta(minutes=1))
    items = [{"sku": f"s{n}", "count": n, "at": "2027-01-01T00:00:00Z"} for n in range(4_000)]
    started = time.perf_counter()
    engine.enqueue(declaration()["target"], "k", json.dumps({"items": items}))
    assert time.perf_counter() - started < 2
    items[3_999]["at"] = "2027-02-30T00:00:00Z"
    with pytest.raises(Exception, match=r"payload\.items\[3999\]\.at is not a datetime"):
        engine.enqueue(declaration()["target"], "k2", json.dumps({"items": items}))
    engine.close()
