"""How scripts/build-sql makes an upgrade out of two versions, and what it refuses to guess."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from upgrade.catalogue import snapshot
from upgrade.databases import FIRST, PREVIOUS, ROOT, schema_upgrade, sql_statements, sqlite_database
from upgrade.sqlite_catalogue import sqlite_snapshot
from upgrade.ways import deploy, psql

from dever_sql.sql_files import schema_version, split_statements, sql_directory

VERSION = schema_version()


# What differs, as text


def postgres(old: str, new: str, by_hand: str = "") -> str:
    """Two versions that also have what every version has; only the part after the head."""
    always = (
        "insert into dever.installation (version, protocol_min, protocol_max) values ('{}', {});"
    )
    script: str = schema_upgrade.postgres_upgrade(
        schema_upgrade.Change(
            before="1.0.0",
            after="1.1.0",
            old_script=old + "\n" + always.format("1.0.0", "1, 1"),
            new_script=new + "\n" + always.format("1.1.0", "1, 2"),
            by_hand=by_hand,
            head="{locks}\n-- head\n",
        )
    )
    return script


def sqlite(old: str, new: str, by_hand: str = "") -> str:
    always = "insert into dever_installation (version, low, high) values ('{}', {});\n"
    script: str = schema_upgrade.sqlite_upgrade(
        schema_upgrade.Change(
            before="1.0.0",
            after="1.1.0",
            old_script=old + "\n" + always.format("1.0.0", "1, 1"),
            new_script=new + "\n" + always.format("1.1.0", "1, 2"),
            by_hand=by_hand,
            head="-- head\n",
        )
    )
    return script


def statements(script: str) -> list[str]:
    """The upgrade in one line a statement, without the version row."""
    body = script.partition("-- head\n")[2]
    if "update dever_installation" in body:
        found = [each.plain for each in sql_statements.sqlite_statements(body)]
    else:
        found = [each.plain for each in sql_statements.postgres_statements(body)]
    return [text for text in found if not re.match(r"update dever[._]installation ", text)]


def function(arguments: str = "a text", result: str = "text", body: str = "1") -> str:
    return (
        f"create function dever.f({arguments})\nreturns {result}\nlanguage sql\n"
        f"as $$ select {body}; $$;\n"
    )


@pytest.mark.req("R9.1")
def test_nothing_changed() -> None:
    assert statements(postgres(function(), "-- another comment\n" + function())) == []


@pytest.mark.req("R9.1")
def test_the_version_row_gets_the_new_version_and_protocols() -> None:
    script = postgres("", "")
    assert "set version = '1.1.0', protocol_min = 1, protocol_max = 2" in script
    assert "upgraded_at = dever.clock()" in script


@pytest.mark.req("R9.1")
def test_a_changed_function_is_replaced() -> None:
    (statement,) = statements(postgres(function(body="1"), function(body="2 -- why")))
    assert statement.startswith("create or replace function dever.f(a text)")


@pytest.mark.req("R9.1")
def test_a_new_function_comes_with_its_comment() -> None:
    new = function() + "comment on function dever.f(text) is 'It''s new; really';"
    made, comment, revoked = statements(postgres("", new))
    assert made.startswith("create or replace function dever.f(a text)")
    assert comment == "comment on function dever.f(text) is 'It''s new; really'"
    assert revoked == "revoke all on function dever.f(text) from public"


@pytest.mark.req("R9.1")
def test_functions_of_one_name_are_told_apart_by_their_types() -> None:
    new = function() + function(arguments="a text, out b bigint, c numeric(1, 2) default f(1, 2)")
    statement, revoked = statements(postgres(function(), new))
    assert "c numeric(1, 2)" in statement
    assert revoked == "revoke all on function dever.f(text, numeric(1, 2)) from public"


@pytest.mark.req("R9.1")
@pytest.mark.parametrize(
    "new",
    [
        "",
        function(arguments="b text"),
        function(arguments="a text default ''"),
        function(result="bigint"),
    ],
    ids=["gone", "name of an argument", "default", "result"],
)
def test_a_function_that_cannot_be_replaced_has_to_be_dropped_by_hand(new: str) -> None:
    old = function() + "comment on function dever.f(text) is 'f';"
    new += "comment on function dever.f(text) is 'f';" if new else ""
    with pytest.raises(schema_upgrade.UpgradeFault, match=r"function dever\.f\(text\)"):
        postgres(old, new)
    by_hand = "-- lock: none\ndrop function dever.f(text);"
    dropped, *made = statements(postgres(old, new, by_hand))
    assert dropped == "drop function dever.f(text)"
    # Also the comment, which went with it, and the right of everybody, which comes with it.
    assert [text.split()[0] for text in made] == (["create", "comment", "revoke"] if new else [])


@pytest.mark.req("R9.1")
def test_a_changed_view_is_replaced_and_locked_first() -> None:
    old = "create view dever.v as select 1 as a;"
    script = postgres(old, "create view dever.v as select 1 as a, 2 as b;")
    assert statements(script) == ["create or replace view dever.v as select 1 as a, 2 as b"]
    assert "'alter view dever.v reset (security_barrier)', 'readers'" in script
    assert statements(postgres(old, "create view dever.v as\n    select 1 as a;")) == []


@pytest.mark.req("R9.1")
def test_a_view_that_is_made_by_hand_is_left_to_it() -> None:
    by_hand = (
        "-- lock: access exclusive on dever.v\ndrop view dever.v;\n\n"
        "-- lock: none\ncreate view dever.v as select 2 as b;"
    )
    script = postgres(
        "create view dever.v as select 1 as a;", "create view dever.v as select 2 as b;", by_hand
    )
    assert statements(script) == [
        "drop view dever.v",
        "create view dever.v as select 2 as b",
        "revoke all on table dever.v from public",
    ]
    assert "alter view dever.v reset" in script


DIFFERENT = [
    ("create table dever.t (a int);", "create table dever.t (a int, b int);"),
    ("", "create table dever.t (a int);"),
    ("create table dever.t (a int);", ""),
    ("", "create unique index t on dever.u (a);"),
    ("create sequence dever.t;", ""),
    ("", "insert into dever.t (a) values (1);"),
    ("", "do $$ begin perform 1; end $$;"),
]
"""What can be changed by hand alone; what is called t, or has no name."""


@pytest.mark.req("R9.1")
@pytest.mark.parametrize(("old", "new"), DIFFERENT)
def test_tables_indexes_and_rows_are_changed_by_hand(old: str, new: str) -> None:
    with pytest.raises(schema_upgrade.UpgradeFault, match="by hand"):
        postgres(old, new)
    by_hand = "-- lock: access exclusive on dever.t\nselect 't', dever.t;"
    assert statements(postgres(old, new, by_hand))[0] == "select 't', dever.t"


@pytest.mark.req("R9.1")
@pytest.mark.parametrize(("old", "new"), DIFFERENT[:5])
def test_a_change_of_something_else_is_not_the_one(old: str, new: str) -> None:
    by_hand = "-- lock: access exclusive on dever.tt\nalter table dever.tt add b int;"
    with pytest.raises(schema_upgrade.UpgradeFault, match="by hand"):
        postgres(old, new, by_hand)


@pytest.mark.req("R9.1")
def test_the_layout_of_a_table_is_no_change() -> None:
    old = "create table dever.t (a int);"
    assert statements(postgres(old, "create table dever.t  -- why\n (a\n    int);")) == []


@pytest.mark.req("R9.1")
def test_what_is_written_by_hand_states_its_locks() -> None:
    with pytest.raises(schema_upgrade.UpgradeFault, match="lock it takes"):
        postgres("", "", "-- Takes its time.\nalter table dever.t add b int;")


@pytest.mark.req("R9.1")
def test_locks_are_taken_first_views_before_tables() -> None:
    by_hand = (
        "-- lock: share on dever.a\ncreate index i on dever.a (b);\n\n"
        "-- Both.\n-- lock: access exclusive on dever.z\nalter table dever.z add c int;\n\n"
        "-- lock: share on dever.z\ncreate index j on dever.z (b);\n"
    )
    script = postgres(
        "create view dever.v as select 1 as a;", "create view dever.v as select 2 as a;", by_hand
    )
    assert script.partition("\n-- head")[0].split("\n    ") == [
        "array[",
        "    ['dever.v', 'alter view dever.v reset (security_barrier)', 'readers'],",
        "    ['dever.a', 'lock table dever.a in share mode', 'writers'],",
        "    ['dever.z', 'lock table dever.z in access exclusive mode', 'readers']",
        "]",
    ]


@pytest.mark.req("R9.1", "R9.3")
def test_only_what_is_new_is_taken_from_public() -> None:
    """A revoke of everything would count the grants of roles as an extension's own."""
    revoke = "revoke all on all tables in schema dever from public;"
    old = "create view dever.v as select 1 as a;" + revoke
    new = "create view dever.w as select 1 as a;"
    made, revoked = statements(postgres(old, old + new))
    assert made.startswith("create or replace view dever.w")
    assert revoked == "revoke all on table dever.w from public"


