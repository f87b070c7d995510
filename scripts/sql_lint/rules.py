"""The rules. Each takes the whole schema and yields where it is broken: (file, line, what, what to
do). A rule's docstring says what it asks for and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pglast import ast
from pglast.enums import (
    GrantTargetType,
    LockWaitPolicy,
    ObjectType,
    RoleSpecType,
    SQLValueFunctionOp,
    VariableSetKind,
)

from .source import Body, Function, Query, Schema, Statement, dotted, read, tokens, walk

SCHEMA = "dever"
SEARCH_PATH = ("pg_catalog", "pg_temp")

CLOCK_FUNCTIONS = {
    "now",
    "clock_timestamp",
    "statement_timestamp",
    "transaction_timestamp",
    "timeofday",
}
CLOCK_WORDS = {"now", "today", "tomorrow", "yesterday"}
CLOCK_VALUES = range(
    SQLValueFunctionOp.SVFOP_CURRENT_DATE, SQLValueFunctionOp.SVFOP_LOCALTIMESTAMP_N + 1
)
CLOCK_READERS = {
    "dever.clock": "it is the clock",
}
TIME_TYPES = {"date", "time", "timetz", "timestamp", "timestamptz"}

# A row found by the whole of one of these is one row: there is no order to get wrong.
UNIQUE_COLUMNS = {"id", "name", "one", "worker"}

ERROR = 21

Found = tuple[str, int, str, str]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    file: str
    line: int
    rule: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.what}, {self.remedy}"


Rule = Callable[[Schema], Iterator[Found]]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return add


def lint(files: Mapping[str, str]) -> list[Finding]:
    """All findings of all rules over the files, which are one schema in this order."""
    schema = read(files)
    findings = [
        Finding(file, line, name, what, remedy)
        for name, find in RULES.items()
        for file, line, what, remedy in find(schema)
    ]
    return sorted(set(findings))


# --- the head of a function -----------------------------------------------------------------------


@rule("search-path")
def search_path(schema: Schema) -> Iterator[Found]:
    """Every function pins search_path to pg_catalog, pg_temp: without it the caller's temporary
    table and the caller's operators win."""
    for function in schema.functions:
        paths = [
            tuple(value.val.sval for value in option.arg.args or ())
            for option in function.options("set")
            if option.arg.name == "search_path" and option.arg.kind == VariableSetKind.VAR_SET_VALUE
        ]
        if paths != [SEARCH_PATH]:
            yield at(function, "pins no search_path or another one", _PIN)


_PIN = "write: set search_path = pg_catalog, pg_temp"


@rule("language")
def language(schema: Schema) -> Iterator[Found]:
    """Every function states its language, sql or plpgsql, and has a body in dollars, which is what
    this lint can read."""
    for function in schema.functions:
        if function.language not in ("sql", "plpgsql"):
            yield at(
                function,
                f"has the language {function.language or 'nobody stated'}",
                "write: language plpgsql (or sql)",
            )
        elif function.statement.body is None:
            yield at(function, "has no body in dollar quotes", "write the body as $$ ... $$")
    for statement in schema.statements:
        if isinstance(statement.node, ast.DoStmt) and statement.body is None:
            yield (
                statement.file,
                statement.line,
                "a do block has no body in dollar quotes",
                "write the body as $$ ... $$",
            )


@rule("volatility")
def volatility(schema: Schema) -> Iterator[Found]:
    """Every function states whether it is immutable, stable or volatile; one that changes or locks
    rows is volatile."""
    yield from _stated(schema, "volatility", "volatile", "immutable, stable or volatile")


@rule("parallel")
def parallel(schema: Schema) -> Iterator[Found]:
    """Every function states its parallel safety; one that changes or locks rows is unsafe."""
    yield from _stated(schema, "parallel", "unsafe", "parallel safe, restricted or unsafe")


def _stated(schema: Schema, option: str, of_writers: str, choice: str) -> Iterator[Found]:
    for function in schema.functions:
        stated = [one.arg.sval for one in function.options(option)]
        if not stated:
            yield at(function, f"does not state its {option}", f"write: {choice}")
        elif stated != [of_writers] and any(map(_changes_rows, function.statement.queries)):
            yield at(
                function,
                f"changes or locks rows and calls itself {option} {stated[0]}",
                f"make it {of_writers}",
            )


