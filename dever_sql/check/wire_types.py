"""Whether the fields of a payload are wire-safe (R2.1), from their annotations as written.

The rules are those of `wire_schema`, which decides when the program runs; here they are read from
the syntax tree, with the same path of the field and the same advice. A type from outside the
project that no rule names is left to the run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from dever_sql.wire_schema import DEPTH_LIMIT, advice_by_name, scalar_names

from .module import Module, Scope, chain_of
from .project import Outside, Project, Symbol, Thing, is_product

_SCALARS: Final = scalar_names()
_ADVICE: Final = {
    **advice_by_name(),
    "typing.Dict": advice_by_name()["builtins.dict"],
    "typing.Mapping": advice_by_name()["builtins.dict"],
    "collections.abc.Mapping": advice_by_name()["builtins.dict"],
    "collections.abc.MutableMapping": advice_by_name()["builtins.dict"],
    "collections.OrderedDict": advice_by_name()["builtins.dict"],
    "collections.defaultdict": advice_by_name()["builtins.dict"],
    "typing.Set": advice_by_name()["builtins.set"],
    "typing.FrozenSet": advice_by_name()["builtins.set"],
    "collections.abc.Set": advice_by_name()["builtins.set"],
    "typing.Tuple": advice_by_name()["builtins.tuple"],
    "typing.Callable": advice_by_name()["collections.abc.Callable"],
    "typing.List": advice_by_name()["builtins.list"],
}
_NO_UNION: Final = "a union is not told apart on the wire; only T | None is"
_ENUMS: Final = frozenset({"enum.Enum", "enum.IntEnum", "enum.StrEnum"})
_FLAGS: Final = frozenset({"enum.Flag", "enum.IntFlag"})


class TypeFault:
    """A part of an annotation that is refused."""

    __slots__ = ("checker_only", "module", "node", "path", "why")

    def __init__(
        self, module: Module, node: ast.AST, path: str, why: str, *, checker_only: bool = False
    ) -> None:
        self.module = module
        self.node = node
        self.path = path
        self.why = why
        self.checker_only = checker_only
        """The type is imported for type checkers only."""


class PayloadChecker:
    """Walks records. Each record is reported once, whoever refers to it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._checked: set[Symbol] = set()

    def record(self, thing: Symbol) -> Iterator[TypeFault]:
        """The faults in a record and everything in it."""
        node = self._project.definition(thing)
        if isinstance(node, ast.ClassDef) and thing not in self._checked:
            self._checked.add(thing)
            yield from self._record(thing, node, node.name, (), 1)

    def is_record(self, thing: Thing) -> bool | None:
        """Whether a name stands for a class with `@record`; None when that cannot be seen."""
        if isinstance(thing, Outside):
            return False if thing.name in _SCALARS or thing.name in _ADVICE else None
        node = self._project.definition(thing)
        if not isinstance(node, ast.ClassDef) or not isinstance(thing, Symbol):
            return None
        return any(
            is_product(self._project.of_node(thing.module, decorator), "record")
            for decorator in node.decorator_list
        )

    def _record(
        self, thing: Symbol, node: ast.ClassDef, path: str, above: tuple[Symbol, ...], depth: int
    ) -> Iterator[TypeFault]:
        module = thing.module
        if thing in above:
            names = " -> ".join(each.path[-1] for each in [*above, thing])
            yield TypeFault(module, node, path, f"a record cannot contain itself ({names})")
            return
        if depth > DEPTH_LIMIT:
            yield TypeFault(
                module, node, path, f"the record nests deeper than {DEPTH_LIMIT} levels"
            )
            return
        place = self._project.place(module)
        if place.role == "model":
            why = f"{node.name} is private data of a model; write ModelId[...]"
            yield TypeFault(module, node, path, why)
            return
        for base in self._bases(module, node):
            yield from self._fields(base[0], base[1], path, (*above, thing), depth)
        yield from self._fields(module, node, path, (*above, thing), depth)

    def _bases(self, module: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
        """The classes of the project whose fields a record inherits."""
        for base in node.bases:
            for thing in self._project.of_node(module, base):
                definition = self._project.definition(thing)
                if not isinstance(thing, Symbol) or not isinstance(definition, ast.ClassDef):
                    continue
                if definition is not node:
                    yield from self._bases(thing.module, definition)
                    yield thing.module, definition

    def _fields(
        self,
        module: Module,
        node: ast.ClassDef,
        path: str,
        above: tuple[Symbol, ...],
        depth: int,
    ) -> Iterator[TypeFault]:
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign):
                continue
            if not isinstance(statement.target, ast.Name) or self._is_class_variable(
                module, statement.annotation
            ):
                continue
            field = f"{path}.{statement.target.id}"
            walk = _Walk(self, self._project, module, above)
            yield from walk.type(statement.annotation, field, depth)

    def _is_class_variable(self, module: Module, node: ast.expr) -> bool:
        head = node.value if isinstance(node, ast.Subscript) else node
        return (chain_of(head) or ("",))[-1] == "ClassVar"

    def nested(
        self, thing: Symbol, node: ast.ClassDef, path: str, above: tuple[Symbol, ...], depth: int
    ) -> Iterator[TypeFault]:
        """A record inside another one. Only its root names it, so that no fault comes twice."""
        if thing in above or thing not in self._checked:
            self._checked.add(thing)
            yield from self._record(thing, node, path, above, depth)