VIEW = "create view dever_v (a) as\nselect {};\n"
TRIGGER = "create trigger dever_v_call\ninstead of insert on dever_v\nbegin\n    select {};\nend;\n"


@pytest.mark.req("R9.1")
def test_a_recreated_view_gets_its_triggers_back() -> None:
    script = sqlite(VIEW.format(1) + TRIGGER.format(1), VIEW.format(2) + TRIGGER.format(1))
    dropped, view, trigger = statements(script)
    assert dropped == "drop view dever_v"
    assert view == "create view dever_v (a) as select 2"
    assert trigger.startswith("create trigger dever_v_call")


@pytest.mark.req("R9.1")
def test_a_changed_trigger_leaves_its_view_alone() -> None:
    script = sqlite(VIEW.format(1) + TRIGGER.format(1), VIEW.format(1) + TRIGGER.format(2))
    dropped, trigger = statements(script)
    assert dropped == "drop trigger dever_v_call"
    assert "select 2" in trigger


@pytest.mark.req("R9.1")
def test_views_and_triggers_that_are_gone_are_dropped() -> None:
    assert statements(sqlite(VIEW.format(1) + TRIGGER.format(1), VIEW.format(1))) == [
        "drop trigger dever_v_call"
    ]
    assert statements(sqlite(VIEW.format(1) + TRIGGER.format(1), "")) == ["drop view dever_v"]


