"""The order of arguments in job declarations, and the spacing of cron specs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dever_sql.check.jobs import JobFinder
from dever_sql.check.module import Module

from .text import Edit, Source

_JOBS: Final = ("database", "queue")
_JOB: Final = ("retry", "timeout", "name")
_CRON: Final = ("spec", "retry", "timeout", "missed", "name")

_LITERAL: Final = re.compile(rb"(\"\"\"|'''|\"|')(.*)\1", re.DOTALL)
_AFTER: Final = re.compile(rb"\s*(,?)\s*(#[^\r\n]*)?\s*")


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument: its name (None for one that is given by position), place and new text."""

    name: str | None
    start: int
    end: int
    first_line: int
    last_line: int
    text: bytes


def arrange_arguments(text: str, found: tuple[Module, JobFinder]) -> str:
    """The text with the arguments of its declarations in order."""
    module, jobs = found
    source = Source(text)
    edits: list[Edit] = []
    for binding in jobs.jobs_bindings(module):
        if isinstance(binding.value, ast.Call):
            edits += _arranged(source, binding.value, _JOBS, {})
    for declaration in jobs.declarations(module):
        call = declaration.call
        if call is not None and declaration.kind == "job":
            edits += _arranged(source, call, _JOB, {})
        elif call is not None:
            spec = call.args[0] if call.args else declaration.keyword("spec")
            spaced = {} if spec is None else {spec: _spaced(source, spec)}
            edits += _arranged(source, call, _CRON, spaced)
    return source.edited(edits)


def _spaced(source: Source, spec: ast.expr) -> bytes:
    """A literal spec with single spaces; anything else as it is."""
    text = source.of(spec)
    literal = _LITERAL.fullmatch(text)
    if literal is None or not isinstance(spec, ast.Constant) or not isinstance(spec.value, str):
        return text
    quote, inner = literal.groups()
    if inner.decode("utf-8", "surrogatepass") != spec.value or not spec.value.isprintable():
        return text
    return quote + b" ".join(inner.split()) + quote


def _arranged(
    source: Source, call: ast.Call, order: Sequence[str], texts: Mapping[ast.expr, bytes]
) -> Iterator[Edit]:
    if any(each.arg is None for each in call.keywords) or any(
        isinstance(each, ast.Starred) for each in call.args
    ):
        return  # what `**settings` holds is not known here
    arguments = list(_arguments(source, call, texts))
    wanted = _in_order(arguments, order)
    if [each.text for each in wanted] == [source.data[each.start : each.end] for each in arguments]:
        return
    if not _has_comment(source, call):
        for slot, argument in zip(arguments, wanted, strict=True):
            yield Edit(slot.start, slot.end, argument.text)
    elif _is_one_per_line(source, call, arguments):
        yield _reordered_lines(source, arguments, wanted)
    elif wanted == arguments:
        for argument in arguments:
            yield Edit(argument.start, argument.end, argument.text)


def _arguments(
    source: Source, call: ast.Call, texts: Mapping[ast.expr, bytes]
) -> Iterator[_Argument]:
    for value in call.args:
        text = texts.get(value, source.of(value))
        yield _argument(source, None, value, text)
    for keyword in sorted(call.keywords, key=source.start):
        value = texts.get(keyword.value, source.of(keyword.value))
        text = source.of(keyword)
        head = text[: len(text) - len(source.of(keyword.value))]
        is_spec = keyword.value in texts and not call.args
        yield _argument(source, keyword.arg, keyword, value if is_spec else head + value)


def _argument(
    source: Source, name: str | None, node: ast.expr | ast.keyword, text: bytes
) -> _Argument:
    assert node.end_lineno is not None
    return _Argument(name, source.start(node), source.end(node), node.lineno, node.end_lineno, text)


def _in_order(arguments: Sequence[_Argument], order: Sequence[str]) -> list[_Argument]:
    """By position first, then as in `order`, then what nobody knows."""

    def rank(argument: _Argument) -> int:
        if argument.name is None:
            return -1
        return order.index(argument.name) if argument.name in order else len(order)

    return sorted(arguments, key=rank)


def _has_comment(source: Source, call: ast.Call) -> bool:
    from io import StringIO
    from tokenize import COMMENT, TokenError, generate_tokens

    text = source.of(call).decode("utf-8", "surrogatepass")
    try:
        return any(token.type == COMMENT for token in generate_tokens(StringIO(text).readline))
    except (TokenError, SyntaxError):
        return True


def _is_one_per_line(source: Source, call: ast.Call, arguments: Sequence[_Argument]) -> bool:
    """Whether each argument has lines of its own, between those of the parentheses."""
    last = call.func.end_lineno
    for argument in arguments:
        before = source.data[source.lines[argument.first_line - 1] : argument.start]
        if argument.first_line == last or before.strip():
            return False
        after = source.data[argument.end : source.lines[argument.last_line]]
        if _AFTER.fullmatch(after) is None:
            return False
        last = argument.last_line
    return last != call.end_lineno


def _reordered_lines(
    source: Source, arguments: Sequence[_Argument], wanted: Sequence[_Argument]
) -> Edit:
    """Whole lines change places: comments above and beside an argument go with it."""
    chunks: dict[int, bytes] = {}
    first = _first_own_line(source, arguments[0])
    line = first
    for argument in arguments:
        head = source.data[source.lines[line - 1] : argument.start]
        after = source.data[argument.end : source.lines[argument.last_line]]
        comma = _AFTER.fullmatch(after)
        tail = after if comma is not None and comma[1] else b"," + after
        chunks[argument.start] = head + argument.text + tail
        line = argument.last_line + 1
    start, end = source.lines[first - 1], source.lines[arguments[-1].last_line]
    return Edit(start, end, b"".join(chunks[argument.start] for argument in wanted))


def _first_own_line(source: Source, argument: _Argument) -> int:
    """The first of the comment lines that stand above the first argument."""
    line = argument.first_line
    while line > 1 and source.line(line - 1).lstrip().startswith(b"#"):
        line -= 1
    return line
