"""`dever check`: the layout, role, declaration and enqueue rules, read from the source (R1, R3.5).

No program is imported. What static reading cannot see (`getattr` with a computed name, `partial`,
a helper that is handed a job) is refused when it runs where that is possible, else it is a limit:
`docs/roles.md` lists them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dever_sql.errors import InvalidArgument

from . import cache
from .configuration import Configuration, find_configuration
from .finding import Finding
from .layout import Tree

__all__ = ["Finding", "check"]


def check(path: Path, *, use_cache: bool = True) -> list[Finding]:
    """Check a file or everything below a directory; the findings by file and line.

    Raises InvalidArgument when there is nothing at `path`, SettingsError for a wrong
    `[tool.dever]`.
    """
    if not path.exists():
        raise InvalidArgument(f"there is no {path}", hint="name a file or a directory")
    configuration = find_configuration(path)
    files = sorted(source_files(path.resolve(), configuration))
    checked = [str(file) for file in files]
    key = _key(configuration)
    if use_cache:
        known = cache.load(configuration.root, key, checked)
        if known is not None:
            return known
    before = cache.stamps(checked)
    findings, read = _run(configuration, files)
    if use_cache:
        stamps = {**cache.stamps(read), **before}
        cache.store(configuration.root, key, checked, stamps, findings)
    return findings


def source_files(path: Path, configuration: Configuration) -> Iterator[Path]:
    """The Python files at or below `path` that are not excluded."""
    if path.is_file():
        yield path
        return
    tree = Tree(configuration.root)
    pending = [path]
    while pending:
        directory = pending.pop()
        for name in tree.directories(directory):
            if not _is_excluded(directory / name, configuration):
                pending.append(directory / name)
        for name in tree.files(directory):
            if not _is_excluded(directory / name, configuration):
                yield directory / name


def _is_excluded(path: Path, configuration: Configuration) -> bool:
    if not configuration.exclude:
        return False
    shown = path.relative_to(configuration.root).as_posix()
    return any(fnmatch(shown, pattern.rstrip("/")) for pattern in configuration.exclude)


def _run(configuration: Configuration, files: Sequence[Path]) -> tuple[list[Finding], list[Path]]:
    from .rules import run_rules  # the rules load the syntax trees; a cached answer needs none

    return run_rules(configuration, files)


def _key(configuration: Configuration) -> dict[str, Any]:
    """What the findings depend on beside the files: this code and its settings."""
    code = Path(__file__).parent
    changed = max((entry.stat().st_mtime_ns for entry in os.scandir(code)), default=0)
    return {
        "version": version("dever-sql"),
        "code": changed,
        "source": [str(each) for each in configuration.source],
        "exclude": list(configuration.exclude),
        "ignore": sorted(configuration.ignore),
    }
