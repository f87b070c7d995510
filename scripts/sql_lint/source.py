"""The source as a tree: files, their statements, and the queries in the bodies of functions.

A body is a string to PostgreSQL's grammar. Here every query and every expression in it is parsed
too, and knows its line in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pglast
from pglast import ast
from pglast.parser import scan

# Where PL/pgSQL's own parser puts an expression it has cut out of a body (its "parseMode").
_STATEMENT, _EXPRESSION, _ASSIGNMENTS = 0, 2, (3, 4, 5)
_DOLLAR_QUOTE = re.compile(r"\$\w*\$")
_ASSIGNED = re.compile(r":?=")


@dataclass(frozen=True, slots=True)
class Query:
    """One parsed statement or expression. `start` is where its text begins in the parsed text."""

    node: ast.Node
    text: str
    start: int
    line: int

    def line_of(self, node: ast.Node) -> int:
        location = getattr(node, "location", None)
        if location is None or location < self.start:
            return self.line
        return self.line + self.text.count("\n", self.start, location)


@dataclass(frozen=True, slots=True)
class Body:
    """What stands between the dollars of a function or a DO block."""

    language: str
    text: str
    line: int
    queries: list[Query]
    # PL/pgSQL statements as (kind, members, line), in the order of the text.
    steps: list[tuple[str, dict[str, Any], int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Statement:
    file: str
    line: int
    node: ast.Node
    query: Query
    body: Body | None

    @property
    def queries(self) -> list[Query]:
        return [self.query, *(self.body.queries if self.body is not None else [])]


@dataclass(frozen=True, slots=True)
class Function:
    """A `create function` statement, under the name it gives."""

    name: str
    statement: Statement
    node: ast.CreateFunctionStmt

    def options(self, name: str) -> list[ast.DefElem]:
        return [option for option in self.node.options or () if option.defname == name]

    @property
    def language(self) -> str | None:
        found = self.options("language")
        return found[0].arg.sval if found else None

    @property
    def inputs(self) -> list[str]:
        """Names of the parameters that a caller fills."""
        kinds = pglast.enums.FunctionParameterMode
        given = (kinds.FUNC_PARAM_DEFAULT, kinds.FUNC_PARAM_IN, kinds.FUNC_PARAM_INOUT)
        parameters = self.node.parameters or ()
        return [one.name for one in parameters if one.mode in given and one.name is not None]


@dataclass(frozen=True, slots=True)
class Schema:
    files: Mapping[str, str]
    statements: list[Statement]

    @property
    def functions(self) -> list[Function]:
        return [
            Function(dotted(each.node.funcname), each, each.node)
            for each in self.statements
            if isinstance(each.node, ast.CreateFunctionStmt)
        ]


def read(files: Mapping[str, str]) -> Schema:
    """Parses all files. Raises pglast.parser.ParseError where PostgreSQL's grammar would."""
    statements = [one for name, text in files.items() for one in _statements(name, text)]
    return Schema(files, statements)


def walk(node: object) -> Iterator[ast.Node]:
    """The node and everything below it."""
    if isinstance(node, (tuple, list)):
        for element in node:
            yield from walk(element)
    elif isinstance(node, ast.Node):
        yield node
        for slot in node:
            yield from walk(getattr(node, slot))


def dotted(names: tuple[ast.String, ...] | None) -> str:
    return ".".join(name.sval for name in names or ())


def _statements(file: str, text: str) -> Iterator[Statement]:
    parsed = pglast.parse_sql(text)
    for each in parsed:
        end = each.stmt_location + each.stmt_len if each.stmt_len else len(text)
        start = _first_token(text, each.stmt_location, end)
        line = 1 + text.count("\n", 0, start)
        query = Query(each.stmt, text, start, line)
        yield Statement(file, line, each.stmt, query, _body(each.stmt, text, start, end))


def _first_token(text: str, start: int, end: int) -> int:
    for token in scan(text[start:end]):
        if not token.name.endswith("COMMENT"):
            return start + token.start
    return start