@pytest.mark.req("R9.1")
def test_tables_of_sqlite_are_changed_by_hand() -> None:
    old, new = "create table dever_t (a);\n", "create table dever_t (a, b);\n"
    with pytest.raises(schema_upgrade.UpgradeFault, match="by hand"):
        sqlite(old, new)
    by_hand = "alter table dever_t add column b;\n"
    assert statements(sqlite(old, new, by_hand)) == ["alter table dever_t add column b"]


# A change of everything, in a copy of the source


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """As it was before this version was released."""
    for name in ("sql", "sqlite_port", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    frozen = tmp_path / "sql" / "released.sha256"
    lines = frozen.read_text(encoding="ascii").splitlines(keepends=True)
    frozen.write_text("".join(line for line in lines if VERSION not in line), encoding="ascii")
    return tmp_path


def build(copy: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, copy / "scripts" / "build-sql", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new), encoding="utf-8")


def append(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{before}\n{text}", encoding="utf-8")


def change_postgres(copy: Path) -> None:
    source = copy / "sql" / "src"
    append(
        source / "93_more.sql",
        "create table dever.more (id bigint generated always as identity primary key, what text);\n"
        "comment on table dever.more is 'More; of it';\n"
        "create index more_what_idx on dever.more (what);\n"
        "create function dever.more_of(what text) returns bigint language sql stable\n"
        "set search_path = pg_catalog, pg_temp\n"
        "as $$ select count(*) from dever.more as m where m.what = more_of.what; $$;\n"
        "comment on function dever.more_of(text) is 'How many';\n"
        "create view dever.more_seen as select m.id from dever.more as m;\n"
        "comment on view dever.more_seen is 'What is seen';\n",
    )
    change(source / "90_views.sql", "where w.left_at is null;", "where w.left_at is null and true;")
    append(
        copy / "sql" / "upgrade" / f"{PREVIOUS}--{VERSION}.sql",
        "-- lock: none\n"
        "create table dever.more (id bigint generated always as identity primary key, what text);\n"
        "-- lock: none\ncreate index more_what_idx on dever.more (what);\n",
    )


def change_sqlite(copy: Path) -> None:
    source = copy / "sqlite_port"
    change(
        source / "10_schema.sql",
        "    reason text,\n    error text,\n    payload text not null\n) strict;\n\n-- Differs",
        "    reason text,\n    error text,\n    payload text not null,\n"
        "    weight integer not null default 0 -- how heavy\n) strict;\n\n-- Differs",
    )
    raised = "select json_extract('{}', new.message)"
    change(source / "20_names.sql", f"{raised};", f"{raised}, 1;")
    append(source / "21_more.sql", "create view dever_more as\nselect 1 as one;\n")
    append(
        source / "upgrade" / f"{PREVIOUS}--{VERSION}.sql",
        "alter table dever_job add column weight integer not null default 0;\n",
    )


@pytest.mark.req("R9.1")
def test_an_upgrade_of_everything_equals_a_fresh_install(
    copy: Path, old_url: str, no_url: str
) -> None:
    change_postgres(copy)
    assert build(copy)[0] == 0
    install = copy / "sql" / f"dever--{VERSION}.sql"
    assert psql(no_url, "--single-transaction", "-f", str(install)).code == 0
    done = psql(old_url, "-f", str(copy / "sql" / "deploy.sql"))
    assert done.code == 0, done.said
    with psycopg.connect(no_url) as fresh, psycopg.connect(old_url) as upgraded:
        expected = snapshot(fresh)
        assert any("more_of" in line for line in expected)
        assert snapshot(upgraded) == expected


@pytest.mark.req("R9.1")
def test_an_upgrade_of_every_kind_in_a_file_equals_a_fresh_install(
    copy: Path, tmp_path: Path
) -> None:
    change_sqlite(copy)
    assert build(copy)[0] == 0
    snapshots: list[Any] = []
    fresh, upgraded = tmp_path / "fresh.db", sqlite_database(tmp_path / "upgraded.db", PREVIOUS)
    for path, script in ((fresh, VERSION), (upgraded, f"{PREVIOUS}--{VERSION}")):
        text = (copy / "sqlite_port" / f"dever--{script}.sql").read_text(encoding="utf-8")
        with closing(sqlite3.connect(path)) as connection:
            for statement in split_statements(text):
                connection.execute(statement)
            connection.commit()
            snapshots.append(sqlite_snapshot(connection))
    assert any("weight" in line for line in snapshots[0])
    assert snapshots[1] == snapshots[0]


@pytest.mark.req("R9.1")
def test_check_sees_every_built_file(copy: Path) -> None:
    assert build(copy, "--check") == (0, "")
    for name in (
        f"sql/dever--{VERSION}.sql",
        f"sql/dever--{PREVIOUS}--{VERSION}.sql",
        f"sqlite_port/dever--{PREVIOUS}--{VERSION}.sql",
        "sql/deploy.sql",
    ):
        path = copy / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(VERSION, "7.7.7"), encoding="utf-8")
        code, said = build(copy, "--check")
        assert code == 1
        assert name in said
        path.write_text(text, encoding="utf-8")