def _changes_rows(query: Query) -> bool:
    changing = (ast.InsertStmt, ast.UpdateStmt, ast.DeleteStmt, ast.MergeStmt, ast.LockingClause)
    return any(isinstance(node, changing) for node in walk(query.node))


@rule("variable-conflict")
def variable_conflict(schema: Schema) -> Iterator[Found]:
    """A PL/pgSQL function that has parameters and looks at a table says #variable_conflict
    use_column: without it `on conflict (target, key)` fails at the first call."""
    for function in schema.functions:
        body = function.statement.body
        if (
            body is not None
            and body.language == "plpgsql"
            and function.node.parameters
            and any(map(_has_columns, body.queries))
            and not body.text.startswith("\n#variable_conflict use_column\n")
        ):
            yield at(
                function,
                "has parameters and looks at a table",
                "begin the body with: #variable_conflict use_column",
            )


def _has_columns(query: Query) -> bool:
    sources = (ast.RangeVar, ast.RangeFunction)
    return any(isinstance(node, sources) for node in walk(query.node))


@rule("parameter-name")
def parameter_name(schema: Schema) -> Iterator[Found]:
    """In a query over a table a parameter that is called like a column of some table is written
    function.parameter: alone, `where id = id` compares a column with itself and is every row."""
    columns = {
        element.colname
        for statement in schema.statements
        if isinstance(statement.node, ast.CreateStmt)
        for element in statement.node.tableElts or ()
        if isinstance(element, ast.ColumnDef)
    }
    for function in schema.functions:
        ambiguous = columns.intersection(function.inputs)
        body = function.statement.body
        for query in body.queries if body is not None else ():
            if not _has_columns(query):
                continue
            for node in walk(query.node):
                if (
                    isinstance(node, ast.ColumnRef)
                    and len(node.fields) == 1
                    and isinstance(node.fields[0], ast.String)
                    and node.fields[0].sval in ambiguous
                ):
                    name = node.fields[0].sval
                    yield (
                        function.statement.file,
                        query.line_of(node),
                        f"{name} may be the parameter of {function.name} or a column",
                        f"write {function.name.split('.')[-1]}.{name}, or the column's alias",
                    )


@rule("overload")
def overload(schema: Schema) -> Iterator[Found]:
    """No two functions of one name: a call with a literal becomes ambiguous (42725)."""
    seen: set[str] = set()
    for function in schema.functions:
        if function.name in seen:
            yield at(function, "is there twice", "give the second one a name of its own")
        seen.add(function.name)


# --- what belongs to everything that is created ---------------------------------------------------

_KINDS = {
    ast.CreateSchemaStmt: (ObjectType.OBJECT_SCHEMA, "schema"),
    ast.CreateFunctionStmt: (ObjectType.OBJECT_FUNCTION, "function"),
    ast.CreateStmt: (ObjectType.OBJECT_TABLE, "table"),
    ast.ViewStmt: (ObjectType.OBJECT_VIEW, "view"),
    ast.CreateSeqStmt: (ObjectType.OBJECT_SEQUENCE, "sequence"),
    ast.CompositeTypeStmt: (ObjectType.OBJECT_TYPE, "type"),
    ast.CreateEnumStmt: (ObjectType.OBJECT_TYPE, "type"),
    ast.CreateDomainStmt: (ObjectType.OBJECT_DOMAIN, "domain"),
}


def _created(statement: Statement) -> tuple[ObjectType, str, str] | None:
    """(kind, its word, full name) of what a statement creates."""
    node = statement.node
    kind = _KINDS.get(type(node))
    if kind is None:
        return None
    if isinstance(node, ast.CreateSchemaStmt):
        return *kind, node.schemaname
    if isinstance(node, ast.CreateFunctionStmt):
        return *kind, dotted(node.funcname)
    if isinstance(node, (ast.CreateEnumStmt, ast.CreateDomainStmt)):
        names = node.typeName if isinstance(node, ast.CreateEnumStmt) else node.domainname
        return *kind, dotted(names)
    relation = {ast.CreateStmt: "relation", ast.ViewStmt: "view", ast.CreateSeqStmt: "sequence"}
    return *kind, _full_name(getattr(node, relation.get(type(node), "typevar")))


