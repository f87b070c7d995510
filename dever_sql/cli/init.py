"""`dever init DIR`: a small project that runs as created."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from dever_sql.errors import InvalidArgument

from .parser import Commands
from .project_files import PROJECT_FILES


def add_command(commands: Commands) -> None:
    """Add `dever init`."""
    parser = commands.add(
        "init",
        help="write a small project that runs: settings, one domain, one job, a test",
        examples="  dever init shop\n  cd shop && dever worker greeting --until-idle",
        run=_init,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="a new or empty directory")


def _init(arguments: argparse.Namespace) -> int:
    directory: Path = arguments.directory
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise InvalidArgument(
                f"{directory} is not an empty directory; nothing was written",
                hint="name a directory that does not exist yet",
            )
        for name, content in PROJECT_FILES.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {error.filename}: {error.strerror}", hint="name another directory"
        ) from None
    print(
        f"wrote {len(PROJECT_FILES)} files to {directory}\n"
        "next:\n"
        f"  cd {shlex.quote(str(directory))}\n"
        "  python -m greeting Ada Grace\n"
        "  dever worker greeting --until-idle"
    )
    return 0