@pytest.mark.req("R9.1")
def test_a_released_upgrade_is_frozen(copy: Path) -> None:
    assert build(copy, "--release")[0] == 0
    change(copy / "sql" / "upgrade" / "head.sql", "'1200ms';", "'1300ms';")
    code, said = build(copy)
    assert code == 1
    assert f"sql/dever--{PREVIOUS}--{VERSION}.sql is released" in said


@pytest.mark.req("R9.1")
def test_the_next_version_gets_its_step_by_itself(copy: Path, old_url: str) -> None:
    """From the first release through all that follow, in one deploy."""
    assert build(copy, "--release")[0] == 0
    for path in (
        copy / "pyproject.toml",
        copy / "sql" / "dever.control",
        copy / "sql" / "src" / "99_installation.sql",
        copy / "sqlite_port" / "99_installation.sql",
    ):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(VERSION, "7.0.0"), encoding="utf-8")
    code, said = build(copy)
    assert code == 0, said
    done = psql(old_url, "-f", str(copy / "sql" / "deploy.sql"))
    assert done.code == 0, done.said
    assert f"Dever SQL 7.0.0 installed (before: {FIRST})" in done.said
    refused = deploy(old_url)
    assert refused.code == 3
    assert "has Dever SQL 7.0.0" in refused.said
    assert VERSION in refused.said


@pytest.mark.req("R9.1")
def test_the_control_file_names_the_version(copy: Path) -> None:
    change(copy / "sql" / "dever.control", VERSION, "7.7.7")
    code, said = build(copy, "--check")
    assert code == 1
    assert "dever.control" in said


@pytest.mark.req("R9.1")
def test_every_released_version_has_a_way_here() -> None:
    lines = (sql_directory("postgresql") / "released.sha256").read_text("ascii").splitlines()
    versions = {
        name.removeprefix("sql/dever--").removesuffix(".sql")
        for name in (line.split()[1] for line in lines)
        if name.startswith("sql/dever--") and name.count("--") == 1
    }
    text = (sql_directory("postgresql") / "deploy.sql").read_text(encoding="utf-8")
    for version in versions - {VERSION}:
        assert f":'dever_version' = '{version}'" in text
