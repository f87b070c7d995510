"""plpgsql_check finds nothing to say about any function: what CREATE FUNCTION never looks at.

PL/pgSQL checks the body of a function statement by statement, when each runs for the first time: a
wrong column in a rare branch is found by a user.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from sessions import Session

Connect = Callable[..., Session]

CAST = "target type is different type than source type"
STABLE = "routine is marked as VOLATILE, should be STABLE"

# What it says everywhere of casts that are exact, and cheaper than it believes.
HARMLESS_CASTS = {
    'cast "integer" value to "bigint" type',
    # extract gives numeric; of a date's fields it is an integer.
    'cast "numeric" value to "integer" type',
    # The same four bytes.
    'cast "regclass" value to "oid" type',
}
UNSETTLED = "could not settle an idempotency key that others keep finishing and enqueuing again"
# What it says although the code is right, by function.
FALSE_ALARMS = {
    # They lock rows, which a stable function may not.
    ("lock_claims", STABLE),
    ("lock_free", STABLE),
    # Each call must see what committed before it, not what the calling statement sees.
    ("unfinished_id", STABLE),
    # It runs refuse_spec, which raises, with the constants of the call: it is immutable.
    ("cron_rule", "the schedule spec is longer than 512 bytes"),
    ("cron_rule", "the schedule spec is empty"),
    ("every_rule", "the schedule spec is longer than 512 bytes"),
    # It runs raise_unsettled, which raises: that one has no arguments and is immutable.
    ("enqueue_under", UNSETTLED),
    ("insert_jobs", UNSETTLED),
    # Constants of a declaration, '{}' and '-infinity', that no setting reads in another way.
    ("claim", f'{CAST}: cast "text" value to "timestamp with time zone" type'),
    ("cron_rule", f'{CAST}: cast "text" value to "bigint[]" type'),
    ("due_windows", f'{CAST}: cast "text" value to "timestamp with time zone[]" type'),
    ("register", f'{CAST}: cast "text" value to "bigint[]" type'),
}

FINDINGS = """
    select p.proname, c.lineno, concat_ws(': ', c.message, c.detail)
    from pg_proc as p
    cross join lateral plpgsql_check_function_tb(
        p.oid,
        fatal_errors => false,
        other_warnings => true,
        performance_warnings => true,
        extra_warnings => true,
        security_warnings => true,
        compatibility_warnings => true
    ) as c
    where p.pronamespace = %s::regnamespace
        and p.prolang = (select l.oid from pg_language as l where l.lanname = 'plpgsql')
    order by p.proname, c.lineno, 3
"""


@pytest.fixture
def checked(connect: Connect) -> Session:
    """A database of this test alone, with Dever SQL and plpgsql_check."""
    session = connect()
    try:
        session.execute("create extension plpgsql_check")
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported):
        pytest.skip("needs the extension plpgsql_check (Debian's postgresql-15-plpgsql-check)")
    return session


def findings(session: Session, schema: str = "dever") -> list[tuple[str, int | None, str]]:
    """(function, line of its body, what) of everything that is no harmless cast."""
    return [
        (function, line, what)
        for function, line, what in session.execute(FINDINGS, [schema]).fetchall()
        if what.removeprefix(f"{CAST}: ") not in HARMLESS_CASTS
    ]


@pytest.mark.req("R9.3")
def test_every_function_is_as_its_tables_are(checked: Session) -> None:
    found = [
        f"{function}, line {line}: {what}"
        for function, line, what in findings(checked)
        if (function, what) not in FALSE_ALARMS
    ]
    assert not found, "\n".join(["", *found])


def test_no_false_alarm_is_listed_that_is_none_any_more(checked: Session) -> None:
    assert {(function, what) for function, _, what in findings(checked)} >= FALSE_ALARMS


SEEDED = {
    "a column that is not there": "v_id := 1; perform j.ids from dever.job as j; return v_id;",
    "a table that is not there": "v_id := 1; perform from dever.jog as j; return v_id;",
    "a function that is not there": "v_id := 1; perform dever.clok(); return v_id;",
    "a call with the wrong types": "v_id := 1; perform dever.cancel('{a}'::text[]); return v_id;",
    "a variable that nothing reads": "return 1;",
    "a way out without return": "v_id := 1; if v_id > 1 then return v_id; end if;",
    "a text put into a number": "v_id := '7'::text; return v_id;",
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_fault_is_found(checked: Session, name: str) -> None:
    checked.execute("create schema seeded")
    checked.execute(
        "create function seeded.f() returns bigint language plpgsql volatile as"
        f" $$ declare v_id bigint; begin {SEEDED[name]} end $$"
    )
    assert findings(checked, "seeded") != []
