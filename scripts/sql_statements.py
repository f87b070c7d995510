"""The statements of an SQL script, each with the name of what it defines."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|\b[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\"[^\"]*\""
    r"|(?P<tag>\$\w*\$).*?(?P=tag)|;",
    re.DOTALL,
)
_COMMENT = re.compile(r"'(?:[^']|'')*'|--[^\n]*")
_NAMED = re.compile(
    r"(?P<verb>create(?: or replace)?|drop|comment on)(?: unique)?"
    r" (?P<kind>function|view|table|index|sequence|schema|trigger|column)(?: if exists)?"
    r" (?P<name>[\w.]+) ?(?P<rest>.*)",
    re.DOTALL,
)
_TRIGGER_EVENT = re.compile(
    r"(?:before |after |instead of )?(?:insert|delete|update)(?: of [\w, ]+?)? on (\w+)"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement without its semicolon; `comment` is the comment directly above it."""

    text: str
    comment: str

    @property
    def plain(self) -> str:
        """In one line, without comments: equal when only the layout differs."""
        return plain(self.text)

    @property
    def verb(self) -> str:
        found = _NAMED.match(self.plain)
        return found["verb"] if found else self.plain.split(" ", 1)[0]

    @property
    def key(self) -> str:
        """What it defines, drops or comments on, as `function dever.clock()`; where there is no
        such thing, the whole statement."""
        found = _NAMED.match(self.plain)
        if found is None:
            return self.plain
        key = f"{found['kind']} {found['name']}"
        if found["kind"] == "function":
            key += f"({_argument_types(found['rest'], named=found['verb'].startswith('create'))})"
        return f"comment on {key}" if found["verb"] == "comment on" else key

    @property
    def trigger_relation(self) -> str | None:
        """Which table or view a `create trigger` belongs to."""
        found = _TRIGGER_EVENT.search(self.plain)
        return found[1] if found and self.key.startswith("trigger ") else None


def plain(text: str) -> str:
    kept = _COMMENT.sub(lambda found: found[0] if found[0].startswith("'") else "", text)
    return " ".join(kept.split())


def postgres_statements(script: str) -> list[Statement]:
    """Knows literals, comments and dollar quotes; nothing of what the statements mean."""
    found: list[Statement] = []
    start = 0
    for token in _TOKEN.finditer(script):
        if token[0] == ";":
            found.append(_statement(script[start : token.start()]))
            start = token.end()
    if plain(script[start:]):
        raise ValueError(f"unfinished statement: {plain(script[start:])[:80]}")
    return found


def sqlite_statements(script: str) -> list[Statement]:
    """SQLite itself says where a statement ends, so that the bodies of triggers stay whole."""
    found: list[Statement] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and plain(pending) and sqlite3.complete_statement(pending):
            found.append(_statement(pending.strip().removesuffix(";")))
            pending = ""
    if plain(pending):
        raise ValueError(f"unfinished statement: {plain(pending)[:80]}")
    return found


def _statement(text: str) -> Statement:
    lines = text.strip().splitlines()
    above: list[str] = []
    while lines and (not lines[0].strip() or lines[0].lstrip().startswith("--")):
        line = lines.pop(0).strip()
        above = [*above, line] if line else []  # a blank line ends a comment
    return Statement("\n".join(lines), "\n".join(above))


def _argument_types(text: str, *, named: bool) -> str:
    """The types that identify a function: `(a text, out b integer)` has `text`."""
    pieces, depth, piece = [], 0, ""
    for character in text:
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if (depth == 1 and character == ",") or depth == 0:
            pieces.append(piece.lstrip("(").strip())
            piece = ""
        else:
            piece += character
        if depth == 0:
            break
    types: list[str] = []
    for argument in filter(None, pieces):
        if argument.startswith("out "):
            continue
        argument = re.sub(r"^(in|inout|variadic) ", "", argument)
        argument = re.split(r" default | ?:?= ?", argument)[0]
        types.append(argument.split(" ", 1)[1] if named else argument)
    return ", ".join(types)
