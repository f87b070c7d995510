"""The contract's core under settings of the database that could change what a statement means.

The tests are those of tests/contract, on a database that had the setting before Dever SQL was
installed in it (C55): sessions of the engine, the installer's and a bare client's all have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from conftest import _database, _empty_postgres
from contract.test_claim import (
    test_a_crashed_worker_has_used_its_attempt,  # noqa: F401
    test_a_running_lease_is_claimed_again_exactly_at_its_end,  # noqa: F401
    test_batch_has_one_verdict_per_row,  # noqa: F401
    test_order_is_run_at_then_id,  # noqa: F401
    test_worker_claims_only_its_contracts,  # noqa: F401
)
from contract.test_enqueue import (
    test_batch_rows_have_their_own_payload_and_run_at,  # noqa: F401
    test_duplicate_returns_the_first,  # noqa: F401
    test_enqueue_at_is_claimable_exactly_from_run_at,  # noqa: F401
    test_run_at_keeps_microseconds_and_comes_back_in_utc,  # noqa: F401
)
from contract.test_lock import (
    test_a_lock_runs_out_and_its_old_holder_can_do_nothing,  # noqa: F401
)
from contract.test_numbers import (
    test_largest_durations_are_kept_exactly,  # noqa: F401
)
from contract.test_outbox import (
    outbox,  # noqa: F401
    test_a_delivery_that_raises_is_repeated_on_the_curve_and_then_dead,  # noqa: F401
    test_it_commits_and_rolls_back_with_the_caller_s_rows,  # noqa: F401
)
from contract.test_outcomes import (
    test_batch_of_retries_with_own_delays_and_errors,  # noqa: F401
    test_cancel_answers_per_row,  # noqa: F401
    test_redrive_reports_a_key_in_use_and_goes_on,  # noqa: F401
    test_retry_is_claimable_exactly_when_its_backoff_ends,  # noqa: F401
)
from contract.test_queue import (
    test_configure_changes_what_is_given_and_leaves_the_rest,  # noqa: F401
    test_defaults_are_stamped_when_sent,  # noqa: F401
    test_queue_counts,  # noqa: F401
)
from contract.test_schedule_declared import (
    test_a_cron_that_nobody_declares_any_more_is_orphaned_and_silent,  # noqa: F401
)
from contract.test_schedule_windows import (
    test_five_due_hours_fire_five_and_keep_the_phase,  # noqa: F401
    test_windows_that_pass_while_paused_are_skipped,  # noqa: F401
)
from contract.test_sweep import (
    test_due_job_that_nobody_runs_is_blocked_after_the_queues_time,  # noqa: F401
    test_lapsed_workers_are_forgotten_in_the_end,  # noqa: F401
    test_message_expires_exactly_at_its_instant,  # noqa: F401
)
from engines import START, Installed, PostgresClock, PostgresRaw
from hostile_path import build_hostile_schema
from postgres_server import Cluster
from sessions import Session
from wire_cases import cases, schemas
from worker_tasks import enqueue, task, work

from dever_sql.errors import DeverError
from dever_sql.postgres import PostgresEngine

SETTINGS = {
    # What an instant or a duration looks like, and is read as.
    "a zone of half hours": ["timezone = 'America/St_Johns'"],
    "a zone that left out a day": ["timezone = 'Pacific/Apia'"],
    "German dates": ["datestyle = 'German'", "timezone = 'Europe/Berlin'"],
    "days first": ["datestyle = 'SQL, DMY'", "timezone_abbreviations = 'Australia'"],
    "intervals of the standard": ["intervalstyle = 'sql_standard'"],
    "verbose intervals": ["intervalstyle = 'postgres_verbose'"],
    # What a literal is read as, and how a value is written.
    "backslashes are escapes": [
        "standard_conforming_strings = off",
        "backslash_quote = off",
        "escape_string_warning = off",
    ],
    "old text forms": [
        "bytea_output = 'escape'",
        "extra_float_digits = -15",
        "xmloption = 'document'",
        "quote_all_identifiers = on",
    ],
    "no nulls in arrays": ["array_nulls = off"],
    "= null is a question": ["transform_null_equals = on"],
    "clients speak LATIN1": ["client_encoding = 'LATIN1'"],
    # What a transaction sees and how long it may last.
    "repeatable read": ["default_transaction_isolation = 'repeatable read'"],
    "serializable": [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_deferrable = on",
    ],
    "short patience": [
        "statement_timeout = '20s'",
        "lock_timeout = '200ms'",
        "idle_in_transaction_session_timeout = '5s'",
    ],
    # Whose names count.
    "an evil path": ["search_path = evil, public"],
    "an empty path": ["search_path = ''"],
    "no row security, no foreign keys": [
        "row_security = off",
        "session_replication_role = 'replica'",
    ],
    "names of columns and variables": [
        "plpgsql.variable_conflict = 'use_variable'",
        "plpgsql.extra_errors = 'all'",
        "check_function_bodies = off",
    ],
    # How a statement is planned and run.
    "no indexes": [
        "enable_indexscan = off",
        "enable_indexonlyscan = off",
        "enable_bitmapscan = off",
    ],
    "no good joins": [
        "enable_nestloop = off",
        "enable_sort = off",
        "enable_material = off",
        "join_collapse_limit = 1",
    ],
    "everything is compiled": ["jit = on", "jit_above_cost = 0"],
    "generic plans": ["plan_cache_mode = 'force_generic_plan'"],
    "parallel where it may be": [
        "{parallel} = on",
        "parallel_setup_cost = 0",
        "parallel_tuple_cost = 0",
        "min_parallel_table_scan_size = 0",
    ],
    "no statistics, no words": ["track_counts = off", "client_min_messages = 'error'"],
    "every word": ["client_min_messages = 'debug5'"],
}


def named(session: Session, setting: str) -> str:
    """The setting under the name it has in this server's version."""
    renamed = session.info.server_version >= 160000
    return setting.format(parallel="debug_parallel_query" if renamed else "force_parallel_mode")