def _full_name(relation: ast.RangeVar) -> str:
    return ".".join(part for part in (relation.schemaname, relation.relname) if part)


@rule("comment")
def comment(schema: Schema) -> Iterator[Found]:
    """Every schema, table, view, sequence, type and function has a comment."""
    commented = set()
    for statement in schema.statements:
        node = statement.node
        if isinstance(node, ast.CommentStmt) and node.comment and node.comment.strip():
            names = node.object
            if isinstance(names, ast.ObjectWithArgs):
                names = names.objname
            elif isinstance(names, ast.TypeName):
                names = names.names
            name = names.sval if isinstance(names, ast.String) else dotted(names)
            commented.add((node.objtype, name))
    for statement in schema.statements:
        created = _created(statement)
        if created is not None and created[0::2] not in commented:
            _, word, name = created
            yield (
                statement.file,
                statement.line,
                f"{word} {name} has no comment",
                f"write: comment on {word} {name} is '...'",
            )


_BLANKETS = {
    ObjectType.OBJECT_FUNCTION: "functions",
    ObjectType.OBJECT_TABLE: "tables",
    ObjectType.OBJECT_VIEW: "tables",
    ObjectType.OBJECT_SEQUENCE: "sequences",
}


@rule("revoke")
def revoke(schema: Schema) -> Iterator[Found]:
    """Nothing for PUBLIC: after the last create comes `revoke all on all functions (tables,
    sequences) in schema dever from public`, and no grant to public anywhere."""
    revoked: set[str] = set()
    for statement in reversed(schema.statements):
        node = statement.node
        created = _created(statement)
        if created is not None and _BLANKETS.get(created[0], created[1]) not in revoked:
            kind, word, name = created
            blanket = f"all {_BLANKETS[kind]} in schema {SCHEMA}" if kind in _BLANKETS else "it"
            if kind in _BLANKETS or kind == ObjectType.OBJECT_SCHEMA:
                yield (
                    statement.file,
                    statement.line,
                    f"{word} {name} is not taken from PUBLIC",
                    f"revoke all on {blanket} from public, below it",
                )
        if not isinstance(node, ast.GrantStmt):
            continue
        to_public = any(
            role.roletype == RoleSpecType.ROLESPEC_PUBLIC for role in node.grantees or ()
        )
        if node.is_grant and to_public:
            yield (
                statement.file,
                statement.line,
                "grants something to PUBLIC",
                "grant it to the roles of sql/roles.sql that need it",
            )
        # Without a list of privileges it is all of them.
        elif to_public and not node.privileges and not node.grant_option:
            objects = [each.sval for each in node.objects if isinstance(each, ast.String)]
            if objects == [SCHEMA]:
                everything = node.targtype == GrantTargetType.ACL_TARGET_ALL_IN_SCHEMA
                revoked.add(_BLANKETS[node.objtype] if everything else "schema")


# --- names ----------------------------------------------------------------------------------------


@rule("qualified-relation")
def qualified_relation(schema: Schema) -> Iterator[Found]:
    """Every relation is written with its schema, in bodies too. CTEs have none, nor have the
    aliases behind `for update of`."""
    for statement, query in _queries(schema):
        nodes = list(walk(query.node))
        names = {node.ctename for node in nodes if isinstance(node, ast.CommonTableExpr)}
        aliases = {
            id(relation)
            for node in nodes
            if isinstance(node, ast.LockingClause)
            for relation in node.lockedRels or ()
        }
        for node in nodes:
            if (
                isinstance(node, ast.RangeVar)
                and node.schemaname is None
                and node.relname not in names
                and id(node) not in aliases
            ):
                yield (
                    statement.file,
                    query.line_of(node),
                    f"relation {node.relname} has no schema",
                    f"write {SCHEMA}.{node.relname}",
                )


