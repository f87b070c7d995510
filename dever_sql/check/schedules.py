"""Specs that are given to `schedule(...)` of a store (R7.4)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from dever_sql.errors import InvalidSpec

from .module import Binding, Module, Use
from .project import Project, Symbol, is_product
from .reporting import Report

_SPEC_ARGUMENT: Final = 1


def check_schedules(project: Project, module: Module, report: Report) -> None:
    """Report literal specs that the store would refuse."""
    for call in module.calls:
        use = module.use_at.get(call.func)
        if use is None or use.chain[-1] != "schedule" or not _is_store(project, module, use):
            continue
        named = [each.value for each in call.keywords if each.arg == "spec"]
        given = call.args[_SPEC_ARGUMENT : _SPEC_ARGUMENT + 1] or named
        for spec in given:
            value = project.constant(module, spec)
            if isinstance(value, str):
                _check(module, spec, value, report)


def _check(module: Module, node: ast.expr, spec: str, report: Report) -> None:
    from dever_sql.cron import parse_schedule  # croniter takes a while to load

    try:
        parse_schedule(spec)
    except InvalidSpec as error:
        message = f"{error.message[:1].upper()}{error.message[1:]}."
        hint = error.hint or "Write five fields, or @every <n><s|m|h|d>"
        report.add(module, node, "DEV601", message, f"{hint[:1].upper()}{hint[1:]}.")


def _is_store(project: Project, module: Module, use: Use) -> bool:
    """Whether `store` of `store.schedule` was bound to `Store.open(...)`."""
    for thing in project.of_chain(module, use.scope, use.chain[:-1]) if use.chain[1:] else []:
        source = thing.module if isinstance(thing, Symbol) else module
        if any(_opens(project, source, binding) for binding in project.bindings(thing)):
            return True
    return False


def _opens(project: Project, module: Module, binding: Binding) -> bool:
    value = binding.value.value if isinstance(binding.value, ast.Await) else binding.value
    if not isinstance(value, ast.Call):
        return False
    return any(_names(project, module, value))


def _names(project: Project, module: Module, call: ast.Call) -> Iterator[bool]:
    things = project.of_node(module, call.func)
    for name in ("Store.open", "AsyncStore.open"):
        yield is_product(things, name)