def change_database(url: str, settings: list[str]) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        # A setting of a language is known once the language is loaded.
        session.execute("load 'plpgsql'")
        for setting in settings:
            text = f"alter database {session.info.dbname} set {named(session, setting)}"
            session.execute(text.encode())


@pytest.fixture(scope="module", params=SETTINGS)
def _pg_module_url(pg_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    with _database(pg_cluster, "dever_setting", None) as url:
        if "evil" in request.param:
            with psycopg.connect(url, autocommit=True) as session:
                build_hostile_schema(session)
        change_database(url, SETTINGS[request.param])
        engine = PostgresEngine(url)
        engine.install()
        engine.close()
        with psycopg.connect(url) as session:
            session.execute(PostgresClock.DEFINITION)
        yield url


@pytest.fixture
def installed(_pg_module_engine: Installed) -> Installed:
    """The engine of the contract's tests, on PostgreSQL alone."""
    assert isinstance(_pg_module_engine.raw, PostgresRaw)
    _empty_postgres(_pg_module_engine.raw.connection)
    _pg_module_engine.clock.set(START)
    return _pg_module_engine


@pytest.mark.req("R2.2", "R9.3")
@pytest.mark.parametrize("name", ["date", "duration", "float"])
def test_a_payload_fits_as_it_does_elsewhere(installed: Installed, name: str) -> None:
    from contract.test_wire_golden import outcome
    from samples import LONG, declaration

    (schema,) = (entry["schema"] for entry in schemas() if entry["name"] == name)
    target = f"golden.job.{name}"
    installed.engine.register(None, [declaration(target, schema)], LONG)
    examples = [case for case in cases("postgresql") if case.schema_name == name]
    assert [fault for case in examples if (fault := outcome(installed.engine, target, case))] == []


@pytest.mark.req("R6.1")
def test_cron_fires_at_the_same_instants(installed: Installed) -> None:
    after = datetime(2026, 3, 7, 12, tzinfo=UTC)
    assert installed.engine.cron_preview("30 2 * * sun", after, 3) == [
        datetime(2026, 3, 8, 2, 30, tzinfo=UTC) + timedelta(days=7 * n) for n in range(3)
    ]


@pytest.mark.req("R8.1", "R5.1")
def test_a_worker_drains_a_queue(installed: Installed) -> None:
    seen: list[int] = []

    def handler() -> None:
        seen.append(1)
        if len(seen) == 1:
            raise ValueError("no")

    work_task = task(handler, base_ms=3_600_000)
    ids = enqueue(installed.engine, work_task, keys=("a", "b", "c"))
    work(installed.engine, work_task)
    states = sorted(row.state for id in ids if (row := installed.engine.get_job(id)) is not None)
    assert states == ["scheduled", "succeeded", "succeeded"]


# What a bare client sees, without the engine's own sessions.

NOW = int(START.timestamp())
LIFE: list[tuple[str, list[Any]]] = [
    ("select count(*) from dever.send_many('q', array['1', '2']::jsonb[])", [(2,)]),
    (
        "select dever.send('q', '{\"a\": \"\\u00e9\"}', 'k', delay => '36 hours') > 0",
        [(True,)],
    ),
    ("select attempt, payload::text from dever.claim('q', 'w', 1)", [(1, "1")]),
    (
        "select c.outcome from dever.jobs as j, dever.retry(array[j.id], array[j.token],"
        " array['x'], null, array[interval '90 seconds']) as c where j.attempt = 1",
        [("retried",)],
    ),
    (
        "select extract(epoch from j.run_at)::bigint, j.reason, j.error is null"
        " from dever.jobs as j order by j.id",
        [(NOW + 90, "x", True), (NOW, None, True), (NOW + 36 * 3600, None, True)],
    ),
    (
        "select c.ok from dever.claim('q', 'w', 5, '1 minute') as g,"
        " dever.complete(array[g.id], array[g.token]) as c",
        [(True,)],
    ),
    (
        "select ready, running, scheduled, dead from dever.queues where queue = 'q'",
        [(0, 0, 2, 0)],
    ),
    (
        "select visibility = interval '90061.5 seconds'"
        " from dever.configure_queue('q', visibility => '25:01:01.5')",
        [(True,)],
    ),
    (
        "select extract(epoch from next_at)::bigint from dever.schedule('s', '30 2 * * *', 'q')",
        [(NOW + 14 * 3600 + 1800,)],
    ),
    ("select what from dever.sweep()", []),
    ("select dever.lock_acquire('l', 'o', '1 minute') > 0", [(True,)]),
    (
        "select state, count(*) from dever.jobs group by state order by state",
        [("scheduled", 2), ("succeeded", 1)],
    ),
]


@pytest.mark.req("R9.3")
def test_a_bare_client_gets_the_same_answers(installed: Installed) -> None:
    with psycopg.connect(installed.url, autocommit=True) as session:
        answers = [(step, session.execute(step.encode()).fetchall()) for step, _ in LIFE]
    assert answers == LIFE


def test_the_setting_is_in_force(installed: Installed, request: pytest.FixtureRequest) -> None:
    """A setting that the server ignores would show nothing."""
    wanted = SETTINGS[request.node.callspec.params["_pg_module_url"]]
    with psycopg.connect(installed.url) as session:
        session.execute("load 'plpgsql'")
        rows = session.execute("select name from pg_settings where source = 'database'").fetchall()
        names = {named(session, setting).split(" = ")[0].lower() for setting in wanted}
    assert names <= {name.lower() for (name,) in rows}


# Settings under which it cannot work say so.


@pytest.fixture
def changed(pg_url: str) -> Iterator[Callable[[str], PostgresEngine]]:
    """The engine on a database that has the setting since it was installed."""
    opened: list[PostgresEngine] = []

    def changed(setting: str) -> PostgresEngine:
        change_database(pg_url, [setting])
        opened.append(PostgresEngine(pg_url))
        return opened[-1]

    yield changed
    for engine in opened:
        engine.close()


@pytest.mark.req("R8.5")
def test_a_database_that_is_read_only_says_so(
    changed: Callable[[str], PostgresEngine],
) -> None:
    engine = changed("default_transaction_read_only = on")
    with pytest.raises(DeverError) as refused:
        engine.send("q", "1")
    assert "read-only" in str(refused.value)
    assert "default_transaction_read_only" in str(refused.value)
    assert engine.queues() == []


@pytest.mark.req("R9.1")
def test_an_install_into_a_database_that_is_read_only_by_default(pg_empty_url: str) -> None:
    """The installer asks for a transaction that writes; the default is for who asks for none."""
    change_database(pg_empty_url, ["default_transaction_read_only = on"])
    engine = PostgresEngine(pg_empty_url)
    assert engine.install() == engine.version()
    engine.close()
