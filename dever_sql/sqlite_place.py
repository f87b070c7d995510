"""Where a database file lies, and what is wrong with that place.

SQLite itself says little more than that it cannot open the file.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from .errors import DatabaseUnavailable, InstallError

_MOUNTS: Final = "/proc/self/mountinfo"
_NETWORK: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
    }
)
"""Types of file systems that several machines mount at once."""


def check_place(path: str) -> None:
    """Raises DatabaseUnavailable when no database can be at the path, however it is opened, and
    InstallError when none should be."""
    directory = os.path.dirname(path)
    try:
        if not stat.S_ISDIR(os.stat(directory).st_mode):
            raise NotADirectoryError
    except (FileNotFoundError, NotADirectoryError):
        raise DatabaseUnavailable(
            f"the directory of the database {path} does not exist", hint=f"mkdir -p {directory}"
        ) from None
    except PermissionError:
        raise _forbidden(path, directory) from None
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
        if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
            raise DatabaseUnavailable(
                f"{path} is a symbolic link into a directory that does not exist"
            ) from None
    except PermissionError:
        raise _forbidden(path, directory) from None
    except OSError as error:
        raise DatabaseUnavailable(f"there can be no database at {path}: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise DatabaseUnavailable(f"{path} is a directory, not a database file")
    if not stat.S_ISREG(mode):
        raise DatabaseUnavailable(f"{path} is not a regular file")
    kind = network_file_system(os.path.dirname(os.path.realpath(path)))
    if kind is not None:
        raise InstallError(
            f"the database {path} is on a network file system ({kind})",
            hint="SQLite's write-ahead log needs a disk of this machine: move the file there, or"
            " use PostgreSQL for several machines",
        )


def missing_right(path: str) -> str | None:
    """What this process may not do there though it has to; None when that is not the trouble."""
    real = os.path.realpath(path)
    directory = os.path.dirname(real)
    if not os.path.exists(real):
        if not os.access(directory, os.W_OK | os.X_OK):
            return f"the directory {directory} may not be written, so no database can be made there"
        return None
    if not os.access(real, os.R_OK):
        return f"the file {real} may not be read"
    if not os.access(real, os.W_OK):
        return f"the file {real} may not be written"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"the directory {directory} may not be written, where SQLite keeps its log"
    return None


def network_file_system(directory: str) -> str | None:
    """The type of the network file system that the directory is on; None for any other, and where
    the system does not tell (it does on Linux)."""
    try:
        device = os.stat(directory).st_dev
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            lines = mounts.readlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split(" ")[2:3] == [wanted]:
            kind = source.split(" ")[0]
            return kind if kind in _NETWORK else None
    return None


def _forbidden(path: str, directory: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"this process may not look into the directory of the database {path}",
        hint=f"the user that runs it needs the rights to read, write and search {directory}",
    )
