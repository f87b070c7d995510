"""Jobs enqueued in a transaction on another database (R3.5), as far as it can be seen.

Followed are the enqueues in the block itself and in functions of the project that it calls by
name. An enqueue with `connection=` belongs to that connection, which is looked at when it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from .jobs import ENQUEUES, Declaration, JobFinder
from .module import FunctionNode, Module
from .project import UNKNOWN, Project, is_product
from .reporting import Report

With: TypeAlias = ast.With | ast.AsyncWith

_MAX_CALLS: Final = 8


def check_transactions(project: Project, jobs: JobFinder, module: Module, report: Report) -> None:
    """Report every enqueue that cannot join the transaction it stands in."""
    checker = _Checker(project, jobs)
    for block in module.withs:
        for database in checker.databases(module, block):
            for call, job, theirs in checker.enqueued(module, block.body):
                if theirs not in (database, UNKNOWN):
                    report.add(
                        module,
                        call,
                        "DEV501",
                        f"Job {job.name} is bound to database {theirs}, "
                        f"the transaction is on {database}.",
                        "Enqueue it in a transaction on its own database.",
                    )


class _Checker:
    def __init__(self, project: Project, jobs: JobFinder) -> None:
        self._project = project
        self._jobs = jobs

    def databases(self, module: Module, block: With) -> Iterator[str]:
        """The logical databases that the items of a with statement open a transaction on."""
        for item in block.items:
            call = item.context_expr
            if not isinstance(call, ast.Call):
                continue
            if not is_product(self._project.of_node(module, call.func), "transaction"):
                continue
            named = [each.value for each in call.keywords if each.arg in ("name", "database")]
            argument = call.args[0] if call.args else next(iter(named), None)
            if argument is None:
                if not call.keywords:
                    yield "default"
                continue
            value = self._project.constant(module, argument)
            if isinstance(value, str):
                yield value

    def enqueued(
        self, module: Module, body: list[ast.stmt], depth: int = 0
    ) -> Iterator[tuple[ast.Call, Declaration, Any]]:
        """The call, the job and its database of each enqueue that runs in a block."""
        for call in self._calls(module, body):
            for thing in self._project.of_node(module, call.func):
                found = self._jobs.job(thing)
                if found is not None:
                    job, rest = found
                    is_own = not any(each.arg == "connection" for each in call.keywords)
                    if rest and rest[0] in ENQUEUES and is_own and job.jobs is not None:
                        yield call, job, self._database(job)
                    continue
                called = self._project.definition(thing)
                if depth < _MAX_CALLS and isinstance(
                    called, ast.FunctionDef | ast.AsyncFunctionDef
                ):
                    source = getattr(thing, "module", module)
                    for _, job, database in self._enqueued_in(source, called, depth + 1):
                        yield call, job, database

    def _enqueued_in(
        self, module: Module, function: FunctionNode, depth: int
    ) -> list[tuple[ast.Call, Declaration, Any]]:
        return list(self.enqueued(module, function.body, depth))

    def _database(self, job: Declaration) -> Any:
        assert job.jobs is not None
        for module in self._modules_of(job):
            return self._jobs.database(module, job.jobs)
        return UNKNOWN

    def _modules_of(self, job: Declaration) -> Iterator[Module]:
        """The file that binds the job's `Jobs`: its own, or the one it is imported from."""
        func = job.decorator.func if isinstance(job.decorator, ast.Call) else job.decorator
        for thing in self._project.of_node(job.module, func):
            yield getattr(thing, "module", job.module)

    def _calls(self, module: Module, body: list[ast.stmt]) -> Iterator[ast.Call]:
        """The calls that run with a block: not those in functions that it only defines, nor those
        in a transaction of their own."""
        pending: list[ast.AST] = list(body)
        while pending:
            node = pending.pop(0)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                continue
            if isinstance(node, ast.With | ast.AsyncWith) and any(self.databases(module, node)):
                continue
            if isinstance(node, ast.Call):
                yield node
            pending.extend(ast.iter_child_nodes(node))
