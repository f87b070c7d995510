"""Who may call whom (R1.6, R1.8): every import and every use of a name, role by role."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from .jobs import JobFinder
from .layout import Place, Role
from .module import Binding, Import, ImportedFrom, Module, Use
from .project import Project, Symbol, Thing
from .reporting import Report

_CODES: Final[dict[Role, str]] = {
    "job": "DEV201",
    "api": "DEV202",
    "app": "DEV203",
    "domain": "DEV204",
    "model": "DEV205",
    "port": "DEV206",
    "adapter": "DEV207",
}

# What a role may call in its own domain. A role may always use the rest of itself, except that
# adapters do not know each other; an App also calls the App of any other domain.
_OWN: Final[dict[Role, frozenset[Role]]] = {
    "job": frozenset({"app", "job"}),
    "api": frozenset({"api", "app"}),
    "app": frozenset({"app", "domain", "model", "port", "job"}),
    "domain": frozenset({"domain"}),
    "model": frozenset({"model"}),
    "port": frozenset({"port"}),
    "adapter": frozenset({"port"}),
}

_NAMES: Final[dict[Role, str]] = {
    "job": "a job",
    "api": "an API",
    "app": "an App",
    "domain": "a Domain",
    "model": "a Model",
    "port": "a Port",
    "adapter": "an Adapter",
}

_ADVICE: Final[dict[Role, str]] = {
    "job": "call the App of this domain, and let it do the rest",
    "api": "call the App of this domain, and let it do the rest",
    "app": "go through the App of the domain that owns it",
    "domain": "pass in what it needs as an argument, and let the App do the calling",
    "model": "move the work to the Domain, and let the App call it",
    "port": "describe what is needed with types only",
    "adapter": "let the App pass in what it needs, and implement the Port alone",
}


def check_roles(project: Project, jobs: JobFinder, module: Module, report: Report) -> None:
    """Report what a file with a role reaches that its role may not."""
    place = project.place(module)
    if place.role is None or place.domain is None or place.is_test:
        return
    checker = _Checker(project, jobs, module, place, place.role, place.domain, report)
    checker.run()


class _Checker:
    def __init__(
        self,
        project: Project,
        jobs: JobFinder,
        module: Module,
        place: Place,
        role: Role,
        domain: Path,
        report: Report,
    ) -> None:
        self._project = project
        self._jobs = jobs
        self._module = module
        self._place = place
        self._role: Role = role
        self._domain = domain
        self._report = report
        self._reported: set[Binding] = set()
        self._reported_names: list[tuple[str, ...]] = []
        """What `import a.b` was reported for: a use of a.b is the same thing again."""

    def run(self) -> None:
        for each in self._module.imports:
            self._check_import(each)
        for use in self._module.uses:
            if not use.annotation:
                self._check_use(use)
        for node, name in _dynamic_imports(self._project, self._module):
            origin = _absolute(name)
            found = self._project.imported(self._module, origin)
            self._report_first(node, [found] if found is not None else [])
        if self._role == "adapter":
            for node in self._module.classes:
                self._check_one_port(node)

    def _check_import(self, each: Import) -> None:
        binding = each.binding
        assert binding.origin is not None
        if binding.type_checking or (self._role != "job" and self._only_types(each)):
            return
        source = self._project.imported(self._module, binding.origin)
        things = [] if source is None else [source]
        things += self._project.of_import(self._module, binding)
        if each.name is None and isinstance(source, Symbol):
            things += self._star_names(source.module)
        if self._report_first(binding.node, things):
            self._reported.add(binding)
            if binding.origin.name is None and binding.origin.level == 0:
                self._reported_names.append(tuple(binding.origin.module.split(".")))

    def _star_names(self, source: Module) -> list[Thing]:
        """What a star import brings along and this file uses."""
        used = {use.chain[0] for use in self._module.uses if not use.annotation}
        return [
            thing
            for name in sorted(used)
            if self._module.scope.find(name) is None
            for thing in self._project.attribute(source, name)
        ]

    def _only_types(self, each: Import) -> bool:
        """Whether an imported name is used, and only to say what type something has."""
        if each.name is None:
            return False
        uses = [use for use in self._module.uses if use.chain[0] == each.name]
        uses = [
            use for use in uses if each.binding in (use.scope.find(each.name) or [each.binding])
        ]
        return bool(uses) and all(use.annotation for use in uses)

    def _check_use(self, use: Use) -> None:
        if any(use.chain[: len(name)] == name for name in self._reported_names):
            return
        bindings = use.scope.find(use.chain[0])
        if bindings is None:
            if any(star in self._reported for star in self._module.stars):
                return
        elif any(binding in self._reported for binding in bindings):
            return
        self._report_first(use.node, self._project.of_use(self._module, use))

    def _report_first(self, node: ast.AST, things: Sequence[Thing]) -> bool:
        for thing in things:
            if isinstance(thing, Symbol) and self._is_refused(thing):
                self._tell(node, thing)
                return True
        return False

    def _is_refused(self, thing: Symbol) -> bool:
        if thing.module is self._module:
            return False
        other = self._project.place(thing.module)
        if other.role is None or other.domain is None:
            return False
        if other.domain != self._domain:
            # Whose jobs an App may enqueue is the business of the enqueue rules.
            return not (self._role == "app" and other.role in ("app", "job"))
        if self._module.is_package and other.role == self._role:
            return False  # the flat directory of a role may show its files as one
        if self._role == "job" and other.role == "job":
            return self._jobs.job(thing) is not None
        return other.role not in _OWN[self._role]

    def _tell(self, node: ast.AST, thing: Symbol) -> None:
        other = self._project.place(thing.module)
        assert other.role is not None
        assert other.domain is not None
        name = ".".join([self._project.target_prefix(thing.module), *thing.path])
        if other.domain != self._domain:
            whose = f"{_NAMES[other.role]} of another domain"
        elif self._role == other.role:
            whose = f"another {_NAMES[other.role].split()[1]}"
        else:
            whose = f"{_NAMES[other.role]}"
        subject = _NAMES[self._role]
        self._report.add(
            self._module,
            node,
            _CODES[self._role],
            f"{subject[0].upper()}{subject[1:]} may not reach {name}, which is {whose}.",
            f"{_ADVICE[self._role][0].upper()}{_ADVICE[self._role][1:]}.",
        )

    def _check_one_port(self, node: ast.ClassDef) -> None:
        ports = [
            thing
            for base in node.bases
            for thing in self._project.of_node(self._module, base)
            if isinstance(thing, Symbol) and self._project.place(thing.module).role == "port"
        ]
        if len(ports) > 1:
            names = " and ".join(thing.path[-1] for thing in ports if thing.path)
            self._report.add(
                self._module,
                node,
                "DEV208",
                f"The Adapter {node.name} implements more than one Port: {names}.",
                "Write one class per Port.",
            )


def _dynamic_imports(project: Project, module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Imports by a call with a literal name."""
    for call in module.calls:
        names = {getattr(thing, "name", "") for thing in project.of_node(module, call.func)}
        if names & {"importlib.import_module", "builtins.__import__"} and call.args:
            first = call.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield call, first.value


def _absolute(name: str) -> ImportedFrom:
    level = len(name) - len(name.lstrip("."))
    return ImportedFrom(name.lstrip("."), level, None)
