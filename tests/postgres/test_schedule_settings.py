"""No setting of a session, a role or a process changes when something fires (R6.1, C33)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import Cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "from_psql" / "walkthrough.sql"

HOSTILE = [
    "set timezone = 'Australia/Lord_Howe'",
    "set timezone = 'America/Los_Angeles'",
    "set datestyle = 'SQL, DMY'",
    "set datestyle = 'German'",
    "set intervalstyle = 'sql_standard'",
    "set intervalstyle = 'iso_8601'",
    "set extra_float_digits = -15",
    "set lc_time = 'C'",
    "set search_path = pg_temp, public",
    "set default_transaction_isolation = 'serializable'",
    "set timezone_abbreviations = 'Australia'",
    "set bytea_output = 'escape'",
    "set array_nulls = off",
    "set backslash_quote = off",
    "set standard_conforming_strings = off",
]

Connect = Callable[..., psycopg.Connection[Any]]


def epochs(session: psycopg.Connection[Any], query: str) -> list[int]:
    return [int(row[0]) for row in session.execute(query).fetchall()]  # type: ignore[arg-type]


@pytest.mark.req("R6.1")
@pytest.mark.parametrize("setting", HOSTILE)
def test_a_preview_is_the_same_under_every_setting(connect: Connect, setting: str) -> None:
    query = (
        "select extract(epoch from p) from dever.cron_preview({spec}, to_timestamp(1772928000), 40)"
        " as p"
    )
    plain, hostile = connect(), connect()
    hostile.execute(setting)
    for spec in (
        "'30 2 * * *'",
        "'0 * * * *'",
        "'0 0 29 2 *'",
        "'*/7 5 1,15 * fri'",
        "'@every 7h'",
    ):
        text = query.format(spec=spec)
        assert epochs(hostile, text) == epochs(plain, text), spec


@pytest.mark.req("R6.1")
@pytest.mark.parametrize("day", [datetime(2026, 3, 8), datetime(2026, 4, 5), datetime(2026, 11, 1)])
def test_a_day_of_summer_time_has_its_windows(connect: Connect, day: datetime) -> None:
    session = connect()
    session.execute("set timezone = 'America/Los_Angeles'")
    start = day.replace(tzinfo=UTC)
    for spec, count in (("0 * * * *", 24), ("30 2 * * *", 1)):
        row = session.execute(
            "select dever.rule_count(dever.schedule_rule(%s), %s, %s)",
            (spec, start - timedelta(seconds=1), start + timedelta(hours=23, minutes=59)),
        ).fetchone()
        assert row == (count,)


@pytest.mark.req("R6.4", "R7.4")
@pytest.mark.parametrize("setting", HOSTILE)
def test_storing_and_ticking_is_the_same_under_every_setting(
    connect: Connect, setting: str
) -> None:
    session = connect()
    session.execute(setting)
    session.execute("select dever.schedule('every', '@every 36h', 'q', expires => '36 hours')")
    session.execute("select dever.schedule('cron', '30 2 * * *', 'q', missed => 'latest')")
    session.execute("update dever.schedule set next_at = to_timestamp(1772937000)")
    (now,) = epochs(session, "select extract(epoch from dever.clock())")
    fired = session.execute(
        "select schedule, extract(epoch from fire_at)::bigint from dever.tick() order by 1, 2"
    ).fetchall()
    every = [window for name, window in fired if name == "every"]
    assert every == [1772937000 + n * 36 * 3600 for n in range(64)]
    (latest,) = [window for name, window in fired if name == "cron"]
    assert latest % 86_400 == 9_000
    assert 0 <= now - latest < 86_400 + 60
    keys = {row[0] for row in session.execute("select key from dever.job").fetchall()}
    assert f"__dever_cron:every:{1772937000 * 1_000_000}" in keys


@pytest.mark.req("R7.4", "R7.7", "R7.8")
def test_the_psql_example_runs(pg_url: str, pg_cluster: Cluster) -> None:
    beside = pg_cluster.bindir / "psql" if pg_cluster.bindir is not None else None
    psql = str(beside) if beside is not None and beside.exists() else shutil.which("psql")
    if psql is None:
        pytest.skip("needs psql")
    done = subprocess.run(
        [psql, "-X", "-A", "-t", "-q", "-f", EXAMPLE, pg_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert '{"to": "ada@example.org"}|t' in lines
    assert "2027-01-04 08:00:00+00" in lines
    assert "beat|@every 15m|beats|latest|active" in lines
    assert "__dever_outbox:notify|order:7|ready|5" in lines
    assert "HINT:  write 5-59/15" in done.stderr
    with psycopg.connect(pg_url) as session:
        assert session.execute("select count(*) from dever.job").fetchone() == (0,)


@pytest.mark.req("R9.3")
def test_no_function_has_a_literal_that_a_setting_could_reread(connect: Connect) -> None:
    """Under standard_conforming_strings = off a backslash in a plain literal is an escape."""
    rows = (
        connect()
        .execute(
            r"""
        select p.proname
        from pg_proc as p
        where p.pronamespace = 'dever'::regnamespace
            and regexp_replace(p.prosrc, '--[^\n]*', '', 'g') ~ $$(^|[^Ee])'[^']*\\[^']*'$$
        """
        )
        .fetchall()
    )
    assert rows == []
