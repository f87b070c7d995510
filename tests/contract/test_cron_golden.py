"""One verdict and one sequence of instants: golden vectors, a brute-force walker, random pairs."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cron_walker import malformed, random_instant, random_spec
from engines import Installed

from dever_sql import cron
from dever_sql.errors import InvalidArgument, InvalidSpec

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "cron.json").read_text(encoding="utf-8")
)
PAIRS = 20_000
MALFORMED = 5_000
BATCH = 1_000


def spec_of(entry: dict[str, Any]) -> str:
    if "spec" in entry:
        return str(entry["spec"])
    parts = entry["spec_repeat"]
    return str(parts["before"] + parts["unit"] * parts["times"] + parts["after"])


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.req("R6.1", "R6.2", "R7.4")
def test_the_instants_are_the_golden_ones(installed: Installed) -> None:
    for entry in GOLDEN["valid"] + GOLDEN["every_valid"]:
        after = instant(entry.get("after") or entry["from"])
        wanted = [instant(text) for text in entry["next"]]
        assert installed.engine.cron_preview(spec_of(entry), after, len(wanted)) == wanted, entry
        assert installed.engine.cron_next(spec_of(entry), after) == wanted[0]


@pytest.mark.req("R6.1", "R6.2", "R7.4")
def test_what_is_refused_is_refused_with_the_field_and_a_hint(installed: Installed) -> None:
    after = datetime(2026, 1, 1, tzinfo=UTC)
    for entry in GOLDEN["refused"] + GOLDEN["every_refused"]:
        started = time.perf_counter()
        with pytest.raises(InvalidSpec) as refused:
            installed.engine.cron_next(spec_of(entry), after)
        assert time.perf_counter() - started < 0.05, entry
        assert "field" in str(refused.value) or "spec" in str(refused.value)
        assert refused.value.hint


@pytest.mark.req("R6.3")
def test_a_declared_cron_takes_five_fields_only() -> None:
    for entry in GOLDEN["every_valid"] + GOLDEN["every_refused"] + GOLDEN["refused"]:
        with pytest.raises(InvalidSpec):
            cron.parse(spec_of(entry))
    for entry in GOLDEN["valid"]:
        cron.parse(spec_of(entry))


@pytest.mark.req("R6.1")
def test_counting_agrees_with_walking() -> None:
    rng = random.Random(11)
    for _ in range(300):
        spec, after = random_spec(rng), random_instant(rng)
        windows = list(islice(spec.after(after), 200))
        until = windows[-1] if windows else after
        assert cron.parse(spec.text).count(after, until) == len(windows), (spec.text, after)


@pytest.mark.req("R6.5")
def test_spellings_of_the_same_instants_have_one_rule() -> None:
    same = [
        ("0 0 * * 0", "00 00 * * sun", "0 0 * * 7", "0 0 * 1-12 SUN"),
        ("0 0 29 2 *", "0 0 29-31 2 *", "0 0 29,30 feb *"),
        ("0 0 30 1,2 *", "0 0 30 1 *"),
        ("*/15 * * * *", "0,15,30,45 */1 * * *", "45,30,15,0,0 0-23 * * *"),
        ("0 0 30 2 mon", "0 0 * feb 1"),
        ("0 0 1-29 2 mon", "0 0 * 2 *"),
        ("0 0 31 1-3 *", "0 0 31 1,3 *"),
    ]
    for specs in same:
        rules = {cron.parse(spec).rule for spec in specs}
        assert len(rules) == 1, specs
    assert cron.parse("0 0 31 * *").rule != cron.parse("0 0 30 * *").rule


@pytest.mark.req("R6.1", "R6.2")
@pytest.mark.parametrize("seed", range(4))
def test_random_pairs_agree_everywhere(pg_url: str, seed: int) -> None:
    rng = random.Random(seed)
    with psycopg.connect(pg_url, autocommit=True) as session:
        # No setting of the session may change an instant.
        session.execute("set timezone = 'Australia/Lord_Howe'")
        session.execute("set intervalstyle = 'sql_standard'")
        for _ in range(PAIRS // 4 // BATCH):
            pairs = [(random_spec(rng), random_instant(rng)) for _ in range(BATCH)]
            rows = session.execute(
                "select extract(epoch from dever.cron_next(p.spec, p.after)) * 1000000,"
                " dever.rule_count(dever.schedule_rule(p.spec), p.after, p.after + '2160 hours'),"
                " extract(epoch from dever.rule_last(dever.schedule_rule(p.spec),"
                "     p.after - '264 hours'::interval, p.after)) * 1000000"
                " from unnest(%s::text[], %s::timestamptz[]) with ordinality as p (spec, after, n)"
                " order by p.n",
                ([spec.text for spec, _ in pairs], [after for _, after in pairs]),
            ).fetchall()
            for (spec, after), (next_us, count, last_us) in zip(pairs, rows, strict=True):
                wanted = next(spec.after(after))
                where = f"seed {seed}: {spec.text!r} after {after}"
                assert cron.next_after(spec.text, after) == wanted, where
                assert _instant(next_us) == wanted, where
                compiled = cron.parse(spec.text)
                assert compiled.count(after, after + timedelta(days=90)) == count, where
                last = compiled.last(after - timedelta(days=11), after)
                assert last == _instant(last_us), where


def _instant(microseconds: Any) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds))


@pytest.mark.req("R6.1")
def test_verdicts_on_malformed_texts_agree(pg_url: str) -> None:
    rng = random.Random(5)
    texts = [malformed(rng) for _ in range(MALFORMED)]
    with psycopg.connect(pg_url, autocommit=True) as session:
        rules = [
            row[0]
            for row in session.execute(
                "select dever.valid_rule(t.spec) from unnest(%s::text[]) with ordinality"
                " as t (spec, n) order by t.n",
                (texts,),
            )
        ]
    refused = 0
    for text, rule in zip(texts, rules, strict=True):
        try:
            compiled = cron.parse_schedule(text)
        except InvalidSpec:
            compiled = None
            refused += 1
        if compiled is None:
            assert rule is None, text
            continue
        assert isinstance(compiled, cron.Cron)
        parts = compiled.rule
        assert rule == [
            parts.minutes,
            parts.hours,
            parts.days,
            parts.months,
            parts.weekdays,
            int(parts.either),
        ], text
    assert refused > MALFORMED // 3


@pytest.mark.req("R6.1")
def test_the_last_instants_of_the_calendar_are_an_error_not_a_wrong_answer(
    installed: Installed,
) -> None:
    with pytest.raises(InvalidArgument):
        installed.engine.cron_next("* * * * *", datetime(9999, 12, 31, 23, 59, tzinfo=UTC))
    assert installed.engine.cron_next("0 0 29 2 *", datetime(2096, 3, 1, tzinfo=UTC)) == datetime(
        2104, 2, 29, tzinfo=UTC
    )


@pytest.mark.req("R6.1")
def test_a_preview_of_nothing_is_empty_and_of_too_much_is_refused(installed: Installed) -> None:
    after = datetime(2026, 1, 1, tzinfo=UTC)
    assert installed.engine.cron_preview("* * * * *", after, 0) == []
    assert installed.engine.cron_preview("* * * * *", after, -1) == []
    with pytest.raises(InvalidArgument):
        installed.engine.cron_preview("* * * * *", after, 10_001)
