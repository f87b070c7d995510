"""Which file plays which role in which domain (R1.1), from names and directories alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Role: TypeAlias = Literal["api", "app", "domain", "model", "port", "adapter", "job"]

ROLES: Final[tuple[Role, ...]] = ("api", "app", "domain", "model", "port", "adapter", "job")

# An api.py alone is often where a program puts its routes together.
_MAKES_A_DOMAIN: Final = frozenset(ROLES) - {"api"}

_NOT_SOURCE: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


@dataclass(frozen=True, slots=True)
class Place:
    """A file's role in its domain (a package directory); both None outside any domain."""

    domain: Path | None
    role: Role | None
    is_test: bool


class Tree:
    """The directories of a project, listed once each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listed: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._domains: dict[Path, bool] = {}

    def files(self, directory: Path) -> frozenset[str]:
        """The names of the Python files in a directory."""
        return self._list(directory)[0]

    def directories(self, directory: Path) -> frozenset[str]:
        """The names of the directories in a directory that may hold source."""
        return self._list(directory)[1]

    def has_python(self, directory: Path) -> bool:
        """Whether any Python file is in a directory or below it."""
        return bool(self.files(directory)) or any(
            self.has_python(directory / name) for name in self.directories(directory)
        )

    def place(self, file: Path) -> Place:
        """Where a file belongs. Of nested domains the innermost counts."""
        parts = file.relative_to(self.root).parts if file.is_relative_to(self.root) else ()
        is_test = _is_test(parts)
        directory = file.parent
        inner: str = file.stem
        while directory != self.root.parent and directory != directory.parent:
            if self.is_domain(directory):
                role = inner if inner in ROLES else None
                return Place(directory, role, is_test)
            inner = directory.name
            directory = directory.parent
        return Place(None, None, is_test)

    def is_domain(self, directory: Path) -> bool:
        """Whether a directory is a domain package: it holds an App, a job source and so on."""
        known = self._domains.get(directory)
        if known is None:
            known = self._domains[directory] = self._is_domain(directory)
        return known

    def _is_domain(self, directory: Path) -> bool:
        files = self.files(directory)
        is_package = "__init__.py" in files
        if not is_package and (directory == self.root or "pyproject.toml" in _names(directory)):
            return False  # the root of a project is no package, whatever lies in it
        if directory.name in ROLES and self.is_domain(directory.parent):
            return False  # the flat directory of a role
        if any(f"{role}.py" in files for role in _MAKES_A_DOMAIN):
            return True
        return is_package and any(
            self.files(directory / role) for role in self.directories(directory) & _MAKES_A_DOMAIN
        )

    def _list(self, directory: Path) -> tuple[frozenset[str], frozenset[str]]:
        key = str(directory)
        known = self._listed.get(key)
        if known is None:
            known = self._listed[key] = _entries(key)
        return known


def _entries(directory: str) -> tuple[frozenset[str], frozenset[str]]:
    files: set[str] = set()
    directories: set[str] = set()
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _NOT_SOURCE:
                    continue
                if entry.is_dir():
                    if not os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
                        directories.add(entry.name)
                elif entry.name.endswith(".py"):
                    files.add(entry.name)
    except OSError:  # not there, or not ours to read
        pass
    return frozenset(files), frozenset(directories)


def _names(directory: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return frozenset()


def _is_test(parts: tuple[str, ...]) -> bool:
    if not parts:
        return False
    name = parts[-1]
    return (
        name.startswith("test_")
        or name.endswith("_test.py")
        or name == "conftest.py"
        or any(part in ("test", "tests") for part in parts[:-1])
    )