@rule("qualified-function")
def qualified_function(schema: Schema) -> Iterator[Found]:
    """Every function is written with its schema, where it is made and where it is called, those
    of pg_catalog too: views, defaults and do blocks have no pinned search_path, and a reader need
    not ask which of them he sees. Syntax (coalesce, greatest, extract, at time zone) has none."""
    for function in schema.functions:
        if not function.name.startswith(f"{SCHEMA}."):
            yield at(function, f"is not in {SCHEMA}", f"write {SCHEMA}.{function.name}")
    for statement, query in _queries(schema):
        for node in walk(query.node):
            if isinstance(node, ast.FuncCall) and len(node.funcname) == 1:
                yield (
                    statement.file,
                    query.line_of(node),
                    f"function {dotted(node.funcname)} has no schema",
                    f"write pg_catalog.{dotted(node.funcname)} or {SCHEMA}. in front",
                )


@rule("lower-case")
def lower_case(schema: Schema) -> Iterator[Found]:
    """Key words and names are in lower case, in bodies too; quoted names are as they are."""
    for file, text in schema.files.items():
        for kind, piece, line in tokens(text):
            if kind in ("keyword", "IDENT") and piece[0] != '"' and piece != piece.lower():
                yield file, line, f"{piece} is not in lower case", f"write {piece.lower()}"


# --- statements -----------------------------------------------------------------------------------


@rule("insert-columns")
def insert_columns(schema: Schema) -> Iterator[Found]:
    """Every INSERT names its columns: a column that is added later must not shift them."""
    for statement, query in _queries(schema):
        for node in walk(query.node):
            if isinstance(node, ast.InsertStmt) and not node.cols:
                yield (
                    statement.file,
                    query.line_of(node.relation),
                    f"insert into {_full_name(node.relation)} names no columns",
                    "write the list of columns",
                )


@rule("where")
def where(schema: Schema) -> Iterator[Found]:
    """Every UPDATE and DELETE has a WHERE, and nothing truncates."""
    for statement, query in _queries(schema):
        for node in walk(query.node):
            if isinstance(node, (ast.UpdateStmt, ast.DeleteStmt)) and node.whereClause is None:
                word = "update of" if isinstance(node, ast.UpdateStmt) else "delete from"
                yield (
                    statement.file,
                    query.line_of(node.relation),
                    f"{word} {_full_name(node.relation)} has no where",
                    "say which rows",
                )
            elif isinstance(node, ast.TruncateStmt):
                yield (
                    statement.file,
                    query.line,
                    "truncate takes the whole table and its strongest lock",
                    "delete the rows you mean",
                )


@rule("clock")
def clock(schema: Schema) -> Iterator[Found]:
    """Time comes from dever.clock() alone, which a test replaces; the functions that may read the
    server's clock are listed with their reasons (CLOCK_READERS)."""
    for statement, query in _queries(schema):
        created = _created(statement)
        if created is not None and created[2] in CLOCK_READERS:
            continue
        for node in walk(query.node):
            word = _clock_word(node)
            if word is not None:
                yield (
                    statement.file,
                    query.line_of(node),
                    f"{word} reads the server's clock",
                    "call dever.clock()",
                )


def _clock_word(node: ast.Node) -> str | None:
    if isinstance(node, ast.FuncCall):
        name = node.funcname[-1].sval
        return name if name in CLOCK_FUNCTIONS or _is_age_of_today(node) else None
    if isinstance(node, ast.SQLValueFunction) and node.op in CLOCK_VALUES:
        return node.op.name.removeprefix("SVFOP_").removesuffix("_N").lower()
    if (
        isinstance(node, ast.TypeCast)
        and isinstance(node.arg, ast.A_Const)
        and isinstance(node.arg.val, ast.String)
        and node.typeName.names[-1].sval in TIME_TYPES
        and node.arg.val.sval.strip().lower() in CLOCK_WORDS
    ):
        return f"the literal '{node.arg.val.sval}'"
    return None


def _is_age_of_today(call: ast.FuncCall) -> bool:
    return call.funcname[-1].sval == "age" and len(call.args or ()) == 1


@rule("instant-literal")
def instant_literal(schema: Schema) -> Iterator[Found]:
    """A timestamptz literal says its zone: without one the session's zone decides. Infinity and the
    words of the rule `clock` are not for this rule."""
    for statement, query in _queries(schema):
        for node in walk(query.node):
            if (
                isinstance(node, ast.TypeCast)
                and isinstance(node.arg, ast.A_Const)
                and isinstance(node.arg.val, ast.String)
                and node.typeName.names[-1].sval == "timestamptz"
            ):
                text = node.arg.val.sval
                if text[:1].isdigit() and not text.endswith(("+00", "Z")):
                    yield (
                        statement.file,
                        query.line_of(node),
                        f"the literal '{text}' means another instant in every zone",
                        "end it with +00",
                    )


