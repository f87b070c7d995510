"""`dever settings`: check the settings file, or print its JSON Schema for an editor (R8.3)."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from dever_sql.settings import SETTINGS_FILE, Settings, load_settings

from .output import print_json
from .parser import Commands


def add_command(commands: Commands) -> None:
    """Add `dever settings` and its subcommands."""
    settings = commands.add(
        "settings",
        help="check the settings file, or print its JSON Schema for an editor",
        examples="  dever settings check\n  dever settings schema > config/setting.schema.json",
        run=None,
    )
    actions = Commands(settings, title="actions")
    check = actions.add(
        "check",
        help="check a settings file; exit 2 and every fault by its path when it is refused",
        examples="  dever settings check\n  dever settings check deploy/setting.json",
        run=_check,
    )
    check.add_argument("path", metavar="PATH", nargs="?", type=Path, default=SETTINGS_FILE)
    actions.add(
        "schema",
        help="print the JSON Schema of the settings file",
        examples="  dever settings schema > config/setting.schema.json",
        run=_schema,
    )


def _check(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.path)
    print(f"{arguments.path}: fine; mode {settings.runtime.mode}")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print_json(msgspec.json.schema(Settings))
    return 0
