"""Installing into an SQLite file: all or nothing, once, whoever races (R4.1)."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path

import pytest

from dever_sql import sqlite_file
from dever_sql.engine import Statement
from dever_sql.errors import DatabaseUnavailable, DeverError, InstallError, SchemaVersion
from dever_sql.sqlite import SQLiteEngine
from dever_sql.sqlite_file import Rows


def objects(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        rows = connection.execute("select name from sqlite_master where name like 'dever%'")
        return sorted(name for (name,) in rows)
    finally:
        connection.close()


def test_nothing_is_created_before_install(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    engine = SQLiteEngine(path)
    assert engine.version() is None
    with pytest.raises(InstallError, match=r"no database at .*jobs\.db"):
        engine.claim("q", "w", 1)
    assert not path.exists()


@pytest.mark.req("R4.1", "R9.1")
def test_install_is_repeatable(tmp_path: Path) -> None:
    engine = SQLiteEngine(tmp_path / "jobs.db")
    assert engine.install() == engine.version() == engine.install()
    identity = engine.installation_id()
    engine.send("q", "1")
    engine.close()
    again = SQLiteEngine(tmp_path / "jobs.db")
    again.install()
    assert again.installation_id() == identity
    assert len(again.jobs()) == 1
    again.close()


def _install(path: str) -> None:
    engine = SQLiteEngine(path)
    engine.install()
    engine.send("q", "1")
    engine.close()


@pytest.mark.req("R4.1")
def test_racing_installers(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_install, args=(str(path),)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    engine = SQLiteEngine(path)
    assert len(engine.jobs()) == 4
    engine.close()


def _killed_install(path: str, deadly: int) -> None:
    count = 0
    original = sqlite_file.execute

    def counting(connection: sqlite3.Connection, statement: Statement) -> Rows:
        nonlocal count
        count += 1
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(connection, statement)

    sqlite_file.execute = counting
    SQLiteEngine(path).install()


@pytest.mark.req("R4.1")
def test_killed_at_each_statement(tmp_path: Path) -> None:
    """The old state or the new one, nothing between, and the next install succeeds."""
    context = multiprocessing.get_context("fork")
    complete = objects_after_install(tmp_path / "complete.db")
    deadly = 0
    while True:
        deadly += 1
        path = tmp_path / f"{deadly}.db"
        process = context.Process(target=_killed_install, args=(str(path), deadly))
        process.start()
        process.join()
        found = objects(path)
        if process.exitcode == 0:
            assert found == complete
            break
        assert process.exitcode == -signal.SIGKILL
        assert found == []
        if deadly % 20 == 0:
            assert objects_after_install(path) == complete
    assert deadly > 50


def objects_after_install(path: Path) -> list[str]:
    engine = SQLiteEngine(path)
    engine.install()
    engine.close()
    return objects(path)


@pytest.mark.req("R4.1")
def test_failing_statement_leaves_nothing(tmp_path: Path) -> None:
    """Something of ours' name is in the way: the whole install is undone, the rest untouched."""
    path = tmp_path / "jobs.db"
    squatter = sqlite3.connect(path)
    squatter.execute("create table dever_sweep_cursor (mine)")
    squatter.close()
    with pytest.raises(DeverError, match="dever_sweep_cursor"):
        SQLiteEngine(path).install()
    assert objects(path) == ["dever_sweep_cursor"]


