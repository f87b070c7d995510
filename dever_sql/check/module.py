"""What one source file binds, uses and calls, read from its syntax tree.

Nothing here knows about other files: names are left as written, with the scope they stand in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
BindingKind: TypeAlias = Literal["module", "from", "alias", "value", "definition", "opaque"]


@dataclass(frozen=True, slots=True)
class ImportedFrom:
    """`from <dots><module> import name`; `import a.b` has no name. Level 0 is absolute."""

    module: str
    level: int
    name: str | None


@dataclass(eq=False, slots=True)
class Binding:
    """One thing that gives a name its value. A name may have several (conditional imports)."""

    kind: BindingKind
    node: ast.AST
    scope: Scope
    type_checking: bool = False
    """It stands under `if TYPE_CHECKING:` and is not there when the program runs."""
    origin: ImportedFrom | None = None
    value: ast.expr | None = None


@dataclass(eq=False, slots=True)
class Scope:
    """The names of a module, class or function."""

    kind: Literal["module", "class", "function"]
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict[str, list[Binding]])
    globals: set[str] = field(default_factory=set[str])

    def find(self, name: str) -> list[Binding] | None:
        """The bindings that `name` stands for in this scope; None when nothing here binds it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope.kind != "class" or scope is self):
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass(eq=False, slots=True)
class Use:
    """A name or dotted name that is read: `app.Receipt` is the chain ("app", "Receipt")."""

    chain: tuple[str, ...]
    node: ast.expr
    scope: Scope
    annotation: bool
    """It stands where only a type is meant: an annotation, or the model of a ModelId."""


@dataclass(eq=False, slots=True)
class Import:
    """One imported name, where it stands. `name` is what it is bound to; None for a star."""

    name: str | None
    binding: Binding


@dataclass(eq=False)
class Module:
    """A parsed file."""

    path: Path
    tree: ast.Module
    text: str
    scope: Scope = field(default_factory=lambda: Scope("module", None))
    uses: list[Use] = field(default_factory=list[Use])
    imports: list[Import] = field(default_factory=list[Import])
    stars: list[Binding] = field(default_factory=list[Binding])
    use_at: dict[ast.AST, Use] = field(default_factory=dict[ast.AST, Use])
    scope_at: dict[ast.AST, Scope] = field(default_factory=dict[ast.AST, Scope])
    """The scope in which a call, class or function stands."""
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict[ast.AST, ast.AST])
    calls: list[ast.Call] = field(default_factory=list[ast.Call])
    functions: list[FunctionNode] = field(default_factory=list[FunctionNode])
    classes: list[ast.ClassDef] = field(default_factory=list[ast.ClassDef])
    withs: list[ast.With | ast.AsyncWith] = field(default_factory=list["ast.With | ast.AsyncWith"])

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def column(self, line: int, offset: int) -> int:
        """The column, from 1, of a syntax tree's offset, which counts in UTF-8."""
        if self.text.isascii():
            return offset + 1
        lines = re.split(r"\r\n|\r|\n", self.text)
        return len(lines[line - 1].encode()[:offset].decode(errors="ignore")) + 1


def read_module(path: Path, text: str) -> Module:
    """Parse a file. Raises SyntaxError, ValueError or RecursionError when it is no Python."""
    module = Module(path, ast.parse(text, str(path)), text)
    _Reader(module).visit(module.tree)
    return module


