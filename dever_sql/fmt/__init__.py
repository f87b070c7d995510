"""`dever fmt`: job declarations in one canonical form (R1.9).

- Arguments stand in one order: `Jobs(database, queue)`, `job(retry, timeout, name)`,
  `cron(spec, retry, timeout, missed, name)`, the spec without its name.
- A cron spec has one space between its fields.
- The jobs of a file stand together, one declaration block, below the first of them.

Everything else is left as it is, comments above all; line lengths and quotes are the business of
ruff format or black, which this does not undo. Where a change could mean something else (a job
that needs what is defined in between, comments that belong to no argument), nothing is changed.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from pathlib import Path

from dever_sql.check.configuration import find_configuration
from dever_sql.check.jobs import JobFinder
from dever_sql.check.module import Module, read_module
from dever_sql.check.project import Project
from dever_sql.errors import DeverError

from .arguments import arrange_arguments
from .block import gather_jobs

__all__ = ["format_source"]

_WORDS = ("Jobs", "job(", "cron(")


def format_source(text: str, path: Path) -> str:
    """The text with canonical declarations. Raises SyntaxError for a text that is no Python.

    `path` is where the text belongs, so that names from other files can be followed.
    """
    if not any(word in text for word in _WORDS):
        return text
    formatted = arrange_arguments(text, _finder(text, path))
    formatted = gather_jobs(formatted, _finder(formatted, path))
    _verify(text, formatted, path)
    return formatted


def _finder(text: str, path: Path) -> tuple[Module, JobFinder]:
    configuration = find_configuration(path)
    project = Project(configuration.root, configuration.source)
    module = read_module(path.resolve(), text)
    project.use(module)
    return module, JobFinder(project)


def _verify(before: str, after: str, path: Path) -> None:
    """Nothing may get lost, whatever the text was."""
    same = sorted(_statements(before)) == sorted(_statements(after))
    if not same or sorted(_comments(before)) != sorted(_comments(after)):
        raise DeverError(
            f"{path} was left as it is: formatting it would have lost something",
            hint="please report the declaration that it holds",
        )


def _statements(text: str) -> list[str]:
    """The kinds and names of the statements of a module."""
    return [f"{type(node).__name__} {getattr(node, 'name', '')}" for node in ast.parse(text).body]


def _comments(text: str) -> Sequence[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]
