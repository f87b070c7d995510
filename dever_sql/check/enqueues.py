"""How declared jobs are used (R1.5, R1.7): enqueued by the App of their domain, never called."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from .declarations import target_of
from .jobs import ENQUEUES, Declaration, JobFinder
from .module import Module, Use
from .project import Outside, Project, Symbol, Thing
from .reporting import Report

_LOOKUPS: Final = frozenset({"builtins.getattr", "builtins.vars", "operator.attrgetter"})


def check_enqueues(
    project: Project,
    jobs: JobFinder,
    targets: Mapping[str, Declaration],
    module: Module,
    report: Report,
) -> None:
    """Report jobs that are called, handed on, or enqueued by somebody else than their App."""
    checker = _Checker(project, jobs, module, report)
    for use in module.uses:
        if not use.annotation:
            checker.use(use)
    if not project.place(module).is_test:
        for call in module.calls:
            checker.named_by_text(call, targets)


def targets_of(project: Project, jobs: JobFinder, modules: list[Module]) -> dict[str, Declaration]:
    """The jobs of all domains by target."""
    found: dict[str, Declaration] = {}
    for module in modules:
        if project.place(module).domain is not None:
            for job in jobs.declarations(module):
                target = target_of(project, job)
                if target is not None:
                    found.setdefault(target, job)
    return found


class _Checker:
    def __init__(self, project: Project, jobs: JobFinder, module: Module, report: Report) -> None:
        self._project = project
        self._jobs = jobs
        self._module = module
        self._place = project.place(module)
        self._report = report

    def _add(self, node: ast.AST, code: str, message: str, hint: str) -> None:
        self._report.add(self._module, node, code, message, hint)

    def use(self, use: Use) -> None:
        for thing in self._project.of_use(self._module, use):
            found = self._jobs.job(thing)
            if found is not None:
                self._job(use, *found)
                return
            if self._is_job_source(thing):
                self._source(use)
                return

    def _job(self, use: Use, job: Declaration, rest: tuple[str, ...]) -> None:
        parent = self._module.parents.get(use.node)
        if not rest and isinstance(parent, ast.Call) and parent.func is use.node:
            payload = "payload, " if job.function.args.args else ""
            self._add(
                use.node,
                "DEV401",
                f"{job.name} is a declared job and cannot be called as a function.",
                f"Use {job.name}.enqueue({payload}key=...), or await {job.name}.aenqueue(...).",
            )
            return
        if self._place.is_test or self._project.place(job.module).domain is None:
            return
        if not rest:
            if not _names_it(parent, use.node):
                self._add(
                    use.node,
                    "DEV402",
                    f"The declared job {job.name} is handed on as a value.",
                    "Enqueue it where it is named, by a static reference.",
                )
        elif rest[0] in ENQUEUES:
            self._enqueue(use, job)
        elif rest[0] == "handler":
            self._add(
                use.node,
                "DEV402",
                f"The handler of job {job.name} is for the worker only.",
                "Call the App, as the handler does.",
            )

    def _enqueue(self, use: Use, job: Declaration) -> None:
        self._run_at(use)
        owner = self._project.place(job.module).domain
        if self._place.role != "app":
            who = "A job source" if self._place.role == "job" else "This file"
            self._add(
                use.node,
                "DEV403",
                f"{who} enqueues job {job.name}, which only the App of its domain may.",
                "Let the App of the job's domain enqueue it, and call that App.",
            )
        elif self._place.domain != owner:
            self._add(
                use.node,
                "DEV404",
                f"This App enqueues job {job.name} of another domain.",
                "Call the App of that domain, and let it enqueue its job.",
            )

    def _run_at(self, use: Use) -> None:
        call = self._module.parents.get(use.node)
        keywords = call.keywords if isinstance(call, ast.Call) else []
        for value in [each.value for each in keywords if each.arg == "run_at"]:
            if isinstance(value, ast.Call) and self._is_naive(value):
                self._add(
                    value,
                    "DEV406",
                    "This run_at has no time zone.",
                    "Write an instant in UTC: datetime.now(UTC) + timedelta(...).",
                )

    def _is_naive(self, call: ast.Call) -> bool:
        """Whether a datetime is made without a time zone, as far as it is made right here."""
        zoned = any(each.arg in ("tz", "tzinfo", None) for each in call.keywords)
        for thing in self._project.of_node(self._module, call.func):
            match thing:
                case Outside("datetime.datetime.utcnow"):
                    return True
                case Outside("datetime.datetime.now" | "datetime.datetime.today"):
                    return not zoned and not call.args
                case Outside("datetime.datetime"):
                    return not zoned and len(call.args) < _POSITION_OF_TZINFO
                case _:
                    pass
        return False

    # --- computed references ----------------------------------------------------------------

    def _is_job_source(self, thing: Thing) -> bool:
        if not isinstance(thing, Symbol) or thing.path:
            return False
        place = self._project.place(thing.module)
        return place.role == "job" and place.domain is not None

    def _source(self, use: Use) -> None:
        """A job source as a value: what is taken from it cannot be seen."""
        parent = self._module.parents.get(use.node)
        if self._place.is_test or _names_it(parent, use.node):
            return
        is_lookup = isinstance(parent, ast.Call) and any(
            isinstance(thing, Outside) and thing.name in _LOOKUPS
            for thing in self._project.of_node(self._module, parent.func)
        )
        if is_lookup or self._place.role is not None:
            self._add(
                use.node,
                "DEV405",
                "A job is looked up when the program runs.",
                "Name the job itself: job.send_receipt.enqueue(...).",
            )

    def named_by_text(self, call: ast.Call, targets: Mapping[str, Declaration]) -> None:
        """`engine.enqueue("shop.order.job.send", ...)`."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _BY_TEXT:
            return
        named = [each.value for each in call.keywords if each.arg == "job"]
        first = call.args[0] if call.args else next(iter(named), None)
        value = None if first is None else self._project.constant(self._module, first)
        if first is not None and isinstance(value, str) and value in targets:
            self._add(
                first,
                "DEV405",
                "A job is enqueued by its name as text.",
                f"Name the job itself: job.{targets[value].name}.enqueue(...).",
            )


_BY_TEXT: Final = ENQUEUES | {"enqueue_as"}
_POSITION_OF_TZINFO: Final = 8


def _names_it(parent: ast.AST | None, node: ast.expr) -> bool:
    """Whether a value only gets another name, which is followed, or stands alone."""
    match parent:
        case ast.Assign(targets=[ast.Name()], value=value):
            return value is node
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is node
        case ast.Expr():
            return True
        case _:
            return False
