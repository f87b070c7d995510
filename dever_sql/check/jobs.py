"""The jobs that a project declares, and how a name is seen to be one."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .module import Binding, FunctionNode, Module
from .project import UNKNOWN, Local, Project, Symbol, Thing, is_product

ENQUEUES: Final = frozenset(
    {"enqueue", "enqueue_at", "enqueue_many", "aenqueue", "aenqueue_at", "aenqueue_many"}
)


@dataclass(frozen=True, eq=False, slots=True)
class Declaration:
    """A job decorator on a function. `call` is None when it stands without its settings."""

    module: Module
    function: FunctionNode
    kind: Literal["job", "cron"]
    decorator: ast.expr
    call: ast.Call | None
    jobs: Binding | None
    """The `Jobs(...)` it belongs to, when that is one."""
    is_top: bool

    @property
    def name(self) -> str:
        return self.function.name

    def keyword(self, name: str) -> ast.expr | None:
        if self.call is None:
            return None
        return next((each.value for each in self.call.keywords if each.arg == name), None)

    @property
    def has_unpacked(self) -> bool:
        """Whether some settings come from `**settings`, which cannot be read here."""
        return self.call is not None and any(each.arg is None for each in self.call.keywords)


class JobFinder:
    """Finds declarations, file by file, each file once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._found: dict[Path, list[Declaration]] = {}

    def declarations(self, module: Module) -> list[Declaration]:
        """Every function of a module with a job decorator."""
        known = self._found.get(module.path)
        if known is None:
            known = self._found[module.path] = [
                found
                for function in module.functions
                for decorator in function.decorator_list
                if (found := self._declaration(module, function, decorator)) is not None
            ]
        return known

    def job(self, thing: Thing) -> tuple[Declaration, tuple[str, ...]] | None:
        """The declared job a name leads to, and the attributes that are taken from it."""
        if not isinstance(thing, Symbol) or not thing.path:
            return None
        for declaration in self.declarations(thing.module):
            if declaration.is_top and declaration.name == thing.path[0]:
                return declaration, thing.path[1:]
        return None

    def jobs_bindings(self, module: Module) -> list[Binding]:
        """The top-level names of a module that are bound to a `Jobs(...)` of its own."""
        return [
            binding
            for bindings in module.scope.names.values()
            for binding in bindings
            if self.is_jobs(module, binding)
        ]

    def is_jobs(self, module: Module, binding: Binding) -> bool:
        """Whether a name is bound to a call of `Jobs`."""
        value = binding.value
        return (
            binding.kind == "value"
            and isinstance(value, ast.Call)
            and is_product(self._project.of_node(module, value.func), "Jobs")
        )

    def database(self, module: Module, binding: Binding) -> Any:
        """The logical database that a `Jobs(...)` names; UNKNOWN when it is computed."""
        call = binding.value
        assert isinstance(call, ast.Call)
        named = [each.value for each in call.keywords if each.arg == "database"]
        if any(each.arg is None for each in call.keywords):
            return UNKNOWN
        argument = call.args[0] if call.args else next(iter(named), None)
        return "default" if argument is None else self._project.constant(module, argument)

    def decorator_kind(
        self, module: Module, node: ast.expr
    ) -> tuple[Literal["job", "cron"], Binding | None] | None:
        """Whether an expression is the `job` or `cron` of a `Jobs`."""
        for thing in self._project.of_node(module, node):
            if not isinstance(thing, Symbol | Local) or not thing.path:
                continue
            kind = thing.path[-1]
            if kind not in ("job", "cron"):
                continue
            match thing:
                case Symbol(source, path):
                    owner: Thing = Symbol(source, path[:-1])
                case Local(binding, path):
                    source, owner = module, Local(binding, path[:-1])
            bindings = self._project.bindings(owner)
            made = [each for each in bindings if self.is_jobs(source, each)]
            if made:
                return kind, made[0] if len(made) == 1 else None
        return None

    def _declaration(
        self, module: Module, function: FunctionNode, decorator: ast.expr
    ) -> Declaration | None:
        call = decorator if isinstance(decorator, ast.Call) else None
        found = self.decorator_kind(module, decorator if call is None else call.func)
        if found is None:
            return None
        kind, jobs = found
        is_top = module.scope_at[function] is module.scope
        return Declaration(module, function, kind, decorator, call, jobs, is_top)
