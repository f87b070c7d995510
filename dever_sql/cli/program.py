"""Loading the program whose jobs a command works: a one-file script or a package."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from dever_sql import database
from dever_sql.errors import InvalidArgument
from dever_sql.settings import Settings, load_settings, program_settings, project_directory


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program. `script` is its file when it is a one-file script."""

    name: str
    script: Path | None
    module: ModuleType


def load_program(name: str) -> Program:
    """Import the script `tasks.py`, or the package or module `shop`, from the working directory.

    A script is imported under its stem, the name it also has when it runs itself. Of a package
    every `job.py` and `job/*.py` is imported. Raises InvalidArgument when there is no such file or
    module; an error inside the program's own code is raised as it is.
    """
    if name.endswith(".py"):
        return _load_script(Path(name))
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidArgument(
            f"{name!r} is neither a Python file nor a module",
            hint="name a file such as tasks.py, or a package such as shop",
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # a module that the program itself is missing
        raise InvalidArgument(
            f"there is no module {name} in {Path.cwd()}",
            hint="run it in the directory that holds the package, or name a file such as tasks.py",
        ) from None
    _import_job_sources(module)
    return Program(name=name, script=None, module=module)


def _load_script(path: Path) -> Program:
    if not path.is_file():
        raise InvalidArgument(f"there is no file {path}", hint="name a Python file that exists")
    stem = path.stem
    if not stem.isidentifier() or stem in sys.stdlib_module_names:
        raise InvalidArgument(
            f"{path.name} cannot be imported as {stem!r}",
            hint="rename it: letters, digits and underscores, and not the name of a Python module",
        )
    script = path.absolute()
    sys.path.insert(0, str(script.parent))
    module = importlib.import_module(stem)
    if module.__file__ is None or not script.samefile(module.__file__):
        raise InvalidArgument(
            f"another module is called {stem!r}, so {path.name} cannot be imported",
            hint="rename the file",
        )
    return Program(name=stem, script=script, module=module)


def _import_job_sources(module: ModuleType) -> None:
    paths = getattr(module, "__path__", None)
    if paths is None:
        return
    for found in pkgutil.walk_packages(paths, f"{module.__name__}."):
        parts = found.name.split(".")
        if parts[-1] == "job" or parts[-2] == "job":
            importlib.import_module(found.name)


def use_settings(program: Program, path: Path | None) -> tuple[Settings, Path]:
    """Have the process use the settings of `program`, or the file at `path`; what they are."""
    if path is None:
        settings, project = program_settings(Path.cwd(), program.script)
    else:
        settings, project = load_settings(path), project_directory(path)
    database.configure(settings, project)
    return settings, project
