"""A server that knows the extension, without a file of its installation being touched.

`make install DESTDIR=...` puts the files where the server would look, below a private directory.
From 18 on `extension_control_path` names that place. An older server finds its share directory from
where its program lies, so it runs from a mirror: the program copied, the rest linked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postgres_server import SETTINGS, Cluster, running_cluster

from dever_sql.sql_files import sql_directory

# These look for the share directory; they follow links, so they must be copies.
COPIED = ("postgres", "initdb", "pg_ctl")


def major_version(bindir: Path) -> int:
    line = subprocess.run(
        [bindir / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout
    return int(line.split()[2].partition(".")[0])


def configured(bindir: Path, what: str) -> Path:
    """A directory of the server's installation, by its option of pg_config."""
    return Path(
        subprocess.run(
            [bindir / "pg_config", what], check=True, capture_output=True, text=True
        ).stdout.strip()
    )


def below(directory: Path, path: Path) -> Path:
    """Where an absolute path lies under DESTDIR."""
    return directory / path.relative_to("/")


def run_make(target: str, bindir: Path, directory: Path) -> None:
    """`make install` or `make uninstall` of the checkout with a directory as DESTDIR."""
    command = ["make", "-C", sql_directory("postgresql"), target]
    subprocess.run(
        [*command, f"PG_CONFIG={bindir / 'pg_config'}", f"DESTDIR={directory}"],
        check=True,
        capture_output=True,
        text=True,
    )


@contextmanager
def extension_cluster(bindir: Path) -> Iterator[Cluster]:
    """A running server that can `create extension dever`."""
    directory = Path(tempfile.mkdtemp(prefix="dever-extension-"))
    try:
        # The server runs as another user when the tests run as root.
        directory.chmod(0o755)
        run_make("install", bindir, directory)
        share = below(directory, configured(bindir, "--sharedir"))
        if major_version(bindir) >= 18:
            path = {"extension_control_path": f"{share}:$system"}
            with running_cluster({**SETTINGS, **path}, bindir) as cluster:
                yield cluster
        else:
            _mirror(bindir, directory)
            with running_cluster(SETTINGS, below(directory, bindir.resolve())) as cluster:
                yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _mirror(bindir: Path, directory: Path) -> None:
    programs = below(directory, bindir.resolve())
    programs.mkdir(parents=True)
    for program in bindir.iterdir():
        if program.name in COPIED:
            shutil.copy2(program, programs)
        else:
            (programs / program.name).symlink_to(program)
    libraries = configured(bindir, "--pkglibdir")
    below(directory, libraries).symlink_to(libraries)
    share = configured(bindir, "--sharedir")
    for source in (share, share / "extension"):
        target = below(directory, source)
        for entry in os.listdir(source):
            if not (target / entry).exists():
                (target / entry).symlink_to(source / entry)
