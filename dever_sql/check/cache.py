"""The findings of the last run, for when no file has changed since.

One small file in `.dever_cache/` of the project. It is a help, never needed: what cannot be read
or written is left alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from .finding import Finding

DIRECTORY: Final = ".dever_cache"

Stamps: TypeAlias = dict[str, list[int]]
"""Size and time of change of each file that was read."""


def stamps(files: Iterable[str | Path]) -> Stamps:
    """The state of files now. A file that is gone has none."""
    found: Stamps = {}
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            continue
        found[str(file)] = [status.st_size, status.st_mtime_ns]
    return found


def load(root: Path, key: Mapping[str, Any], checked: Sequence[str]) -> list[Finding] | None:
    """The stored findings, when `key` is the same and no file was added, removed or changed."""
    try:
        stored = json.loads(_file(root).read_text(encoding="utf-8"))
        if stored["key"] != key or stored["checked"] != list(checked):
            return None
        if stamps(stored["stamps"]) != stored["stamps"]:
            return None
        return [Finding(**each) for each in stored["findings"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store(
    root: Path,
    key: Mapping[str, Any],
    checked: Sequence[str],
    read: Stamps,
    findings: Sequence[Finding],
) -> None:
    """Keep the findings of a run. `read`: the state of its files before they were read."""
    content = {
        "key": key,
        "checked": list(checked),
        "stamps": read,
        "findings": [dataclasses.asdict(each) for each in findings],
    }
    file = _file(root)
    try:
        file.parent.mkdir(exist_ok=True)
        (file.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        scratch = file.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(content), encoding="utf-8")
        scratch.replace(file)
    except OSError:
        return


def _file(root: Path) -> Path:
    return root / DIRECTORY / "check.json"
