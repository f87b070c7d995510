"""What was released keeps its signature: callers of an older version go on (R9.2).

`signatures/X.Y.Z.txt` has the functions of that release that somebody may be granted, and its
views, one a line, and never changes; the same for SQLite, where views are the interface, in
`X.Y.Z.sqlite.txt`. A release adds its own lists: the test of their content fails until then.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import psycopg
import pytest
from upgrade.databases import sqlite_database

from dever_sql.sql_files import install_script, schema_version, sql_directory

DIRECTORY = Path(__file__).parent / "signatures"
POSTGRES = sorted(set(DIRECTORY.glob("*.txt")) - set(DIRECTORY.glob("*.sqlite.txt")))
SQLITE = sorted(DIRECTORY.glob("*.sqlite.txt"))

FUNCTIONS = """
select pg_catalog.format(
    'dever.%s(%s) -> %s',
    p.proname,
    pg_catalog.pg_get_function_arguments(p.oid),
    pg_catalog.pg_get_function_result(p.oid)
)
from pg_catalog.pg_proc as p
where p.pronamespace = 'dever'::regnamespace
"""

VIEWS = """
select pg_catalog.format(
    'dever.%s: %s',
    c.relname,
    pg_catalog.string_agg(
        a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum
    )
)
from pg_catalog.pg_class as c
join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum > 0
where c.relnamespace = 'dever'::regnamespace and c.relkind = 'v'
group by c.relname
"""

SQLITE_VIEWS = """
select v.name || ': ' || group_concat(c.name, ', ')
from sqlite_master as v
join pragma_table_info(v.name) as c
where v.type = 'view'
group by v.name
"""


def postgres_signatures(url: str) -> list[str]:
    with psycopg.connect(url) as session:
        session.execute("set search_path = pg_catalog")
        functions = session.execute(FUNCTIONS.encode()).fetchall()
        views = session.execute(VIEWS.encode()).fetchall()
    return sorted(row[0] for row in [*functions, *views])


def granted() -> set[str]:
    """The names of the functions that roles.sql grants."""
    text = (sql_directory("postgresql") / "roles.sql").read_text(encoding="utf-8")
    return set(re.findall(r"^\s+dever\.(\w+)\(", text, re.MULTILINE))


def public(signatures: list[str]) -> list[str]:
    """Without the functions that only the engine itself may call."""
    names = granted()
    return [
        line
        for line in signatures
        if "(" not in line or line.removeprefix("dever.").partition("(")[0] in names
    ]


def sqlite_signatures(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    views = connection.execute(SQLITE_VIEWS).fetchall()
    connection.close()
    return sorted(row[0] for row in views)


def released(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def missing(old: list[str], new: list[str]) -> list[str]:
    """Signatures that are gone. A view may have more columns, at its end."""
    return [
        line
        for line in old
        if line not in new
        and not (": " in line and any(other.startswith(line + ", ") for other in new))
    ]


@pytest.mark.req("R9.2")
@pytest.mark.parametrize("path", POSTGRES, ids=lambda path: path.stem)
def test_released_signatures_are_still_there(new_url: str, path: Path) -> None:
    assert missing(released(path), postgres_signatures(new_url)) == []


@pytest.mark.req("R9.2")
@pytest.mark.parametrize("path", SQLITE, ids=lambda path: path.stem)
def test_released_views_of_sqlite_are_still_there(tmp_path: Path, path: Path) -> None:
    file = sqlite_database(tmp_path / "jobs.db", schema_version())
    assert missing(released(path), sqlite_signatures(file)) == []


RELEASED = [
    name.removeprefix("sql/dever--").removesuffix(".sql")
    for line in (sql_directory("postgresql") / "released.sha256").read_text("ascii").splitlines()
    if (name := line.split()[1]).startswith("sql/") and name.count("--") == 1
]


@pytest.mark.req("R9.2")
@pytest.mark.parametrize("version", RELEASED)
def test_the_lists_are_those_of_their_release(no_url: str, tmp_path: Path, version: str) -> None:
    with psycopg.connect(no_url) as session:
        session.execute(install_script("postgresql", version).encode())
    found = postgres_signatures(no_url)
    listed = set(released(DIRECTORY / f"{version}.txt"))
    assert listed <= set(found)
    # What an older release granted, roles.sql of today does not say.
    assert version != schema_version() or set(public(found)) <= listed
    file = sqlite_database(tmp_path / "jobs.db", version)
    assert released(DIRECTORY / f"{version}.sqlite.txt") == sqlite_signatures(file)


@pytest.mark.req("R9.2")
def test_what_counts_as_gone() -> None:
    old = ["dever.f(a text) -> text", "dever.v: a text"]
    assert missing(old, [*old, "dever.f(a text, b text) -> text"]) == []
    assert missing(old, ["dever.f(a text) -> text", "dever.v: a text, b text"]) == []
    assert missing(old, ["dever.f(b text) -> text", "dever.v: a text"]) == [old[0]]
    assert missing(old, ["dever.f(a text) -> bigint", "dever.v: a text"]) == [old[0]]
    assert missing(old, ["dever.f(a text, b text) -> text", "dever.v: a text"]) == [old[0]]
    assert missing(old, ["dever.f(a text) -> text", "dever.v: b text, a text"]) == [old[1]]
    assert missing(old, ["dever.f(a text) -> text", "dever.v: a texts"]) == [old[1]]