@rule("backslash-literal")
def backslash_literal(schema: Schema) -> Iterator[Found]:
    """No backslash in a plain literal: standard_conforming_strings = off reads it as an escape."""
    for file, text in schema.files.items():
        for kind, piece, line in tokens(text):
            if kind == "SCONST" and piece.startswith("'") and "\\" in piece:
                yield file, line, f"the literal {piece} holds a backslash", "write it as E'...'"


@rule("lock-order")
def lock_order(schema: Schema) -> Iterator[Found]:
    """Rows are locked with skip locked, or in a stated order, or one at a time by a unique column
    (UNIQUE_COLUMNS): two sessions that lock several rows in two orders deadlock."""
    for statement, query in _queries(schema):
        for node in walk(query.node):
            if not isinstance(node, ast.SelectStmt) or not node.lockingClause:
                continue
            skips = all(
                lock.waitPolicy == LockWaitPolicy.LockWaitSkip for lock in node.lockingClause
            )
            if not skips and not node.sortClause and not _finds_one(node.whereClause):
                yield (
                    statement.file,
                    query.line_of(node.fromClause[0]),
                    "rows are locked in any order",
                    "write: order by id for update, or skip locked",
                )


def _finds_one(condition: ast.Node | None) -> bool:
    """Whether an equality of a unique column is among the conditions that must all hold."""
    if isinstance(condition, ast.BoolExpr) and condition.boolop == 0:
        return any(map(_finds_one, condition.args))
    return (
        isinstance(condition, ast.A_Expr)
        and condition.kind == 0
        and condition.name[-1].sval == "="
        and isinstance(condition.lexpr, ast.ColumnRef)
        and condition.lexpr.fields[-1].sval in UNIQUE_COLUMNS
    )


# --- PL/pgSQL -------------------------------------------------------------------------------------


@rule("errcode")
def errcode(schema: Schema) -> Iterator[Found]:
    """Every RAISE EXCEPTION has an errcode: clients map on the code, never on the text. A bare
    raise, which passes on what was caught, has none."""
    for statement, body in _bodies(schema):
        for kind, members, line in body.steps:
            if (
                kind == "PLpgSQL_stmt_raise"
                and members.get("elog_level") == ERROR
                and ("message" in members or "options" in members)
                and not any(
                    option["PLpgSQL_raise_option"]["opt_type"] == 0
                    for option in members.get("options", ())
                )
            ):
                yield (
                    statement.file,
                    line,
                    "raise exception has no errcode",
                    "write: using errcode = 'DV...'",
                )


@rule("when-others")
def when_others(schema: Schema) -> Iterator[Found]:
    """No `when others`: it hides the mistakes of the body as well as what it was meant for."""
    for statement, body in _bodies(schema):
        for kind, members, line in body.steps:
            if kind == "PLpgSQL_exception" and any(
                condition["PLpgSQL_condition"]["condname"] == "others"
                for condition in members.get("conditions", ())
            ):
                yield statement.file, line, "when others catches everything", "name the conditions"


@rule("dynamic-sql")
def dynamic_sql(schema: Schema) -> Iterator[Found]:
    """No SQL that is put together at run time: nothing can check it."""
    for statement, body in _bodies(schema):
        for kind, members, line in body.steps:
            if kind in ("PLpgSQL_stmt_dynexecute", "PLpgSQL_stmt_dynfors") or "dynquery" in members:
                yield statement.file, line, "SQL is put together at run time", "write it out"


# --- common ---------------------------------------------------------------------------------------


def at(function: Function, what: str, remedy: str) -> Found:
    statement = function.statement
    return statement.file, statement.line, f"{function.name} {what}", remedy


def _queries(schema: Schema) -> Iterator[tuple[Statement, Query]]:
    for statement in schema.statements:
        for query in statement.queries:
            yield statement, query


def _bodies(schema: Schema) -> Iterator[tuple[Statement, Body]]:
    for statement in schema.statements:
        if statement.body is not None:
            yield statement, statement.body
