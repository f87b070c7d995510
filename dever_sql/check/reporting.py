"""Collects findings while the rules run."""

from __future__ import annotations

import ast
from pathlib import Path

from .finding import Finding
from .module import Module


class Report:
    """Findings of one run. One place gets one finding of a code."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._findings: dict[tuple[str, int, int, str], Finding] = {}

    @property
    def findings(self) -> list[Finding]:
        """Everything that was found, by file, line and column."""
        return sorted(self._findings.values())

    def add(self, module: Module, node: ast.AST, code: str, message: str, hint: str) -> None:
        """Report something at a node of a module."""
        line: int = getattr(node, "lineno", 1)
        column = module.column(line, getattr(node, "col_offset", 0))
        self.add_at(module.path, line, column, code, message, hint)

    def add_at(
        self, path: Path, line: int, column: int, code: str, message: str, hint: str
    ) -> None:
        """Report something at a place in a file."""
        shown = self.shown(path)
        finding = Finding(shown, line, column, code, message, hint)
        self._findings.setdefault((shown, line, column, code), finding)

    def shown(self, path: Path) -> str:
        """A path as it is printed: relative to the project where it is inside."""
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)