@pytest.mark.req("R4.1")
def test_transaction_of_somebody_else_is_waited_for_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C71."""
    path = tmp_path / "jobs.db"
    user = sqlite3.connect(path, isolation_level=None)
    user.execute("pragma journal_mode = wal")
    user.execute("create table mine (n integer)")
    user.execute("begin immediate")
    user.execute("insert into mine values (1)")
    monkeypatch.setattr(sqlite_file, "_PATIENCE", 0.1)
    engine = SQLiteEngine(path)
    with pytest.raises(DatabaseUnavailable, match="locked"):
        engine.install()
    assert user.in_transaction
    user.execute("rollback")
    engine.install()
    assert user.execute("select count(*) from mine").fetchone() == (0,)
    user.close()
    engine.close()


@pytest.mark.req("R4.1")
@pytest.mark.parametrize("version", ["9.0.0", "0.0.1"])
def test_unknown_version_is_refused_with_both_named(tmp_path: Path, version: str) -> None:
    path = tmp_path / "jobs.db"
    engine = SQLiteEngine(path)
    brought = engine.install()
    engine.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("update dever_installation set version = ?", [version])
    connection.close()
    engine = SQLiteEngine(path)
    with pytest.raises(SchemaVersion) as caught:
        engine.install()
    assert version in str(caught.value)
    assert brought in str(caught.value)
    assert engine.version() == version
    engine.close()


@pytest.mark.req("R4.1", "R9.2")
def test_protocol_that_does_not_overlap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    engine = SQLiteEngine(path)
    engine.install()
    engine.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("update dever_installation set protocol_min = 7, protocol_max = 8")
    connection.close()
    engine = SQLiteEngine(path)
    with pytest.raises(SchemaVersion, match="protocol 7 to 8"):
        engine.send("q", "1")
    engine.close()


def _send_as_nobody(path: str) -> None:
    if os.geteuid() == 0:  # root may write anywhere
        os.setgid(65534)
        os.setuid(65534)
    with pytest.raises(DatabaseUnavailable, match="may not be written"):
        SQLiteEngine(path).send("q", "1")


@pytest.mark.req("R4.1")
class TestPlaces:
    """C73: one clear error, and never a silent database in memory."""

    def test_directory_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DatabaseUnavailable, match="directory of the database"):
            SQLiteEngine(tmp_path / "nowhere" / "jobs.db").install()

    def test_path_that_is_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(DatabaseUnavailable, match="is a directory"):
            SQLiteEngine(tmp_path).install()

    def test_empty_path(self) -> None:
        with pytest.raises(InstallError, match="empty"):
            SQLiteEngine("")

    def test_file_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        path.write_text("not a database, but long enough to look like one " * 20)
        with pytest.raises(InstallError, match="not an SQLite database"):
            SQLiteEngine(path).install()

    def test_database_without_an_installation(self, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        connection.execute("create table t (a)")
        connection.close()
        engine = SQLiteEngine(tmp_path / "jobs.db")
        assert engine.version() is None
        with pytest.raises(InstallError, match="not installed"):
            engine.send("q", "1")
        engine.close()

    def test_file_that_may_not_be_written(self) -> None:
        directory = Path(tempfile.mkdtemp())
        try:
            engine = SQLiteEngine(directory / "jobs.db")
            engine.install()
            engine.close()
            (directory / "jobs.db").chmod(0o444)
            directory.chmod(0o555)
            process = multiprocessing.get_context("fork").Process(
                target=_send_as_nobody, args=(str(directory / "jobs.db"),)
            )
            process.start()
            process.join()
            assert process.exitcode == 0
        finally:
            directory.chmod(0o755)
            shutil.rmtree(directory)

    @pytest.mark.parametrize(
        "name", ["a?b.db", "a#b.db", "a%20b.db", "file:a.db", "😀 é.db", "a&b=c"]
    )
    def test_odd_names(self, tmp_path: Path, name: str) -> None:
        engine = SQLiteEngine(tmp_path / name)
        engine.install()
        engine.send("q", "1")
        engine.close()
        assert (tmp_path / name).exists()

    def test_symbolic_link(self, tmp_path: Path) -> None:
        (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
        engine = SQLiteEngine(tmp_path / "link.db")
        engine.install()
        engine.send("q", "1")
        engine.close()
        real = SQLiteEngine(tmp_path / "real.db")
        assert len(real.jobs()) == 1
        real.close()

    def test_memory_lives_with_its_engine(self) -> None:
        engine = SQLiteEngine(":memory:")
        assert engine.version() is None
        engine.install()
        engine.send("q", "1")
        assert len(engine.claim("q", "w", 1)) == 1
        engine.close()

    @pytest.mark.parametrize("replaced", [False, True])
    def test_file_removed_or_replaced_while_open(self, tmp_path: Path, replaced: bool) -> None:
        path = tmp_path / "jobs.db"
        engine = SQLiteEngine(path)
        engine.install()
        path.unlink()
        if replaced:
            SQLiteEngine(path).install()
        with pytest.raises(DatabaseUnavailable, match="removed or replaced"):
            engine.send("q", "1")
        with pytest.raises(DatabaseUnavailable, match="removed or replaced"):
            engine.jobs()
        engine.close()
