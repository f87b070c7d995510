"""Edits of source text at the positions of a syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_LINE: Final = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")


class Edit(NamedTuple):
    """Replace the bytes from `start` to `end`."""

    start: int
    end: int
    text: bytes


class Source:
    """A text as bytes, because a syntax tree counts columns in UTF-8."""

    def __init__(self, text: str) -> None:
        self.data = text.encode("utf-8", "surrogatepass")
        self.lines: list[int] = []
        """Where each line begins, and the end of the text."""
        position = 0
        while position < len(self.data):
            self.lines.append(position)
            found = _LINE.match(self.data, position)
            assert found is not None
            position = found.end()
        self.lines.append(len(self.data))

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> bytes:
        """The text of a node."""
        return self.data[self.start(node) : self.end(node)]

    def line(self, number: int) -> bytes:
        """A line by its number from 1, with its end."""
        return self.data[self.lines[number - 1] : self.lines[number]]

    def edited(self, edits: Iterable[Edit]) -> str:
        """The text with edits that do not overlap."""
        data = self.data
        for edit in sorted(edits, reverse=True):
            data = data[: edit.start] + edit.text + data[edit.end :]
        return data.decode("utf-8", "surrogatepass")
