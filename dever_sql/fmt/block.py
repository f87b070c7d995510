"""One declaration block: the jobs of a file stand together, below the first of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dever_sql.check.jobs import JobFinder
from dever_sql.check.module import FunctionNode, Module

from .text import Edit, Source

# What runs nothing of its own that a job could depend on.
_INERT: Final = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.Import,
    ast.ImportFrom,
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A top-level statement with the comments right above it; lines from 1, the last included."""

    node: ast.stmt
    first: int
    last: int


def gather_jobs(text: str, found: tuple[Module, JobFinder]) -> str:
    """The text with later jobs moved up to the first ones, in their order, where that is safe."""
    module, finder = found
    jobs = {each.function for each in finder.declarations(module) if each.is_top}
    source = Source(text)
    parts = [_part(source, node) for node in module.tree.body]
    if _share_lines(parts):
        return text
    order = _gathered(parts, jobs, _reads_annotations(module))
    if order == parts:
        return text
    return _rewritten(source, parts, order)


def _part(source: Source, node: ast.stmt) -> _Part:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    while first > 1 and source.line(first - 1).startswith(b"#"):
        first -= 1
    assert node.end_lineno is not None
    return _Part(node, first, node.end_lineno)


def _share_lines(parts: Sequence[_Part]) -> bool:
    return any(a.last >= b.first for a, b in pairwise(parts))


def _gathered(
    parts: Sequence[_Part], jobs: set[FunctionNode], reads_annotations: bool
) -> list[_Part]:
    """The parts with every job that may move right behind the jobs before it."""
    order = list(parts)
    place: int | None = None  # behind the block so far
    for part in parts:
        here = order.index(part)
        if part.node not in jobs:
            continue
        node = part.node
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if place is None or here == place:
            place = here + 1
        elif _may_pass(node, [each.node for each in order[place:here]], reads_annotations):
            order.insert(place, order.pop(here))
            place += 1
        else:
            place = here + 1
    return order


def _may_pass(node: FunctionNode, others: Sequence[ast.stmt], reads_annotations: bool) -> bool:
    """Whether a job may be defined before these statements."""
    if not all(isinstance(each, _INERT) for each in others):
        return False
    needed: list[ast.AST] = [*node.decorator_list, *node.args.defaults]
    if reads_annotations:
        needed += [each.annotation for each in node.args.args if each.annotation is not None]
        needed += [node.returns] if node.returns is not None else []
    read = {each.id for root in needed for each in ast.walk(root) if isinstance(each, ast.Name)}
    bound = {name for each in others for name in _bound(each)}
    return not bound & (read | {node.name}) and "*" not in bound


def _bound(node: ast.stmt) -> Iterable[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield (alias.asname or alias.name).partition(".")[0]
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def _reads_annotations(module: Module) -> bool:
    return not any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in module.tree.body
    )


def _rewritten(source: Source, parts: Sequence[_Part], order: Sequence[_Part]) -> str:
    """The statements in their new order. What stands between two statements (blank lines, comments
    of nobody) stays before the statement that it stood before."""
    gaps: dict[int, bytes] = {}
    end = 0
    for part in parts:
        gaps[part.first] = source.data[end : source.lines[part.first - 1]]
        end = source.lines[part.last]
    newline = b"\r\n" if b"\r\n" in source.data else b"\n"
    pieces: list[bytes] = []
    before: _Part | None = None
    for part in order:
        gap = gaps[part.first]
        moved = before is not None and parts[max(parts.index(part) - 1, 0)] is not before
        pieces.append(_apart(gap, newline) if moved else gap)
        body = source.data[source.lines[part.first - 1] : source.lines[part.last]]
        pieces.append(body if body.endswith((b"\n", b"\r")) else body + newline)
        before = part
    tail = source.data[end:]
    start, stop = 0, len(source.data)
    return source.edited([Edit(start, stop, b"".join(pieces) + tail)])


def _apart(gap: bytes, newline: bytes) -> bytes:
    """A gap that begins with two blank lines, as there are around a function."""
    return newline * 2 + gap.lstrip(b"\r\n") if gap.strip() else newline * 2
