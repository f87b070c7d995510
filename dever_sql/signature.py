"""What a job's handler may look like (R1.3).

`check_handler` sees what needs no annotations and runs at declaration; `payload_type` resolves the
annotations and runs at first use, so that app and job modules may import each other.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from .errors import DeclarationError
from .record import is_record, module_name
from .wire_schema import namespace_of, resolve


def check_handler(handler: object) -> FunctionType:
    """The handler as a function. Raises DeclarationError unless it is one that can be a job."""
    if not inspect.isfunction(handler) or handler.__name__ == "<lambda>":
        raise DeclarationError(
            f"a job is declared on a function, not on {type(handler).__name__}",
            hint="write @jobs.job(retry=..., timeout=...) above a def or async def",
            code="DEV310",
        )
    name = handler.__name__
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise DeclarationError(f"job {name} yields; a job returns nothing", code="DEV304")
    parameters = inspect.signature(handler, follow_wrapped=False).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            why = f"takes any number of arguments (*{parameter.name})"
        elif parameter.kind is parameter.KEYWORD_ONLY:
            why = f"takes {parameter.name} by keyword only"
        elif parameter.default is not parameter.empty:
            why = f"has a default for {parameter.name}; every enqueue carries the whole payload"
        else:
            continue
        raise DeclarationError(f"job {name} {why}", hint=_ONE_RECORD, code="DEV303")
    if len(parameters) > 1:
        what = f"job {name} takes {len(parameters)} parameters"
        raise DeclarationError(what, hint=_ONE_RECORD, code="DEV303")
    return handler


def takes_input(handler: FunctionType) -> bool:
    return handler.__code__.co_argcount > 0


def payload_type(handler: FunctionType) -> type | None:
    """The record a job takes, None for a job without input.

    Raises DeclarationError when an annotation cannot be resolved, is no record of the App of the
    job's domain, or the handler returns something.
    """
    name = handler.__name__
    annotations: dict[str, Any] = inspect.get_annotations(handler)
    names = namespace_of(handler.__module__) or dict(handler.__globals__)
    returned = resolve(annotations.get("return"), names, f"job {name}: return")
    if returned is not None and returned is not type(None):
        raise DeclarationError(
            f"job {name} returns a value", hint="a job returns None", code="DEV304"
        )
    if not takes_input(handler):
        return None
    parameter = handler.__code__.co_varnames[0]
    if parameter not in annotations:
        what = f"job {name}: {parameter} has no type"
        raise DeclarationError(what, hint=_ONE_RECORD, code="DEV303")
    payload = resolve(annotations[parameter], names, f"job {name}: {parameter}")
    if not inspect.isclass(payload) or not is_record(payload):
        what = f"job {name}: {parameter} is not a record"
        raise DeclarationError(what, hint=_ONE_RECORD, code="DEV305")
    _check_owner(name, module_name(handler.__module__), payload)
    return payload


def _check_owner(name: str, source: str, payload: type) -> None:
    """In a domain layout the record belongs to the App of the job's domain."""
    package, _, last = source.rpartition(".")
    if last == "job":
        domain = package
    elif package.rpartition(".")[2] == "job":
        domain = package.rpartition(".")[0]
    else:
        domain = ""
    if not domain:
        return
    owner = module_name(payload.__module__)
    if owner != f"{domain}.app" and not owner.startswith(f"{domain}.app."):
        raise DeclarationError(
            f"job {name}: record {payload.__name__} belongs to {owner}, not to {domain}.app",
            hint="a job takes a record of the App of its own domain; declare it there",
            code="DEV305",
        )


_ONE_RECORD = "a job takes nothing or one record: def name(payload: SomeRecord) -> None"
