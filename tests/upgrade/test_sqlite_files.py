"""What can be wrong with an SQLite file, each said in one clear error, and nothing lost (R4.1)."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from upgrade.databases import PREVIOUS
from upgrade.test_previous_release import install_previous
from worker_tasks import enqueue, task, until

from dever_sql import sqlite_file, sqlite_place
from dever_sql.connection import run as run_on
from dever_sql.errors import DatabaseUnavailable, InstallError, SchemaVersion
from dever_sql.sql_files import schema_version
from dever_sql.sqlite import SQLiteEngine
from dever_sql.worker import Worker, WorkerOptions

NOBODY = 65534
LARGE = '"' + "x" * 100_000 + '"'
FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.req("R4.1", "R9.1")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory in which any user may do anything (those of pytest belong to its user)."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    yield directory
    directory.chmod(0o777)
    shutil.rmtree(directory)


@pytest.fixture
def path(open_directory: Path) -> Path:
    """An installed database with one message, closed, that any user may write."""
    path = open_directory / "jobs.db"
    with closing(SQLiteEngine(path)) as engine:
        engine.install()
        engine.send("q", "1")
    path.chmod(0o666)
    return path


@pytest.fixture
def engine(path: Path) -> Iterator[SQLiteEngine]:
    engine = SQLiteEngine(path)
    yield engine
    engine.close()


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    """The type and text of the error that a user without any rights gets, in a process of his."""
    receiver, sender = FORK.Pipe(duplex=False)

    def child() -> None:
        if os.geteuid() == 0:  # root may do everything
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            sender.send(("none", str(call())))
        except BaseException as error:
            sender.send((type(error).__name__, str(error)))

    process = FORK.Process(target=child)
    process.start()
    try:
        assert receiver.poll(60)
        return receiver.recv()
    finally:
        process.join()


def send(path: Path) -> int:
    with closing(SQLiteEngine(path)) as engine:
        return engine.send("q", "1")


def install(path: Path) -> str:
    with closing(SQLiteEngine(path)) as engine:
        return engine.install()


class TestRights:
    def test_file_that_may_only_be_read(self, path: Path) -> None:
        path.chmod(0o444)
        kind, text = error_of(lambda: send(path))
        assert kind == "DatabaseUnavailable"
        assert f"the file {path} may not be written" in text

    def test_file_that_may_only_be_read_can_be_looked_at(self, path: Path) -> None:
        path.chmod(0o444)

        def look() -> int:
            with closing(SQLiteEngine(path)) as engine:
                return len(engine.jobs())

        assert error_of(look) == ("none", "1")

    @pytest.mark.parametrize("call", [send, install])
    def test_directory_that_may_only_be_read(
        self, path: Path, call: Callable[[Path], object]
    ) -> None:
        path.parent.chmod(0o555)
        kind, text = error_of(lambda: call(path))
        assert kind == "DatabaseUnavailable"
        assert f"the directory {path.parent} may not be written" in text

    def test_new_file_in_such_a_directory(self, open_directory: Path) -> None:
        open_directory.chmod(0o555)
        kind, text = error_of(lambda: install(open_directory / "new.db"))
        assert kind == "DatabaseUnavailable"
        assert f"the directory {open_directory} may not be written" in text

    def test_directory_that_may_not_be_looked_into(self, path: Path) -> None:
        path.parent.chmod(0o600)
        kind, text = error_of(lambda: send(path))
        assert kind == "DatabaseUnavailable"
        assert "may not look into the directory" in text

    def test_file_that_may_not_be_read(self, path: Path) -> None:
        path.chmod(0o000)
        kind, text = error_of(lambda: send(path))
        assert kind == "DatabaseUnavailable"
        assert f"the file {path} may not be read" in text

    def test_log_of_somebody_else(self, path: Path, engine: SQLiteEngine) -> None:
        """A program that ran as root once leaves such files behind when it is killed."""
        engine.send("q", "1")
        for name in ("jobs.db-wal", "jobs.db-shm"):
            (path.parent / name).chmod(0o444)
        kind, text = error_of(lambda: send(path))
        assert kind == "DatabaseUnavailable"
        assert "read-only" in text
        assert "-wal and -shm" in text

    def test_upgrade_of_a_file_that_may_only_be_read(self, open_directory: Path) -> None:
        path = open_directory / "jobs.db"
        install_previous(f"sqlite:///{path}")
        path.chmod(0o444)
        kind, text = error_of(lambda: install(path))
        assert kind == "DatabaseUnavailable"
        assert f"the file {path} may not be written" in text
        with closing(SQLiteEngine(path)) as engine:
            assert engine.version() == PREVIOUS


class TestPlaces:
    """Neither an enqueue nor an install takes them for a database that is not there yet."""

    @pytest.mark.parametrize("call", [send, install])
    def test_directory_that_is_missing(
        self, tmp_path: Path, call: Callable[[Path], object]
    ) -> None:
        with pytest.raises(DatabaseUnavailable, match=r"directory .* does not exist\nhint: mkdir"):
            call(tmp_path / "nowhere" / "jobs.db")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("call", [send, install])
    def test_directory_that_is_a_file(self, path: Path, call: Callable[[Path], object]) -> None:
        with pytest.raises(DatabaseUnavailable, match=r"directory .* does not exist"):
            call(path / "jobs.db")

    @pytest.mark.parametrize("call", [send, install])
    def test_directory(self, tmp_path: Path, call: Callable[[Path], object]) -> None:
        with pytest.raises(DatabaseUnavailable, match="is a directory, not a database file"):
            call(tmp_path)

    def test_something_else_than_a_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(DatabaseUnavailable, match="not a regular file"):
            install(tmp_path / "pipe")

    def test_link_into_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "link.db").symlink_to(tmp_path / "nowhere" / "jobs.db")
        with pytest.raises(DatabaseUnavailable, match="link into a directory that does not exist"):
            install(tmp_path / "link.db")

    def test_link_to_itself(self, tmp_path: Path) -> None:
        (tmp_path / "link.db").symlink_to(tmp_path / "link.db")
        with pytest.raises(DatabaseUnavailable, match="symbolic links"):
            install(tmp_path / "link.db")


class TestContents:
    @pytest.mark.parametrize(
        "content", [b"no database", b"no database " * 1000, b"SQLite format 3\0" * 300]
    )
    def test_file_that_is_no_database(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "jobs.db"
        path.write_bytes(content)
        with pytest.raises(InstallError, match="not an SQLite database, or it is damaged") as error:
            install(path)
        assert str(path) in str(error.value)
        assert path.read_bytes() == content

    def test_empty_file_is_a_database_without_an_installation(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        path.touch()
        with pytest.raises(InstallError, match="not installed") as error:
            send(path)
        assert str(path) in str(error.value)
        assert install(path) == schema_version()

    def test_half_of_a_database(self, path: Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        for call in (send, install):
            with pytest.raises(InstallError, match="damaged"):
                call(path)

    def test_pages_that_were_overwritten(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[4096:40960] = b"\xff" * 36864
        path.write_bytes(content)
        with pytest.raises(InstallError, match="damaged") as error:
            send(path)
        assert str(path) in str(error.value)


class TestReplacedWhileOpen:
    @pytest.fixture(autouse=True)
    def used(self, engine: SQLiteEngine) -> None:
        engine.send("q", "1")
        engine.jobs()

    def refused(self, engine: SQLiteEngine, name: str) -> None:
        for call in (
            lambda: engine.send("q", "1"),
            lambda: engine.claim("q", "w", 1),
            engine.jobs,
        ):
            with pytest.raises(DatabaseUnavailable, match=f"{name} was removed or replaced"):
                call()

    def test_renamed_and_put_back(self, engine: SQLiteEngine, path: Path) -> None:
        path.rename(path.with_name("other.db"))
        self.refused(engine, "jobs.db")
        path.with_name("other.db").rename(path)
        engine.send("q", "1")
        assert len(engine.jobs()) == 3

    def test_deleted(self, engine: SQLiteEngine, path: Path) -> None:
        path.unlink()
        self.refused(engine, "jobs.db")
        assert not path.exists(), "a new empty database was made"

    def test_another_in_its_place(self, engine: SQLiteEngine, path: Path, tmp_path: Path) -> None:
        """As a restored backup, or an editor that writes a new file and renames it."""
        install(tmp_path / "other.db")
        os.replace(shutil.copy(tmp_path / "other.db", path.with_name("copy.db")), path)
        self.refused(engine, "jobs.db")

    def test_link_that_leads_elsewhere_now(
        self, engine: SQLiteEngine, path: Path, tmp_path: Path
    ) -> None:
        link, other = tmp_path / "link.db", tmp_path / "other.db"
        install(other)
        link.symlink_to(path)
        with closing(SQLiteEngine(link)) as linked:
            linked.send("q", "1")
            link.unlink()
            link.symlink_to(other)
            self.refused(linked, "link.db")

    def test_log_that_was_deleted(self, engine: SQLiteEngine, path: Path) -> None:
        """Commits would go into a file without a name: none may be acknowledged."""
        path.with_name("jobs.db-wal").unlink()
        self.refused(engine, "jobs.db-wal")
        engine.close()  # the last connection brings what the log held into the database
        with closing(SQLiteEngine(path)) as again:
            assert len(again.jobs()) == 2


class TestNoRoom:
    """The call fails and stores nothing; once there is room the same engine goes on."""

    def test_database_that_may_not_grow(self, engine: SQLiteEngine) -> None:
        engine.send("q", "1")
        writer = engine._file._writer  # pyright: ignore[reportPrivateUsage]
        assert writer is not None
        (pages,) = writer.execute("pragma page_count").fetchone()
        writer.execute(f"pragma max_page_count = {pages}")
        with pytest.raises(DatabaseUnavailable, match=r"the disk is full \(.*jobs\.db\)") as error:
            engine.send_many("q", [LARGE] * 10)
        assert "nothing of this call was stored" in str(error.value)
        assert len(engine.jobs()) == 2
        writer.execute("pragma max_page_count = 1000000")
        engine.send_many("q", [LARGE] * 10)
        assert len(engine.jobs()) == 12

    def test_limit_on_the_size_of_files(self, path: Path) -> None:
        def send_large() -> int:
            engine = SQLiteEngine(path)
            engine.send("q", "1")
            resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
            return len(engine.send_many("q", [LARGE] * 10))

        kind, text = error_of(send_large)
        assert kind == "DatabaseUnavailable"
        assert "reading or writing the database failed" in text
        assert str(path) in text
        with closing(SQLiteEngine(path)) as engine:
            assert len(engine.jobs()) == 2

    @pytest.fixture
    def small_disk(self, open_directory: Path) -> Iterator[Path]:
        """A file system of 2 MB."""
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "tmpfs", open_directory]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("mounting a small file system needs root")
        yield open_directory
        subprocess.run(["umount", "-l", open_directory], check=True)

    def test_full_disk_under_a_worker(self, small_disk: Path) -> None:
        """A worker keeps what it has to say until there is room, and runs nothing twice."""
        ran: list[int] = []

        def handle() -> None:
            ran.append(1)
            filler.write_bytes(b"x")
            with suppress(OSError), filler.open("ab") as file:
                while True:
                    file.write(b"x" * 65536)
                    file.flush()

        filler = small_disk / "filler"
        engine = SQLiteEngine(small_disk / "jobs.db")
        engine.install()
        # So that not even a few bytes can be written without another page of the disk.
        with closing(sqlite3.connect(small_disk / "jobs.db")) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")
        work = task(handle)
        (id,) = enqueue(engine, work)
        worker = Worker(engine, [work], WorkerOptions(workers=1))
        worker.start()
        until(lambda: ran)
        with pytest.raises(DatabaseUnavailable, match=r"disk is full"):
            engine.send_many("q", [LARGE] * 100)
        filler.unlink()
        until(lambda: (row := engine.get_job(id)) and row.state == "succeeded", 30)
        worker.stop()
        assert worker.wait(30) == 0
        assert ran == [1]
        engine.close()

    def test_full_disk_during_an_upgrade(self, small_disk: Path) -> None:
        path = small_disk / "jobs.db"
        install_previous(f"sqlite:///{path}")
        filler = small_disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        with pytest.raises(DatabaseUnavailable, match=r"disk is full|writing .* failed|opened"):
            install(path)
        filler.unlink()
        with closing(SQLiteEngine(path)) as engine:
            assert engine.version() == PREVIOUS
            assert engine.install() == schema_version()


class TestNetworkFileSystem:
    """SQLite itself would open the file, and lose it as soon as two machines did."""

    def mounted_as(self, kind: str, directory: Path, file: Path) -> None:
        """A mount table in which the directory's own file system is of that kind."""
        device = directory.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        file.write_text(
            "22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n"
            f"30 1 {number} / / rw,relatime shared:1 master:2 - {kind} server:/export rw,vers=4.2\n"
        )

    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph"])
    def test_it_is_refused(
        self, tmp_path: Path, path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.mounted_as(kind, path.parent, tmp_path / "mounts")
        monkeypatch.setattr(sqlite_place, "_MOUNTS", str(tmp_path / "mounts"))
        for call in (send, install):
            with pytest.raises(InstallError, match=rf"network file system \({kind}\)"):
                call(path)
        with pytest.raises(InstallError, match="network file system"):
            install(path.with_name("new.db"))
        assert not path.with_name("new.db").exists()

    @pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs", "fuse.ntfs-3g", "9p", "virtiofs"])
    def test_others_are_not(
        self, tmp_path: Path, path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.mounted_as(kind, path.parent, tmp_path / "mounts")
        monkeypatch.setattr(sqlite_place, "_MOUNTS", str(tmp_path / "mounts"))
        send(path)

    def test_the_file_counts_and_not_the_link_to_it(
        self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shared = Path("/dev/shm")
        if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs a second file system")
        with tempfile.TemporaryDirectory(dir=shared) as directory:
            (tmp_path / "link.db").symlink_to(Path(directory) / "jobs.db")
            self.mounted_as("nfs4", Path(directory), tmp_path / "mounts")
            monkeypatch.setattr(sqlite_place, "_MOUNTS", str(tmp_path / "mounts"))
            with pytest.raises(InstallError, match="network file system"):
                install(tmp_path / "link.db")

    def test_a_system_that_does_not_tell(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_place, "_MOUNTS", "/nowhere/mountinfo")
        send(path)

    def test_the_real_mount_table_is_understood(self, tmp_path: Path) -> None:
        """The file system of this test is in it, and it is not one of the network."""
        mounts = Path("/proc/self/mountinfo")
        if not mounts.exists():
            pytest.skip("needs Linux")
        assert sqlite_place.network_file_system("/proc") is None
        device = os.stat("/proc").st_dev
        assert f" {os.major(device)}:{os.minor(device)} " in mounts.read_text()


class TestVersions:
    def test_newer_version_is_not_touched_and_both_are_named(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("update dever_installation set version = '9.1.0'")
        with pytest.raises(SchemaVersion, match=r"9\.1\.0.*" + schema_version()):
            install(path)
        # A newer schema that speaks our protocol is used.
        assert send(path) == 2

    def test_newer_protocol_is_refused_by_every_call(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "update dever_installation set version = '9.1.0', protocol_min = 7,"
                " protocol_max = 8"
            )
        with closing(SQLiteEngine(path)) as engine:
            for call in (
                lambda: engine.send("q", "1"),
                lambda: engine.claim("q", "w", 1),
                engine.jobs,
            ):
                with pytest.raises(SchemaVersion, match=r"9\.1\.0 \(protocol 7 to 8\)"):
                    call()


class TestUpgradeBesideOthers:
    @pytest.fixture
    def old(self, tmp_path: Path) -> Path:
        install_previous(f"sqlite:///{tmp_path}/old.db")
        return tmp_path / "old.db"

    def test_transaction_of_a_caller_is_waited_for_and_left_alone(
        self, old: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caller = sqlite3.connect(old, isolation_level=None)
        caller.execute("create table mine (n integer)")
        caller.execute("begin immediate")
        caller.execute("insert into mine values (1)")
        monkeypatch.setattr(sqlite_file, "_PATIENCE", 0.1)
        with pytest.raises(DatabaseUnavailable, match="locked"):
            install(old)
        assert caller.in_transaction
        caller.execute("rollback")
        assert install(old) == schema_version()
        assert caller.execute("select count(*) from mine").fetchone() == (0,)
        caller.close()

    def test_caller_who_reads_meanwhile_keeps_his_transaction(self, old: Path) -> None:
        with closing(SQLiteEngine(old)) as engine:
            engine.send("q", "1")
        caller = sqlite3.connect(old, isolation_level=None)
        caller.execute("begin")
        before = caller.execute("select version from dever_installation").fetchone()
        assert install(old) == schema_version()
        assert caller.in_transaction
        assert caller.execute("select version from dever_installation").fetchone() == before
        assert caller.execute("select count(*) from dever_jobs").fetchone() == (1,)
        caller.execute("commit")
        assert caller.execute("select version from dever_installation").fetchone() == (
            schema_version(),
        )
        caller.close()

    def test_connection_opened_before_enqueues_after(self, old: Path) -> None:
        """A caller's transaction that begins after the upgrade joins the new schema's triggers."""
        caller = sqlite3.connect(old, isolation_level=None)
        caller.execute("select count(*) from dever_jobs").fetchone()
        engine = SQLiteEngine(old)
        engine.send("q", "1")
        with closing(SQLiteEngine(old)) as installer:
            installer.install()
        caller.execute("begin")
        run_on(engine, caller, engine.send_steps("q", "2"))
        caller.execute("insert into dever_send (queue, payload) values ('q', '3')")
        assert caller.in_transaction
        caller.execute("rollback")
        assert len(engine.jobs()) == 1
        engine.close()
        caller.close()