def chain_of(node: ast.expr) -> tuple[str, ...] | None:
    """`a.b.c` as its parts; None for anything that is not only names and dots."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return (node.id, *reversed(parts))


class _Reader(ast.NodeVisitor):
    def __init__(self, module: Module) -> None:
        self._module = module
        self._scope = module.scope
        self._type_checking: bool = False
        self._annotation: bool = False

    # --- what binds a name ------------------------------------------------------------------

    def _bind(
        self,
        name: str,
        kind: BindingKind,
        node: ast.AST,
        *,
        origin: ImportedFrom | None = None,
        value: ast.expr | None = None,
    ) -> Binding:
        scope = self._module.scope if name in self._scope.globals else self._scope
        binding = Binding(kind, node, self._scope, self._type_checking, origin, value)
        scope.names.setdefault(name, []).append(binding)
        return binding

    def _bind_target(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            if value is None:
                self._bind(target.id, "opaque", target)
            else:
                kind = "value" if chain_of(value) is None else "alias"
                self._bind(target.id, kind, target, value=value)
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._bind_target(each, None)
        elif isinstance(target, ast.Starred):
            self._bind_target(target.value, None)
        else:  # an attribute or subscript binds no name, but reads some
            self.visit(target)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname is None:
                name = alias.name.partition(".")[0]
                bound = self._bind(name, "module", alias, origin=ImportedFrom(name, 0, None))
                if name != alias.name:  # `import a.b` binds a, and loads a.b
                    origin = ImportedFrom(alias.name, 0, None)
                    bound = Binding("module", alias, self._scope, self._type_checking, origin)
            else:
                name = alias.asname
                origin = ImportedFrom(alias.name, 0, None)
                bound = self._bind(name, "module", alias, origin=origin)
            self._module.imports.append(Import(name, bound))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            origin = ImportedFrom(node.module or "", node.level, alias.name)
            if alias.name == "*":
                star = Binding("from", alias, self._scope, self._type_checking, origin)
                self._module.stars.append(star)
                self._module.imports.append(Import(None, star))
            else:
                name = alias.asname or alias.name
                bound = self._bind(name, "from", alias, origin=origin)
                self._module.imports.append(Import(name, bound))

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.globals.update(node.names)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._child(node, node.value)
        for target in node.targets:
            self._bind_target(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._type(node, node.annotation)
        if node.value is not None:
            self._child(node, node.value)
            self._bind_target(node.target, node.value)
        elif not isinstance(node.target, ast.Name):
            self._child(node, node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._child(node, node.value)
        self._bind_target(node.target, None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._child(node, node.value)
        self._bind_target(node.target, node.value)

    def _for(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        self._child(node, node.iter)
        self._bind_target(node.target, None)
        if isinstance(node, ast.comprehension):
            self._children(node, node.ifs)
        else:
            self._children(node, [*node.body, *node.orelse])

    visit_For = visit_AsyncFor = visit_comprehension = _for

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        self._module.withs.append(node)
        for item in node.items:
            self._child(node, item.context_expr)
            if item.optional_vars is not None:
                self._bind_target(item.optional_vars, item.context_expr)
        self._children(node, node.body)

    visit_With = visit_AsyncWith = _with

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name is not None:
            self._bind(node.name, "opaque", node)
        self.generic_visit(node)

    def _capture(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name is not None:
            self._bind(node.name, "opaque", node)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = _capture

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest is not None:
            self._bind(node.rest, "opaque", node)
        self.generic_visit(node)

    # --- scopes -----------------------------------------------------------------------------

    def _function(self, node: FunctionNode) -> None:
        self._bind(node.name, "definition", node)
        self._module.functions.append(node)
        self._module.scope_at[node] = self._scope
        self._children(node, node.decorator_list)
        arguments = node.args
        self._children(node, [*arguments.defaults, *filter(None, arguments.kw_defaults)])
        for argument in _arguments(arguments):
            self._type(node, argument.annotation)
        self._type(node, node.returns)
        outer, self._scope = self._scope, Scope("function", self._scope)
        for argument in _arguments(arguments):
            self._bind(argument.arg, "opaque", argument)
        self._children(node, node.body)
        self._scope = outer

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._children(node, [*node.args.defaults, *filter(None, node.args.kw_defaults)])
        outer, self._scope = self._scope, Scope("function", self._scope)
        for argument in _arguments(node.args):
            self._bind(argument.arg, "opaque", argument)
        self._child(node, node.body)
        self._scope = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name, "definition", node)
        self._module.classes.append(node)
        self._module.scope_at[node] = self._scope
        self._children(node, [*node.decorator_list, *node.bases, *node.keywords])
        outer, self._scope = self._scope, Scope("class", self._scope)
        self._children(node, node.body)
        self._scope = outer

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        outer, self._scope = self._scope, Scope("function", self._scope)
        self._children(node, [*node.generators, node.elt])
        self._scope = outer

    visit_ListComp = visit_SetComp = visit_GeneratorExp = _comprehension

    def visit_DictComp(self, node: ast.DictComp) -> None:
        outer, self._scope = self._scope, Scope("function", self._scope)
        self._children(node, [*node.generators, node.key, node.value])
        self._scope = outer

    def visit_If(self, node: ast.If) -> None:
        outer = self._type_checking
        wanted = _type_checking_branch(node.test)
        self._child(node, node.test)
        self._type_checking = outer or wanted is True
        self._children(node, node.body)
        self._type_checking = outer or wanted is False
        self._children(node, node.orelse)
        self._type_checking = outer

    # --- what reads a name ------------------------------------------------------------------

    def _dotted(self, node: ast.Name | ast.Attribute) -> None:
        chain = chain_of(node)
        if chain is None:
            self.generic_visit(node)
            return
        use = Use(chain, node, self._scope, self._annotation)
        self._module.uses.append(use)
        self._module.use_at[node] = use

    visit_Name = visit_Attribute = _dotted

    def visit_Call(self, node: ast.Call) -> None:
        self._module.calls.append(node)
        self._module.scope_at[node] = self._scope
        self._child(node, node.func)
        names_model = _ends_with(node.func, "ModelId")
        for number, argument in enumerate(node.args):
            if names_model and number == 0:
                self._type(node, argument)
            else:
                self._child(node, argument)
        self._children(node, node.keywords)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._child(node, node.value)
        if _ends_with(node.value, "ModelId"):
            self._type(node, node.slice)
        else:
            self._child(node, node.slice)

    def visit_Constant(self, node: ast.Constant) -> None:
        if self._annotation and isinstance(node.value, str):
            try:
                written = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError):
                return
            for each in ast.walk(written):
                ast.copy_location(each, node)
            self._child(node, written)

    # --- walking ----------------------------------------------------------------------------

    def generic_visit(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._child(node, child)

    def _children(self, parent: ast.AST, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self._child(parent, node)

    def _child(self, parent: ast.AST, node: ast.AST) -> None:
        self._module.parents[node] = parent
        self.visit(node)

    def _type(self, parent: ast.AST, node: ast.expr | None) -> None:
        if node is None:
            return
        outer, self._annotation = self._annotation, True
        self._child(parent, node)
        self._annotation = outer


def _arguments(node: ast.arguments) -> list[ast.arg]:
    rest = [each for each in (node.vararg, node.kwarg) if each is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *rest]


def _type_checking_branch(test: ast.expr) -> bool | None:
    """True when the body is for type checkers only, False when the else branch is."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _type_checking_branch(test.operand)
        return None if inner is None else not inner
    return True if _ends_with(test, "TYPE_CHECKING") else None


def _ends_with(node: ast.expr, name: str) -> bool:
    chain = chain_of(node)
    return chain is not None and chain[-1] == name
