"""What keeps claims flat: heap-only updates, and the head hint under a held snapshot."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg.types.json import Jsonb
from samples import declaration

Session: TypeAlias = psycopg.Connection[Any]
Connect: TypeAlias = Callable[..., Session]

TARGET = "test.load"
DEAD_ROWS = 60_000


@pytest.fixture
def session(connect: Connect) -> Session:
    session = connect()
    session.execute(
        "select dever.register('w1', %s, '3000 days')",
        [Jsonb([declaration(TARGET, {"kind": "json"}, retry=100)])],
    )
    return session


def enqueue(session: Session, count: int, tag: str) -> None:
    session.execute(
        "select dever.enqueue_many(%s, array(select %s || g from generate_series(1, %s) as g))",
        [TARGET, tag, count],
    )


def claim(session: Session, n: int) -> list[tuple[int, int]]:
    return session.execute(
        "select id, token from dever.claim('default', 'w1', %s, '1 hour', array[1])", [n]
    ).fetchall()


def complete(session: Session, claimed: list[tuple[int, int]]) -> None:
    session.execute(
        "select dever.complete(%s, %s)",
        [[id for id, _ in claimed], [token for _, token in claimed]],
    )


def buffers_of_a_claim(session: Session, n: int = 10) -> int:
    (explained,) = session.execute(
        "explain (analyze, buffers, format json)"
        " select * from dever.claim('default', 'w1', %s, '1 hour', array[1])",
        [n],
    ).fetchone() or (None,)
    plan = explained[0]["Plan"]
    assert plan["Actual Rows"] == n
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def entries_of_claims(session: Session, count: int) -> list[int]:
    """How many entries of the claim's index each of so many claims of 10 walks, one after another
    without a pause."""
    rows = session.execute(
        "select c.jobs, pg_stat_get_xact_tuples_returned('dever.job_claim_idx'::regclass)"
        " from generate_series(1, %s) as g cross join lateral (select count(*) as jobs"
        " from dever.claim('default', 'w1', 10 + 0 * g, '1 hour', array[1])) as c",
        [count],
    ).fetchall()
    assert {jobs for jobs, _ in rows} == {10}
    return [after - before for before, after in pairwise([0, *(entries for _, entries in rows)])]


@contextmanager
def held_snapshot(connect: Connect) -> Iterator[None]:
    """A session that keeps every row from being removed, as a backup or a forgotten psql does."""
    holder = connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select 1")
    yield
    holder.rollback()


def leave_dead_rows(session: Session, count: int) -> None:
    enqueue(session, count, "dead-")
    while claimed := claim(session, 10_000):
        complete(session, claimed)


@pytest.mark.req("R4.2")
def test_at_least_85_percent_of_claims_and_renewals_are_heap_only(session: Session):
    """A claim that is not heap-only writes to every index of the table."""
    for round in range(10):
        enqueue(session, 500, f"{round}-")
        while claimed := claim(session, 50):
            ids = [id for id, _ in claimed]
            tokens = [token for _, token in claimed]
            session.execute("select dever.renew(%s, %s, '1 hour')", [ids, tokens])
            complete(session, claimed)
    session.execute("select pg_stat_force_next_flush()")
    row = session.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'job'"
    ).fetchone()
    assert row is not None
    updates, heap_only = row
    assert updates >= 2 * 10 * 500
    assert heap_only / updates >= 0.85, f"{heap_only} of {updates} updates were heap-only"


@pytest.mark.req("R4.5", "R4.7")
def test_a_held_snapshot_costs_one_full_scan_and_no_more(session: Session, connect: Connect):
    with held_snapshot(connect):
        enqueue(session, 10, "first-")
        healthy = buffers_of_a_claim(session)
        leave_dead_rows(session, DEAD_ROWS)
        enqueue(session, 1_000, "live-")
        fresh = connect()
        full = buffers_of_a_claim(fresh)
        bounded = [buffers_of_a_claim(fresh) for _ in range(10)]
    assert full > 1_000
    # Another full scan is allowed once 20 times the cost of the last has passed.
    assert sorted(bounded)[-2] < 3 * healthy + 100, (healthy, full, bounded)


@pytest.mark.req("R4.7")
def test_many_running_jobs_in_front_are_walked_over_now_and_then_alone(
    session: Session, connect: Connect
):
    """A fleet with long jobs: what runs stays in front of what waits."""
    enqueue(session, 1_000, "k")
    claim(session, 600)
    first, *others = entries_of_claims(connect(), 20)
    assert first >= 600
    assert sorted(others)[10] < 100, others


@pytest.mark.req("R4.5")
def test_a_healthy_session_keeps_no_hint(session: Session):
    enqueue(session, 100, "k")
    claim(session, 10)
    assert session.execute("select current_setting('dever.head_1', true)").fetchone() in [
        (None,),
        ("",),
    ]


@pytest.mark.req("R3.3", "R4.5")
def test_late_commits_below_the_head_start_once_and_within_the_bound(
    session: Session, connect: Connect
):
    """run_at is taken at the insert and seen at the commit, by when the head is past it: 100
    transactions that really stay open for 0 to 30 s, while jobs come and go in front of them."""
    luck = random.Random(7)
    late = [connect(f"late {name}", autocommit=False) for name in range(100)]
    committed: dict[str, float] = {}

    def commit_slowly() -> None:
        began = time.monotonic()
        waits = sorted(luck.uniform(0, 30) for _ in late)
        for name, (wait, each) in enumerate(zip(waits, late, strict=True)):
            time.sleep(max(0.0, began + wait - time.monotonic()))
            each.commit()
            committed[f"late-{name}"] = time.monotonic()

    with held_snapshot(connect):
        leave_dead_rows(session, DEAD_ROWS)
        for name, each in enumerate(late):
            each.execute("select dever.enqueue(%s, %s)", [TARGET, f"late-{name}"])
        thread = threading.Thread(target=commit_slowly)
        thread.start()
        started: list[tuple[str, float]] = []
        claims: list[tuple[float, float]] = []
        hints: list[tuple[int, int]] = []
        ticks, deadline = 0, time.monotonic() + 90
        while len(started) < len(late) and time.monotonic() < deadline:
            ticks += 1
            enqueue(session, 5, f"head-{ticks}-")  # the head moves on all the time
            before = time.monotonic()
            rows = session.execute(
                "select id, token, key from dever.claim('default', 'w1', 20, '1 hour', array[1])"
            ).fetchall()
            claims.append((before, time.monotonic()))
            started += [(key, claims[-1][1]) for _, _, key in rows if key.startswith("late-")]
            complete(session, [(id, token) for id, token, _ in rows])
            hint = session.execute("select current_setting('dever.head_1', true)").fetchone()
            if hint and hint[0]:
                _, _, _, scanned_at, cost = map(int, hint[0].split())
                hints.append((scanned_at, cost))
            time.sleep(0.01)  # 30 s of it need not fill the disk
        thread.join()
    assert sorted(key for key, _ in started) == sorted(committed)
    assert len({scanned_at for scanned_at, _ in hints}) > 1, (
        "heads were in force, one after another"
    )
    # The scan that finds it is the first after 20 times the cost of a full one, however long the
    # machine takes to come to it and through it.
    bound = max(20 * cost / 1e6 for _, cost in hints)
    pause = max(after - end for (_, end), (after, _) in pairwise(claims))
    scan = max(end - before for before, end in claims)
    longest = max(at - committed[key] for key, at in started)
    print(
        f"{ticks} claims; the longest wait after a commit {longest:.3f} s, the bound {bound:.3f} s"
    )
    assert longest <= bound + 2 * (pause + scan)


@pytest.mark.req("R4.5")
@pytest.mark.parametrize(
    "hint",
    [
        "",
        " ",
        "junk",
        "1 2 3",
        "-1 -1 -1 -1 -1",
        "1e3 1 1 1 1",
        "0 0 0 0 0",
        "9" * 400,
        " ".join(["9" * 18] * 5),
        " ".join(["9" * 19] * 5),
        "٣ ٣ ٣ ٣ ٣",
        "{hash} 9 9 {now} 1; drop table dever.job",
        "{hash} " + " ".join(["9" * 18] * 3) + " 9999999999",
        "{hash} " + " ".join(["9" * 18] * 4),
        "{hash} " + " ".join(["9" * 10] * 4),
        "{hash} 0 0 {now} 0",
    ],
)
def test_junk_in_the_setting_is_no_error_and_hides_nothing(session: Session, hint: str):
    """Any user can write any text into a custom setting."""
    row = session.execute(
        "select (hashtextextended('1', 0) & 9223372036854775807) %% 1000000000000000000,"
        " (extract(epoch from clock_timestamp()) * 1000000)::bigint",
        [],
    ).fetchone()
    assert row is not None
    text = hint.replace("{hash}", str(row[0])).replace("{now}", str(row[1]))
    enqueue(session, 1, "k")
    session.execute("select set_config('dever.head_1', %s, false)", [text])
    assert len(claim(session, 10)) == 1


@pytest.mark.req("R4.5")
def test_a_forged_hint_blinds_its_own_session_alone(session: Session, connect: Connect):
    """A bound in the future is what a forger would write; others see the job all the time."""
    enqueue(session, 1, "k")
    session.execute(
        "select set_config('dever.head_1', concat_ws(' ',"
        " (hashtextextended('1', 0) & 9223372036854775807) % 1000000000000000000,"
        " 9 * 10 ^ 17::numeric, 0, (extract(epoch from clock_timestamp()) * 1000000)::bigint,"
        " 10000), false)"
    )
    assert len(claim(connect(), 10)) == 1
