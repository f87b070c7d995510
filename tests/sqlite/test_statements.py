"""The statements of `sqlite_port`: each is sound by itself and fit for any driver."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from dever_sql.sql_files import (
    definitions,
    named_statements,
    split_statements,
    sql_directory,
)

STATEMENTS = named_statements()
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_COMMENT = re.compile(r"--[^\n]*")


@pytest.fixture(scope="module")
def schema() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for path in sorted(sql_directory("sqlite").glob("[0-9]*.sql")):
        for statement in split_statements(definitions(path.read_text(encoding="utf-8"))):
            connection.execute(statement)
    yield connection
    connection.close()


@pytest.mark.req("R4.2")
@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_can_be_prepared(schema: sqlite3.Connection, name: str) -> None:
    text = STATEMENTS[name]
    schema.execute(f"explain {text}", dict.fromkeys(re.findall(r":([a-z_]+)", text)))


@pytest.mark.req("R3.4")
@pytest.mark.parametrize("name", STATEMENTS)
def test_no_text_looks_like_a_parameter(name: str) -> None:
    """SQLAlchemy and our Django adapter find parameters by their form, also inside of texts."""
    for text in _LITERAL.findall(_COMMENT.sub("", STATEMENTS[name])):
        assert not re.search(r"(?<![:\w\\]):\w", text)


@pytest.mark.req("R4.2")
@pytest.mark.parametrize("name", STATEMENTS)
def test_time_is_read_through_the_clock_alone(name: str) -> None:
    text = STATEMENTS[name]
    assert not re.search(r"'now'|current_timestamp|julianday|unixepoch", text)


@pytest.mark.req("R4.2")
def test_only_the_clock_reads_the_time(schema: sqlite3.Connection) -> None:
    readers = schema.execute(
        "select name from sqlite_master where sql like '%''now''%' or sql like '%current_time%'"
    ).fetchall()
    assert readers == [("dever_clock",)]


@pytest.mark.req("R3.6")
def test_no_feature_is_newer_than_the_floor() -> None:
    """SQLite 3.40: what is missing there gives NULL or fails only where it is used."""
    newer = re.compile(
        r"subsec|string_agg|\bconcat\(|concat_ws|octet_length|unhex|timediff|jsonb|"
        r"json_error_position|json_pretty|\biif\([^,()]+,[^,()]+\)"
    )
    for path in sorted(sql_directory("sqlite").glob("[0-9]*.sql")):
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        assert not newer.search(text), path.name
