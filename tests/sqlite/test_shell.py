"""The views for any language, from a bare `sqlite3` shell: no Python, no registered functions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from samples import RECEIPT, RECEIPT_SCHEMA, TARGET, claim, declaration, register

from dever_sql.sqlite import SQLiteEngine

SHELL = shutil.which("sqlite3")
pytestmark = pytest.mark.skipif(SHELL is None, reason="there is no sqlite3 shell here")

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SQLiteEngine]:
    engine = SQLiteEngine(tmp_path / "jobs.db", synchronous="normal")
    engine.install()
    register(engine, declaration(schema=RECEIPT_SCHEMA), worker="w1")
    yield engine
    engine.close()


@pytest.fixture
def shell(engine: SQLiteEngine) -> Shell:
    """Runs SQL in a shell on the engine's file; stops at the first error."""

    def run(sql: str) -> subprocess.CompletedProcess[str]:
        assert SHELL is not None
        return subprocess.run(
            [SHELL, "-bail", engine.path],
            input=".timeout 10000\n" + sql,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def enqueue(key: str, payload: str = RECEIPT, run_at: str = "null", job: str = TARGET) -> str:
    return (
        "insert into dever_enqueue (job, key, payload, run_at)"
        f" values ('{job}', '{key}', '{payload}', {run_at});\n"
    )


@pytest.mark.req("R3.6")
def test_one_insert_enqueues(engine: SQLiteEngine, shell: Shell) -> None:
    done = shell(
        enqueue("receipt:7") + f"select id from dever_jobs where target = '{TARGET}'"
        " and key = 'receipt:7';"
    )
    assert (done.returncode, done.stderr) == (0, "")
    contracts = register(engine, declaration(schema=RECEIPT_SCHEMA), worker="w1")
    claimed = claim(engine, contracts)
    assert [(row.id, row.key, row.attempt) for row in claimed] == [
        (int(done.stdout), "receipt:7", 1)
    ]


@pytest.mark.req("R3.1", "R3.2", "R3.6")
@pytest.mark.parametrize("conflict", ["", "or replace ", "or ignore ", "or abort "])
def test_duplicate_is_no_error_and_changes_nothing(
    engine: SQLiteEngine, shell: Shell, conflict: str
) -> None:
    """Whatever conflict clause the outer statement has; it governs the trigger's statements too."""
    first = enqueue("k")
    second = enqueue("k", '{"order_id": 8, "email": "b"}').replace("into", conflict + "into", 1)
    done = shell(first + second)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(row.key, row.payload) for row in engine.jobs()] == [
        ("k", '{"order_id":7,"email":"a@example.org"}')
    ]


@pytest.mark.req("R3.6", "R2.3")
@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        (enqueue("k", '{"order_id": 7}'), "DV005 InvalidPayload", "payload.email is missing"),
        (
            enqueue("k", '{"order_id": "7", "email": "a"}'),
            "DV005",
            "payload.order_id must be an int",
        ),
        (enqueue("k", RECEIPT[:-1] + ', "x": 1}'), "DV005", "payload.x is not a known field"),
        (enqueue("k", "{"), "DV005", "not valid JSON"),
        (enqueue("k", job="shop.nobody"), "DV004 UnknownJob", "shop.nobody"),
        (enqueue(""), "DV006 InvalidKey", "key"),
        (enqueue("\t"), "DV006 InvalidKey", "key"),
        (enqueue("x" * 1025), "DV006 InvalidKey", "1024"),
        (enqueue("__dever_x"), "DV002 ReservedName", "__dever_"),
        (enqueue("k", run_at="'tomorrow'"), "DV007 InvalidArgument", "run_at"),
        (enqueue("k", run_at="'2027-02-30T00:00:00Z'"), "DV007", "run_at"),
        (enqueue("k", run_at="'2027-02-28T24:00:00Z'"), "DV007", "run_at"),
        (enqueue("k", run_at="'2027-02-28T10:00:00'"), "DV007", "run_at"),
        (enqueue("k", run_at="'2027-02-28T10:00:00+23:59'"), "DV007", "run_at"),
        (enqueue("k", run_at="'2027-02-28T10:00:00-15:00'"), "DV007", "run_at"),
        (enqueue("k", run_at="'0000-01-01T00:00:00Z'"), "DV007", "run_at"),
        (enqueue("k", run_at="'0001-01-01T00:00:00+01:00'"), "DV007", "years 1 to 9999"),
        (enqueue("k", run_at="1800000000"), "DV007", "run_at"),
        (
            "insert into dever_send (queue, payload) values (null, '1');",
            "DV001 InvalidName",
            "name",
        ),
        ("insert into dever_send (queue, payload) values ('  ', '1');", "DV001", "name"),
        ("insert into dever_send (queue, payload) values ('__dever_x', '1');", "DV002", "name"),
        ("insert into dever_send (queue, payload) values ('q', '1e400');", "DV005", "64 bits"),
        ("insert into dever_send (queue, payload) values ('q', '\"\\ud800\"');", "DV005", "surrog"),
        ("insert into dever_send (queue, payload, key) values ('q', '1', ' ');", "DV006", "key"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    engine: SQLiteEngine, shell: Shell, statement: str, code: str, words: str
) -> None:
    done = shell(statement)
    assert done.returncode != 0
    assert f"{code}" in done.stderr
    assert words in done.stderr
    assert engine.jobs() == []
    assert [row.queue for row in engine.queues()] == ["default"]


