"""`[tool.dever]` in pyproject.toml: how a project is checked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from dever_sql.errors import SettingsError

from .catalogue import RULES

_KEYS: Final = frozenset({"source", "exclude", "ignore"})


@dataclass(frozen=True, slots=True)
class Configuration:
    """`source`: directories that imports start from, beside the root (default `src`).
    `exclude`: files and directories that are not checked, as glob patterns from the root.
    `ignore`: codes of rules that are off."""

    root: Path
    source: tuple[Path, ...] = ()
    exclude: tuple[str, ...] = ()
    ignore: frozenset[str] = frozenset()


def find_configuration(path: Path) -> Configuration:
    """The configuration for what is at `path`: of the nearest pyproject.toml above it.

    Without one, the root is the directory that the topmost package lies in.
    Raises SettingsError for a table that is wrong.
    """
    start = path.resolve()
    directory = start if start.is_dir() else start.parent
    for each in (directory, *directory.parents):
        if (each / "pyproject.toml").is_file():
            return _read(each)
    while (directory / "__init__.py").is_file() and directory != directory.parent:
        directory = directory.parent
    return Configuration(directory, _existing(directory, ["src"]))


def _read(root: Path) -> Configuration:
    file = root / "pyproject.toml"
    try:
        tables: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from None
    table = tables.get("tool", {}).get("dever", {})
    if not isinstance(table, dict):
        raise SettingsError("tool.dever in pyproject.toml must be a table")
    settings = cast("dict[str, object]", table)
    for unknown in sorted(settings.keys() - _KEYS):
        raise SettingsError(
            f"tool.dever.{unknown} in pyproject.toml is not a known setting",
            hint=f"known: {', '.join(sorted(_KEYS))}",
        )
    ignore = _texts(settings, "ignore", [])
    for code in ignore:
        if code not in RULES:
            raise SettingsError(
                f"tool.dever.ignore in pyproject.toml names {code}, which is no rule",
                hint="dever check --explain shows the rules",
            )
    source = _existing(root, _texts(settings, "source", ["src"]))
    exclude = tuple(_texts(settings, "exclude", []))
    return Configuration(root, source, exclude, frozenset(ignore))


def _texts(settings: dict[str, object], name: str, default: list[str]) -> list[str]:
    value = settings.get(name, default)
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, str) for item in items):
        raise SettingsError(f"tool.dever.{name} in pyproject.toml must be a list of texts")
    return [str(item) for item in items]


def _existing(root: Path, names: list[str]) -> tuple[Path, ...]:
    return tuple(root / name for name in names if (root / name).is_dir())
