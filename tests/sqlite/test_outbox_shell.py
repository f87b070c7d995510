"""The outbox from any SQLite client: one insert into a view, no function of ours registered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from dever_sql.outbox import Outbox
from dever_sql.sqlite import SQLiteEngine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    engine = SQLiteEngine(tmp_path / "jobs.db")
    engine.install()
    engine.close()
    return tmp_path / "jobs.db"


@pytest.fixture
def shell(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


@pytest.mark.req("R7.8")
def test_a_shell_puts_a_message_into_an_outbox(path: Path, shell: sqlite3.Connection) -> None:
    shell.execute("begin")
    for _ in range(2):
        shell.execute(
            "insert into dever_outbox_enqueue (outbox, payload, key)"
            " values ('notify', '{\"order\": 7}', 'order:7')"
        )
    shell.execute("commit")
    shell.execute("begin")
    shell.execute("insert into dever_outbox_enqueue (outbox, payload) values ('notify', '8')")
    shell.execute("rollback")
    rows = shell.execute("select queue, key, state, max_attempts from dever_jobs").fetchall()
    assert rows == [("__dever_outbox:notify", "order:7", "ready", 5)]
    engine = SQLiteEngine(path)
    seen: list[object] = []
    assert Outbox(engine, "notify").run_once("relay", lambda m: seen.append(m.payload)) is True
    assert seen == [{"order": 7}]
    engine.close()


@pytest.mark.req("R7.1", "R7.8")
@pytest.mark.parametrize(
    ("outbox", "payload", "key", "error"),
    [
        ("", "1", None, "DV001 InvalidName"),
        ("\t ", "1", None, "DV001 InvalidName"),
        ("x" * 256, "1", None, "DV001 InvalidName"),
        (None, "1", None, "DV001 InvalidName"),
        ("__dever_x", "1", None, "DV002 ReservedName"),
        ("notify", "{", None, "DV005 InvalidPayload"),
        ("notify", "1e400", None, "DV005 InvalidPayload"),
        ("notify", "1", " ", "DV006 InvalidKey"),
        ("notify", "1", "__dever_k", "DV002 ReservedName"),
    ],
)
def test_a_shell_is_told_what_is_wrong(
    shell: sqlite3.Connection, outbox: str | None, payload: str, key: str | None, error: str
) -> None:
    with pytest.raises(sqlite3.Error, match=error):
        shell.execute(
            "insert into dever_outbox_enqueue (outbox, payload, key) values (?, ?, ?)",
            (outbox, payload, key),
        )
    assert shell.execute("select count(*) from dever_queue").fetchone() == (0,)


@pytest.mark.req("R7.8")
def test_a_shell_s_send_does_not_reach_an_outbox(shell: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.Error, match="DV002 ReservedName"):
        shell.execute("insert into dever_send (queue, payload) values ('__dever_outbox:n', '1')")