def _body(node: ast.Node, text: str, start: int, end: int) -> Body | None:
    if isinstance(node, ast.CreateFunctionStmt):
        options = node.options or ()
    elif isinstance(node, ast.DoStmt):
        options = node.args or ()
    else:
        return None
    languages = [option.arg.sval for option in options if option.defname == "language"]
    language = languages[0] if languages else "plpgsql" if isinstance(node, ast.DoStmt) else "sql"
    places = [option.location for option in options if option.defname == "as"]
    opening = _DOLLAR_QUOTE.search(text, places[0], end) if places else None
    if opening is None:
        return None
    body = text[opening.end() : text.index(opening.group(), opening.end())]
    line = 1 + text.count("\n", 0, opening.end())
    if language == "sql":
        queries = [Query(one.stmt, body, 0, line) for one in pglast.parse_sql(body)]
        return Body(language, body, line, queries)
    if language != "plpgsql":
        return Body(language, body, line, [])
    # The parser of PL/pgSQL knows no schema but pg_catalog and public.
    (tree,) = pglast.parse_plpgsql(text[start:end].replace("dever.", "public."))
    queries, steps = [], []
    for kind, members, depth_line in _members(tree, 1):
        if kind == "PLpgSQL_expr":
            queries += _embedded(members, body, line, depth_line)
        elif kind.startswith(("PLpgSQL_stmt", "PLpgSQL_exception")):
            steps.append((kind, members, line + depth_line - 1))
    return Body(language, body, line, queries, steps)


def _members(tree: object, line: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Every (kind, members) of PL/pgSQL's tree with the line, in its body, of what holds it."""
    if isinstance(tree, list):
        for element in tree:
            yield from _members(element, line)
    elif isinstance(tree, dict):
        for kind, members in tree.items():
            if isinstance(members, dict):
                below = members.get("lineno", line)
                below = line if below < 1 else below
                if kind.startswith("PLpgSQL_"):
                    yield kind, members, below
                yield from _members(members, below)
            else:
                yield from _members(members, line)


def _embedded(members: dict[str, Any], body: str, line: int, step_line: int) -> Iterator[Query]:
    """The query of a PLpgSQL_expr. `step_line`: of its statement, counted from the body's first."""
    original = members["query"].replace("public.", "dever.")
    mode = members.get("parseMode", 0)
    if mode not in (_STATEMENT, _EXPRESSION, *_ASSIGNMENTS):
        return
    # The statement's line is where it begins; a query may begin some lines below.
    from_step = [0, *(found.end() for found in re.finditer("\n", body))][step_line - 1]
    head = re.split(r"\n|  ", original, maxsplit=1)[0]
    begin = max(body.find(head, from_step), from_step)
    # As in the file: PL/pgSQL's parser puts blanks where INTO was, line ends included.
    shown = body[begin : begin + len(original)]
    skipped = 0
    if mode in _ASSIGNMENTS:
        assigned = _ASSIGNED.search(original)
        skipped = assigned.end() if assigned is not None else 0
    prefix = "" if mode == _STATEMENT else "select "
    first = line + body.count("\n", 0, begin + skipped)
    for one in pglast.parse_sql(prefix + original[skipped:]):
        yield Query(one.stmt, prefix + shown[skipped:], 0, first)


def tokens(text: str, line: int = 1) -> Iterator[tuple[str, str, int]]:
    """(kind, text, line) of every token, those inside dollar quotes included; no comments.

    The kind is `keyword`, or the name that the grammar gives the token.
    """
    for token in scan(text):
        piece = text[token.start : token.end + 1]
        at = line + text.count("\n", 0, token.start)
        opening = _DOLLAR_QUOTE.match(piece)
        if token.name == "SCONST" and opening is not None:
            yield from tokens(piece[opening.end() : -opening.end()], at)
        elif not token.name.endswith("COMMENT"):
            yield ("keyword" if token.kind != "NO_KEYWORD" else token.name), piece, at
