"""Every rule of scripts/lint-sql catches what it is there for, and leaves its counterpart alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

pytest.importorskip("pglast", reason="needs pglast, which scripts/check installs")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from sql_lint.rules import RULES, lint  # noqa: E402

SCHEMA = """\
create schema dever;
comment on schema dever is 'x';
"""
RIGHTS = """
revoke all on schema dever from public;
revoke all on all tables in schema dever from public;
revoke all on all sequences in schema dever from public;
revoke all on all functions in schema dever from public;
"""
TABLE = """
create table dever.job (id bigint, name text, key text, run_at timestamptz);
comment on table dever.job is 'x';
"""
FUNCTION = """
create function dever.f(id bigint, what text)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id bigint;
begin
    select j.id into v_id
    from dever.job as j
    where j.id = f.id;
    return v_id;
end
$$;
comment on function dever.f(bigint, text) is 'x';
"""
QUERY = """    select j.id into v_id
    from dever.job as j
    where j.id = f.id;
"""
SQL_FUNCTION = """
create function dever.g(id bigint)
returns setof bigint
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select j.id
    from dever.job as j
    where j.id = g.id
$$;
comment on function dever.g(bigint) is 'x';
"""
CLEAN = SCHEMA + TABLE + FUNCTION + SQL_FUNCTION + RIGHTS


# What breaks a rule: (rule, what is replaced in the clean schema, by what, text on the line named).
SEEDED = {
    "search path": (
        "search-path",
        "set search_path = pg_catalog, pg_temp\n",
        "",
        "function dever.f",
    ),
    "search path of another kind": (
        "search-path",
        "= pg_catalog, pg_temp",
        "= dever, pg_catalog, pg_temp",
        "function dever.f",
    ),
    "search path without pg_temp": (
        "search-path",
        "= pg_catalog, pg_temp",
        "= pg_catalog",
        "function dever.f",
    ),
    "search path of the installer": (
        "search-path",
        "set search_path = pg_catalog, pg_temp",
        "set search_path from current",
        "function dever.f",
    ),
    "no language": ("language", "language sql\n", "", "function dever.g"),
    "another language": ("language", "language sql\n", "language plperl\n", "function dever.g"),
    "a body in quotes": (
        "language",
        ("as $$\n    select j.id\n    from dever.job as j\n    where j.id = g.id\n$$;"),
        "as 'select 1';",
        "function dever.g",
    ),
    "no volatility": ("volatility", "volatile\n", "", "function dever.f"),
    "a stable function that writes": (
        "volatility",
        "where j.id = g.id\n",
        "where j.id = g.id for update\n",
        "function dever.g",
    ),
    "no parallel safety": ("parallel", "parallel unsafe\n", "", "function dever.f"),
    "a parallel function that writes": (
        "parallel",
        "where j.id = g.id\n",
        "where j.id = g.id for update\n",
        "function dever.g",
    ),
    "no variable conflict": (
        "variable-conflict",
        "#variable_conflict use_column\n",
        "",
        "function dever.f",
    ),
    "another variable conflict": (
        "variable-conflict",
        "use_column",
        "use_variable",
        "function dever.f",
    ),
    "a bare parameter": ("parameter-name", "j.id = f.id", "j.id = id", "where j.id = id"),
    "a bare parameter in SQL": ("parameter-name", "j.id = g.id", "j.id = id", "j.id = id"),
    "an overload": ("overload", "dever.g", "dever.f", "create function dever.f(id bigint)\n"),
    "no comment on a function": (
        "comment",
        "comment on function dever.g(bigint) is 'x';",
        "",
        "function dever.g",
    ),
    "an empty comment": (
        "comment",
        "comment on function dever.g(bigint) is 'x';",
        "comment on function dever.g(bigint) is '';",
        "function dever.g",
    ),
    "no comment on a table": ("comment", "comment on table dever.job is 'x';", "", "create table"),
    "no comment on the schema": ("comment", "comment on schema dever is 'x';", "", "create schema"),
    "no comment on a view": (
        "comment",
        RIGHTS,
        ("create view dever.v as select 1 as one;\n" + RIGHTS),
        "create view",
    ),
    "no comment on a sequence": (
        "comment",
        RIGHTS,
        ("create sequence dever.s as bigint;\n" + RIGHTS),
        "create sequence",
    ),
    "no comment on a type": (
        "comment",
        RIGHTS,
        ("create type dever.t as enum ('a');\n" + RIGHTS),
        "create type",
    ),
    "functions left to PUBLIC": (
        "revoke",
        "revoke all on all functions in schema dever from public;",
        "",
        "function dever.f",
    ),
    "only some rights revoked": (
        "revoke",
        "revoke all on all tables",
        "revoke insert on all tables",
        "create table",
    ),
    "revoked from somebody else": (
        "revoke",
        "schema dever from public",
        "schema dever from dever_worker",
        "create schema",
    ),
    "nothing revoked": ("revoke", RIGHTS, "", "create schema"),
    "created after the revoke": (
        "revoke",
        RIGHTS,
        (
            RIGHTS
            + (
                "\n"
                "create function dever.h(id bigint)\n"
                "returns setof bigint\n"
                "language sql\n"
                "stable\n"
                "parallel safe\n"
                "set search_path = pg_catalog, pg_temp\n"
                "as $$\n"
                "    select j.id\n"
                "    from dever.job as j\n"
                "    where j.id = g.id\n"
                "$$;\n"
                "comment on function dever.h(bigint) is 'x';\n"
            )
        ),
        "function dever.h",
    ),
    "a grant to PUBLIC": (
        "revoke",
        RIGHTS,
        (RIGHTS + "grant usage on schema dever to public;\n"),
        "grant usage",
    ),
    "a table without schema": (
        "qualified-relation",
        ("from dever.job as j\n    where j.id = f"),
        ("from job as j\n    where j.id = f"),
        "from job as j",
    ),
    "a table without schema in SQL": (
        "qualified-relation",
        ("from dever.job as j\n    where j.id = g"),
        ("from job as j\n    where j.id = g"),
        "from job as j",
    ),
    "a table created without schema": (
        "qualified-relation",
        "create table dever.job",
        "create table job",
        "create table",
    ),
    "a function created without schema": (
        "qualified-function",
        "create function dever.g",
        "create function g",
        "create function g",
    ),
    "a function without schema in a default": (
        "qualified-function",
        "name text,",
        "name text default upper('x'),",
        "create table",
    ),
    "a keyword in capitals": ("lower-case", "    return v_id;", "    RETURN v_id;", "RETURN"),
    "a name in capitals": ("lower-case", "key text", "Key text", "Key"),
    "a type in capitals": ("lower-case", "v_id bigint", "v_id BIGINT", "BIGINT"),
    "now": (
        "clock",
        "run_at timestamptz",
        "run_at timestamptz default pg_catalog.now()",
        "default",
    ),
    "when others in a do block": (
        "when-others",
        RIGHTS,
        (
            (
                "\n"
                "do $$\n"
                "begin\n"
                "    begin\n"
                "        null;\n"
                "    exception when others then null;\n"
                "    end;\n"
                "end\n"
                "$$;\n"
            )
            + RIGHTS
        ),
        ("begin\n        null"),
    ),
    "no errcode in a do block": (
        "errcode",
        RIGHTS,
        (("\ndo $$\nbegin\n    raise exception 'no';\nend\n$$;\n") + RIGHTS),
        "raise",
    ),
}

# The same as a statement in the body of dever.f: (rule, statement, text on the line named).
SEEDED_STATEMENTS = {
    "a table without schema in an expression": (
        "qualified-relation",
        ("v_id := 1;\nv_id := (\n    select 1\n    from job\n);"),
        "from job\n",
    ),
    "a function without schema": (
        "qualified-function",
        ("v_id := 1;\nv_id := abs(v_id);"),
        ":= abs",
    ),
    "an aggregate without schema": (
        "qualified-function",
        ("select\n    count(*) into v_id\nfrom dever.job as j;"),
        "count(*)",
    ),
    "a set-returning function without schema": (
        "qualified-function",
        ("for v_id in\n    select 1 from generate_series(1, 2)\nloop\n    null;\nend loop;"),
        "generate_series",
    ),
    "insert without columns": (
        "insert-columns",
        ("insert into dever.job\nvalues (1);"),
        "insert into",
    ),
    "update without where": (
        "where",
        ("v_id := 1;\nupdate dever.job\nset name = 'x';"),
        "update dever.job",
    ),
    "delete without where": ("where", "delete from dever.job;", "delete from"),
    "delete without where in a CTE": (
        "where",
        (
            "with gone as (\n"
            "    delete from dever.job as j returning j.id\n"
            ")\n"
            "select g.id into v_id from gone as g;"
        ),
        "delete from",
    ),
    "truncate": ("where", "truncate dever.job;", "truncate"),
    "clock_timestamp": (
        "clock",
        "v_id := extract(epoch from pg_catalog.clock_timestamp());",
        "clock_t",
    ),
    "current_timestamp": ("clock", "perform current_timestamp;", "current_"),
    "current_date": ("clock", "perform current_date;", "current_"),
    "localtime(0)": ("clock", "perform localtime(0);", "localtime"),
    "the literal now": ("clock", "perform timestamptz 'now';", "'now'"),
    "a cast of today": ("clock", "perform ' Today '::date;", "Today"),
    "age of today": ("clock", "perform pg_catalog.age(timestamp '2020-01-01 00:00:00');", "2020"),
    "an instant without zone": (
        "instant-literal",
        "perform timestamptz '2020-01-01 00:00:00';",
        "2020",
    ),
    "an instant with a far zone's name": (
        "instant-literal",
        "perform '2020-01-01 00:00:00 EST'::timestamptz;",
        "2020",
    ),
    "a backslash": ("backslash-literal", "perform 'a\\n';", "'a\\n'"),
    "locks in any order": (
        "lock-order",
        "perform from dever.job as j where j.name > 'a' for update;",
        "for update",
    ),
    "locks by a key that may be one of several": (
        "lock-order",
        "perform from dever.job as j where j.id = 1 or j.id = 2 for update;",
        "for update",
    ),
    "locks that do not wait, or fail": (
        "lock-order",
        "perform from dever.job as j where j.name > 'a' for update nowait;",
        "for update",
    ),
    "no errcode": ("errcode", ("v_id := 1;\nraise exception 'no';"), "raise"),
    "no errcode but a hint": (
        "errcode",
        "raise exception using hint = 'x', message = 'y';",
        "raise",
    ),
    "when others": (
        "when-others",
        ("begin\n    v_id := 1;\nexception\n    when others then\n        null;\nend;"),
        ("begin\n        v_id"),
    ),
    "execute": ("dynamic-sql", "execute 'select 1' into v_id;", "execute"),
    "execute in a loop": (
        "dynamic-sql",
        ("for v_id in execute 'select 1' loop\n    null;\nend loop;"),
        "execute",
    ),
}

# What is near a rule and right: (what is replaced in the clean schema, by what).
ACCEPTED = {
    "no conflict without a table": (
        (
            "#variable_conflict use_column\n"
            "declare\n"
            "    v_id bigint;\n"
            "begin\n"
            "    select j.id into v_id\n"
            "    from dever.job as j\n"
            "    where j.id = f.id;\n"
        ),
        ("declare\n    v_id bigint;\nbegin\n"),
    ),
    "a variable of the schema's own type": ("v_id bigint;", ("v_id bigint;\n    v_job dever.job;")),
    "a listed reader of the clock": (
        RIGHTS,
        (
            (
                "create function dever.clock() returns timestamptz language plpgsql stable "
                "parallel safe set search_path = pg_catalog, pg_temp as $$ begin return "
                "pg_catalog.clock_timestamp(); end $$; comment on function dever.clock() is "
                "'x';\n"
            )
            + RIGHTS
        ),
    ),
}

# The same as a statement in the body of dever.f.
ACCEPTED_STATEMENTS = {
    "a CTE needs no schema": "with mine as (select 1 as id) select m.id into v_id from mine as m;",
    "for update of an alias": "perform from dever.job as j order by j.id for update of j;",
    "syntax needs no schema": (
        "v_id := coalesce(greatest(nullif(v_id, 1), 2), extract(epoch from interval '1 day'));"
    ),
    "a parameter alone, away from tables": "v_id := id;",
    "a parameter that is like no column": "select 1 into v_id from dever.job where what = 'x';",
    "insert with columns": "insert into dever.job (id) values (f.id);",
    "update with where": "update dever.job as j set name = 'x' where j.id = f.id;",
    "skip locked": "select j.id into v_id from dever.job as j limit 1 for update skip locked;",
    "locks in order": "perform from dever.job as j where j.name > 'a' order by j.id for update;",
    "one row by its key": "perform from dever.job as j where j.id = 1 and j.name > 'a' for update;",
    "errcode": "raise exception using errcode = 'DV001', message = 'x';",
    "a notice": "raise notice 'x';",
    "passing on": ("begin\n    v_id := 1;\nexception when unique_violation then\n    raise;\nend;"),
    "an instant with its zone": "perform timestamptz '2020-01-01 00:00:00+00';",
    "infinity": "perform timestamptz '-infinity';",
    "the clock": "perform dever.clock();",
    "the word now": "perform 'now'::text;",
    "age of two": "perform pg_catalog.age(timestamp '2020-01-01 00:00:00', timestamp 'epoch');",
    "a backslash where it is an escape": "perform E'a\\n';",
    "capitals in text, comments and quoted names": (
        "-- Select NOW\nselect 'NOW' as \"Now\" into v_id;"
    ),
}


def changed(old: str, new: str) -> str:
    """The clean schema with one text in place of another."""
    assert old in CLEAN
    return CLEAN.replace(old, new, 1)


def with_statement(text: str) -> str:
    """The clean schema with another statement in the body of dever.f."""
    return changed(QUERY, indent(text, "    ") + "\n")


def lines_found(text: str, rule: str) -> set[int]:
    return {finding.line for finding in lint({"x.sql": text}) if finding.rule == rule}


def line_of(text: str, marker: str) -> int:
    return 1 + text.count("\n", 0, text.index(marker))


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("name", SEEDED)
def test_a_violation_is_found_on_its_line(name: str) -> None:
    rule, old, new, marker = SEEDED[name]
    text = changed(old, new)
    assert line_of(text, marker) in lines_found(text, rule)


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("name", SEEDED_STATEMENTS)
def test_a_statement_that_breaks_a_rule_is_found_on_its_line(name: str) -> None:
    rule, statement, marker = SEEDED_STATEMENTS[name]
    text = with_statement(statement)
    assert lines_found(text, rule) == {line_of(text, marker)}


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_right_is_let_through(name: str) -> None:
    assert lint({"x.sql": changed(*ACCEPTED[name])}) == []


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("name", ACCEPTED_STATEMENTS)
def test_a_statement_that_is_right_is_let_through(name: str) -> None:
    assert lint({"x.sql": with_statement(ACCEPTED_STATEMENTS[name])}) == []


def test_the_clean_schema_is_clean() -> None:
    assert lint({"x.sql": CLEAN}) == []


def test_every_rule_is_broken_at_least_once() -> None:
    broken = {rule for rule, *_ in (*SEEDED.values(), *SEEDED_STATEMENTS.values())}
    assert broken == RULES.keys()


def test_a_finding_says_where_what_and_what_to_do() -> None:
    (finding,) = lint({"sql/a.sql": changed("volatile\n", "")})
    assert str(finding) == (
        "sql/a.sql:7: volatility: dever.f does not state its volatility,"
        " write: immutable, stable or volatile"
    )


def source() -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "sql" / "src").glob("*.sql"))
    }


@pytest.mark.req("R9.3")
def test_the_source_is_clean() -> None:
    assert [str(finding) for finding in lint(source())] == []


# One line of the source that each rule about heads would miss, and how often it stands there.
HEAD_LINES = {
    "search-path": "set search_path = pg_catalog, pg_temp\n",
    "volatility": "volatile\n",
    "parallel": "parallel unsafe\n",
    "variable-conflict": "#variable_conflict use_column\n",
}


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("rule", HEAD_LINES)
def test_the_line_is_missed_in_every_function_of_a_file(rule: str) -> None:
    """The source with all these lines gone has a finding for each: no function is overlooked."""
    text = source()["70_finish.sql"]
    line = HEAD_LINES[rule]
    findings = lint({"x.sql": text.replace("\n" + line, "\n")})
    assert sum(finding.rule == rule for finding in findings) == text.count("\n" + line)


def test_the_program_names_the_fault_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.sql"
    path.write_text(changed("volatile\n", ""), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "lint-sql", path], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        f"{path}:7: volatility: dever.f does not state its volatility,"
        " write: immutable, stable or volatile"
    ]