@pytest.mark.req("R3.6")
def test_fixed_texts_are_raised_as_they_are(shell: Shell) -> None:
    """Not wrapped in the error for a JSON path: that carries only what is made at run time."""
    assert "JSON path" not in shell(enqueue("")).stderr


@pytest.mark.req("R3.3", "R3.6")
@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2031-01-31T08:30:00Z", datetime(2031, 1, 31, 8, 30, tzinfo=UTC)),
        ("2031-01-31t08:30:00z", datetime(2031, 1, 31, 8, 30, tzinfo=UTC)),
        ("2031-01-31T08:30:00.000001Z", datetime(2031, 1, 31, 8, 30, 0, 1, tzinfo=UTC)),
        ("2031-01-31T08:30:00.25+05:30", datetime(2031, 1, 31, 3, 0, 0, 250000, tzinfo=UTC)),
        ("2031-01-31T08:30:00-08:00", datetime(2031, 1, 31, 16, 30, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ],
)
def test_run_at_is_exact(engine: SQLiteEngine, shell: Shell, text: str, instant: datetime) -> None:
    assert shell(enqueue("k", run_at=f"'{text}'")).returncode == 0
    assert [(row.run_at, row.state) for row in engine.jobs()] == [(instant, "scheduled")]


@pytest.mark.req("R3.6")
@pytest.mark.parametrize(
    "setting",
    [
        "case_sensitive_like = on",
        "recursive_triggers = on",
        "recursive_triggers = off",
        "reverse_unordered_selects = on",
        "automatic_index = off",
        "foreign_keys = on",
        "ignore_check_constraints = on",
        "temp_store = memory",
    ],
)
def test_settings_of_the_shell_change_nothing(
    engine: SQLiteEngine, shell: Shell, setting: str
) -> None:
    pragma = f"pragma {setting};\n"
    done = shell(pragma + enqueue("k", run_at="'2031-01-31t08:30:00z'") + enqueue("k"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "payload.email is missing" in shell(pragma + enqueue("l", '{"order_id": 1}')).stderr
    assert [(row.key, row.state) for row in engine.jobs()] == [("k", "scheduled")]


@pytest.mark.req("R4.1")
def test_untrusted_schema_leaves_the_database_readable(engine: SQLiteEngine, shell: Shell) -> None:
    """SQLite 3.40 then refuses JSON functions in triggers: nothing to enqueue with, but to see."""
    engine.enqueue(TARGET, "k", RECEIPT)
    done = shell("pragma trusted_schema = off; select key, state from dever_jobs;")
    assert (done.stdout, done.stderr) == ("k|ready\n", "")


@pytest.mark.req("R3.4", "R3.6")
def test_error_undoes_the_statement_and_keeps_the_transaction(
    engine: SQLiteEngine, shell: Shell
) -> None:
    assert SHELL is not None
    rows = f"('{TARGET}', 'a', '{RECEIPT}'), ('{TARGET}', 'b', '{{}}')"
    script = [
        "create table mine (n integer);",
        "begin immediate;",
        "insert into mine values (1);",
        f"insert into dever_enqueue (job, key, payload) values {rows};",
        enqueue("c"),
        "insert into mine values (2);",
        "commit;",
    ]
    done = subprocess.run(
        [SHELL, engine.path], input="\n".join(script), capture_output=True, text=True, check=False
    )
    assert "DV005" in done.stderr
    assert [row.key for row in engine.jobs()] == ["c"]
    assert shell("select group_concat(n) from mine;").stdout == "1,2\n"


@pytest.mark.req("R7.2", "R7.8", "R3.6")
def test_send_and_outbox(engine: SQLiteEngine, shell: Shell) -> None:
    done = shell(
        "insert into dever_send (queue, payload, key) values ('mail', '{\"to\": 1}', 'k');"
        "insert into dever_send (queue, payload, key) values ('mail', '2', 'k');"
        "insert into dever_send (queue, payload) values ('mail', null);"
        "insert into dever_outbox_enqueue (outbox, payload, key) values ('mail', '[]', 'k');"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [(row.queue, row.key, row.payload) for row in reversed(engine.jobs())] == [
        ("mail", "k", '{"to":1}'),
        ("mail", None, "null"),
        ("__dever_outbox:mail", "k", "[]"),
    ]


@pytest.mark.req("R9.4")
def test_views_read_without_functions(engine: SQLiteEngine, shell: Shell) -> None:
    engine.enqueue(TARGET, "k", RECEIPT, engine.clock() + timedelta(hours=1))
    engine.lock_acquire("l", "me", timedelta(minutes=1))
    done = shell(
        "select state, run_at from dever_jobs; select queue, scheduled from dever_queues;"
        "select worker from dever_workers; select name from dever_locks;"
        "select count(*) from dever_dead; select count(*) from dever_blocked;"
        "select count(*) from dever_schedules;"
    )
    assert done.stderr == ""
    first, *others = done.stdout.splitlines()
    state, run_at = first.split("|")
    assert state == "scheduled"
    assert datetime.fromisoformat(run_at) == engine.jobs()[0].run_at
    assert others == ["default|1", "w1", "l", "0", "0", "0"]
