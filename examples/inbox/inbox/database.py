"""The inbox's database: the one that the settings name, SQLite or PostgreSQL."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg

from dever_sql.database import open_engine
from dever_sql.settings import program_settings

SQL = Path(__file__).parents[1] / "sql"


def url() -> str:
    settings, project = program_settings(Path.cwd())
    return settings.database_url("default", project)


class Transaction:
    """An open transaction. Statements name their parameters `:name` on both databases."""

    def __init__(self, connection: sqlite3.Connection | psycopg.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, statement: str, values: Mapping[str, Any] | None = None) -> Any:
        if isinstance(self.connection, psycopg.Connection):
            statement = re.sub(r":(\w+)", r"%(\1)s", statement)
        return self.connection.execute(statement, values or {})  # pyright: ignore


@contextmanager
def transaction() -> Generator[Transaction]:
    """One transaction: committed at the end, rolled back by an exception."""
    address = url()
    if address.startswith("sqlite"):
        path = unquote(address.removeprefix("sqlite:///"))
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
            # A write transaction from its first statement on: it waits for its turn.
            connection.execute("begin immediate")
            try:
                yield Transaction(connection)
            except BaseException:
                connection.execute("rollback")
                raise
            connection.execute("commit")
    else:
        with psycopg.connect(address) as connection:
            yield Transaction(connection)


def prepare() -> None:
    """Install Dever SQL and the inbox's tables where they are missing."""
    engine = open_engine(url())
    try:
        engine.install()
    finally:
        engine.close()
    with transaction() as tx:
        for statement in (SQL / "tables.sql").read_text().split(";"):
            if statement.strip():
                tx.execute(statement)
        tx.execute("drop view if exists inbox_report")
        tx.execute((SQL / "report.sql").read_text())
