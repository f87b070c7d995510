"""Databases that hold a certain version of Dever SQL, or nothing."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import LiteralString

import psycopg
from postgres_server import Cluster
from psycopg import sql

from dever_sql.sql_files import install_script, split_statements

FIRST = "0.1.0"
PREVIOUS = "0.2.0"
"""The release before this one, which its programs work beside."""
ROOT = Path(__file__).resolve().parents[2]


class Databases:
    """A few databases on a cluster, emptied and filled again: cheaper than a new one each time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: list[str] = []

    def fresh(self, name: str, version: str | None) -> str:
        """The URL of that database, without settings, with that version in it and nothing else."""
        url = self._cluster.url(name)
        if name not in self._made:
            self._execute("create database {}", name)
            self._made.append(name)
        self._execute("alter database {} reset all", name)
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            session.execute("drop schema if exists dever cascade")
            if version is not None:
                session.execute(install_script("postgresql", version).encode())
        return url

    def close(self) -> None:
        for name in self._made:
            self._execute("drop database {} with (force)", name)

    def _execute(self, statement: LiteralString, name: str) -> None:
        url = self._cluster.url(self._cluster.maintenance_dbname)
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(sql.SQL(statement).format(sql.Identifier(name)))


def sqlite_database(path: Path, version: str) -> Path:
    """A new file with that version in it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("begin immediate")
    for statement in split_statements(install_script("sqlite", version)):
        connection.execute(statement)
    connection.execute("commit")
    connection.close()
    return path


def script_module(name: str, directory: Path = ROOT / "scripts") -> ModuleType:
    """A module of `scripts/`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, directory / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there, and the others import it
    spec.loader.exec_module(module)
    return module


sql_statements = script_module("sql_statements")
schema_upgrade = script_module("schema_upgrade")