class _Walk:
    """One walk over the annotation of a field, in the file that declares the record."""

    def __init__(
        self,
        checker: PayloadChecker,
        project: Project,
        module: Module,
        above: tuple[Symbol, ...],
    ) -> None:
        self._checker = checker
        self._project = project
        self._module = module
        self._above = above

    def type(self, node: ast.expr, path: str, depth: int) -> Iterator[TypeFault]:
        if isinstance(node, ast.Constant):
            yield from self._constant(node, path, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from self._union(node, _union_parts(node), path, depth)
        elif isinstance(node, ast.Subscript):
            yield from self._subscript(node, path, depth)
        else:
            chain = chain_of(node)
            if chain is None:
                yield self._fault(node, path, "its type cannot be read; name it")
            else:
                yield from self._named(node, chain, path, depth)

    def _constant(self, node: ast.Constant, path: str, depth: int) -> Iterator[TypeFault]:
        if isinstance(node.value, str):
            try:
                written = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError):
                yield self._fault(node, path, "its type cannot be read; name it")
                return
            for each in ast.walk(written):
                ast.copy_location(each, node)
            yield from self.type(written, path, depth)
        elif node.value is None:
            yield self._fault(node, path, _ADVICE["None"])
        else:
            yield self._fault(node, path, "its type cannot be read; name it")

    def _union(
        self, node: ast.expr, parts: list[ast.expr], path: str, depth: int
    ) -> Iterator[TypeFault]:
        rest = [part for part in parts if not _is_none(part)]
        if len(rest) != 1 or len(parts) != 2:
            yield self._fault(node, path, _NO_UNION)
        else:
            yield from self.type(rest[0], path, depth)

    def _subscript(self, node: ast.Subscript, path: str, depth: int) -> Iterator[TypeFault]:
        chain = chain_of(node.value)
        things = [] if chain is None else self._things(chain)
        names = {thing.name for thing in things if isinstance(thing, Outside)}
        arguments = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if is_product(things, "ModelId"):
            yield from self._model(arguments[0], path)
        elif names & {"builtins.list", "typing.List"}:
            if len(arguments) == 1:
                yield from self.type(arguments[0], f"{path}[]", depth + 1)
            else:
                yield self._fault(node, path, _ADVICE["builtins.list"])
        elif names & {"typing.Optional"}:
            yield from self._union(node, [arguments[0], ast.Constant(value=None)], path, depth)
        elif names & {"typing.Union"}:
            yield from self._union(node, arguments, path, depth)
        else:
            advice = next((_ADVICE[name] for name in sorted(names) if name in _ADVICE), None)
            if advice is not None:
                yield self._fault(node, path, advice)

    def _model(self, node: ast.expr, path: str) -> Iterator[TypeFault]:
        chain = chain_of(node)
        things = [] if chain is None else self._things(chain)
        names = {thing.name for thing in things if isinstance(thing, Outside)}
        if isinstance(node, ast.Subscript) or names & (_SCALARS | _ADVICE.keys()):
            why = "ModelId needs the class of a model: ModelId[Order]"
            yield self._fault(node, path, why)
        elif chain is not None:
            yield from self._missing(node, chain, path)

    def _named(
        self, node: ast.expr, chain: tuple[str, ...], path: str, depth: int
    ) -> Iterator[TypeFault]:
        missing = list(self._missing(node, chain, path))
        if missing:
            yield from missing
            return
        for thing in self._things(chain):
            if isinstance(thing, Outside):
                if is_product([thing], "Json") or thing.name in _SCALARS:
                    continue
                if is_product([thing], "ModelId"):
                    yield self._fault(node, path, _ADVICE[f"{_MODEL_ID}"])
                elif is_product([thing], "Secret"):
                    yield self._fault(node, path, _ADVICE[f"{_SECRET}"])
                elif thing.name in _ADVICE:
                    yield self._fault(node, path, _ADVICE[thing.name])
            else:
                yield from self._declared(node, thing, path, depth)

    def _declared(self, node: ast.expr, thing: Thing, path: str, depth: int) -> Iterator[TypeFault]:
        definition = self._project.definition(thing)
        if isinstance(thing, Symbol) and not isinstance(definition, ast.ClassDef):
            yield from self._alias(thing, path, depth)
            return
        if not isinstance(definition, ast.ClassDef) or not isinstance(thing, Symbol):
            return
        if self._checker.is_record(thing):
            for fault in self._checker.nested(thing, definition, path, self._above, depth + 1):
                # What is wrong in another file is told at the field that leads there.
                same = fault.module is self._module
                yield fault if same else self._fault(node, fault.path, fault.why)
            return
        bases = self._base_names(thing, definition, 0)
        if bases & _FLAGS:
            name = definition.name
            why = f"the values of {name} must be all text or all integers"
            yield self._fault(node, path, why)
        elif bases & _ENUMS:
            if not _is_plain_enum(definition):
                why = f"the values of {definition.name} must be all text or all integers"
                yield self._fault(node, path, why)
        elif not bases:
            name = definition.name
            why = (
                f"{name} is not a wire-safe type; refer to a model by ModelId[{name}], "
                "declare data with @record"
            )
            yield self._fault(node, path, why)

    def _alias(self, thing: Symbol, path: str, depth: int) -> Iterator[TypeFault]:
        """`Names = list[str]`: the type is what stands behind the name."""
        bindings = self._project.bindings(thing)
        values = [each.value for each in bindings if each.value is not None]
        if len(values) == 1 and isinstance(values[0], ast.Subscript | ast.BinOp):
            walk = _Walk(self._checker, self._project, thing.module, self._above)
            yield from walk.type(values[0], path, depth)

    def _base_names(self, thing: Symbol, node: ast.ClassDef, depth: int) -> set[str]:
        """The outside classes that a class descends from; empty when it stands alone."""
        names: set[str] = set()
        if depth > DEPTH_LIMIT:
            return names
        for base in node.bases:
            things = self._project.of_node(thing.module, base)
            if not things:
                names.add("?")
            for each in things:
                definition = self._project.definition(each)
                if isinstance(each, Outside):
                    names.add(each.name)
                elif isinstance(each, Symbol) and isinstance(definition, ast.ClassDef):
                    names |= self._base_names(each, definition, depth + 1)
        return names

    def _missing(self, node: ast.expr, chain: tuple[str, ...], path: str) -> Iterator[TypeFault]:
        """A type that is not there when the program runs."""
        scope: Scope = self._module.scope
        if self._project.is_checker_only(self._module, scope, chain[0]):
            why = f"{chain[0]} is imported for the type checker only"
            yield TypeFault(self._module, node, path, why, checker_only=True)
        elif not self._project.is_bound(self._module, scope, chain[0]):
            yield self._fault(node, path, f"its type {'.'.join(chain)} is not defined")

    def _things(self, chain: tuple[str, ...]) -> list[Thing]:
        return self._project.of_chain(self._module, self._module.scope, chain)

    def _fault(self, node: ast.AST, path: str, why: str) -> TypeFault:
        return TypeFault(self._module, node, path, why)


_MODEL_ID: Final = "dever_sql.record.ModelId"
_SECRET: Final = "dever_sql.secret.Secret"


def _union_parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_union_parts(node.left), *_union_parts(node.right)]
    return [node]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_plain_enum(node: ast.ClassDef) -> bool:
    """False when literal values show that an enum mixes kinds or holds something else."""
    kinds: set[type] = set()
    for statement in node.body:
        if isinstance(statement, ast.Assign) and all(
            isinstance(target, ast.Name) and not target.id.startswith("_")
            for target in statement.targets
        ):
            value = statement.value
            if isinstance(value, ast.UnaryOp):
                value = value.operand
            if isinstance(value, ast.Constant):
                kinds.add(type(value.value))
            elif isinstance(value, ast.Tuple | ast.List | ast.Dict | ast.Set):
                return False
    return kinds <= {str} or kinds <= {int}
