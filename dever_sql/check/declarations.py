"""How jobs are declared (R1.2-R1.5, R2.1, R6.1): what `declare` refuses, seen before it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from dever_sql.declare import MAX_RETRY, MAX_TIMEOUT_MS, MISSED, check_target
from dever_sql.errors import DeclarationError, InvalidSpec

from .jobs import Declaration, JobFinder
from .module import FunctionNode, Module, chain_of
from .project import UNKNOWN, Project, Symbol, Thing
from .reporting import Report
from .wire_types import PayloadChecker, TypeFault

_HOW: Final = "Write @jobs.job(retry=3, timeout=30_000) above the function."
_ONE_RECORD: Final = "Write def name(payload: SomeRecord) -> None, or no parameter at all."


def check_declarations(
    project: Project, jobs: JobFinder, payloads: PayloadChecker, module: Module, report: Report
) -> None:
    """Report what is wrong with the jobs that a file declares."""
    checker = _Checker(project, jobs, payloads, module, report)
    seen: set[FunctionNode] = set()
    for declaration in jobs.declarations(module):
        if declaration.function in seen:
            checker.declared_twice(declaration)
        else:
            seen.add(declaration.function)
            checker.declaration(declaration)
    checker.loose_decorators()
    checker.bindings()


class _Checker:
    def __init__(
        self,
        project: Project,
        jobs: JobFinder,
        payloads: PayloadChecker,
        module: Module,
        report: Report,
    ) -> None:
        self._project = project
        self._jobs = jobs
        self._payloads = payloads
        self._module = module
        self._place = project.place(module)
        self._report = report

    def _add(self, node: ast.AST, code: str, message: str, hint: str) -> None:
        self._report.add(self._module, node, code, message, hint)

    # --- the file ---------------------------------------------------------------------------

    def bindings(self) -> None:
        """One binding of `Jobs` per file, in a job source (R1.1, R1.2)."""
        if self._place.is_test:
            return
        bindings = self._jobs.jobs_bindings(self._module)
        in_domain = self._place.domain is not None
        if in_domain and self._place.role != "job":
            for binding in bindings:
                self._add(
                    binding.node,
                    "DEV105",
                    "Jobs are bound outside the domain's job source.",
                    "Move the jobs to job.py of this domain.",
                )
        elif in_domain and len(bindings) > 1:
            self._add(
                bindings[1].node,
                "DEV106",
                "This job source binds Jobs more than once.",
                "Bind exactly one logical database per job source.",
            )

    def loose_decorators(self) -> None:
        """`jobs.job` anywhere but above a function (R1.3)."""
        if "job" not in self._module.text and "cron" not in self._module.text:
            return
        decorators = {
            node for each in self._jobs.declarations(self._module) for node in _parts(each)
        }
        for use in self._module.uses:
            parent = self._module.parents.get(use.node)
            is_called = isinstance(parent, ast.Call) and parent.func is use.node
            if use.node in decorators or not (is_called or use.chain[-1] in ("job", "cron")):
                continue
            is_alias = isinstance(parent, ast.Assign) and parent.value is use.node
            if not is_alias and self._jobs.decorator_kind(self._module, use.node):
                self._add(
                    use.node,
                    "DEV310",
                    "A job is declared without a decorator on a function.",
                    _HOW,
                )

    # --- one declaration --------------------------------------------------------------------

    def declared_twice(self, job: Declaration) -> None:
        """One function, one declaration; so one schedule per job, too (R6.3)."""
        message = f"The function {job.name} is declared as a job twice."
        self._add(job.decorator, "DEV310", message, "Call the App from each of two jobs.")

    def declaration(self, job: Declaration) -> None:
        if self._place.domain is not None and not self._place.is_test:
            self._domain_rules(job)
        if not job.is_top:
            self._add(
                job.function,
                "DEV310",
                f"Job {job.name} is declared inside a function or class.",
                "Declare it at the top of its module.",
            )
        self._settings(job)
        self._signature(job)
        self._result(job)
        if job.kind == "cron":
            self._cron(job)
        else:
            self._input(job)

    def _domain_rules(self, job: Declaration) -> None:
        if self._place.role != "job":
            self._add(
                job.function,
                "DEV105",
                f"Job {job.name} is declared outside the domain's job source.",
                "Move it to job.py of this domain.",
            )
        elif _arguments(job.function) and not _has_future_annotations(self._module):
            self._add(
                self._module.tree.body[0],
                "DEV311",
                "This job source evaluates its annotations while App and job are still loading.",
                "Begin the file with from __future__ import annotations.",
            )

    def _settings(self, job: Declaration) -> None:
        if job.call is None:
            message = f"Job {job.name} is declared without its settings."
            self._add(job.decorator, "DEV310", message, _HOW)
            return
        if len(job.call.args) > (1 if job.kind == "cron" else 0):
            message = f"A setting of job {job.name} is given without its name."
            self._add(job.call.args[-1], "DEV310", message, _HOW)
        self._number(job, "retry", "DEV301", MAX_RETRY, "starts in total")
        self._number(job, "timeout", "DEV302", MAX_TIMEOUT_MS, "milliseconds")
        self._target(job)

    def _number(self, job: Declaration, what: str, code: str, limit: int, unit: str) -> None:
        node = job.keyword(what)
        hint = f"Write {what}=n, an integer from 1 to {limit:,} ({unit})."
        if node is None:
            if not job.has_unpacked and not (job.call and job.call.args and job.kind == "job"):
                assert job.call is not None
                self._add(job.call, code, f"Job {job.name} has no {what}.", hint)
            return
        value = self._project.constant(self._module, node)
        if value is UNKNOWN:
            if isinstance(node, ast.Tuple | ast.List | ast.Dict | ast.Set | ast.JoinedStr):
                message = f"The {what} of job {job.name} is not an integer."
                self._add(node, code, message, hint)
        elif type(value) is not int:
            kind = type(value).__name__
            message = f"The {what} of job {job.name} must be int, got {kind}."
            self._add(node, code, message, hint)
        elif not 1 <= value <= limit:
            self._add(node, code, f"The {what} of job {job.name} is {value}.", hint)

    def _target(self, job: Declaration) -> None:
        node = job.keyword("name")
        if node is None:
            return
        value = self._project.constant(self._module, node)
        if value is UNKNOWN or value is None:
            return
        try:
            check_target(f"the target of job {job.name}", value)
        except DeclarationError as error:
            hint = error.hint or "give a name of 1 to 255 bytes"
            self._add(node, "DEV309", _sentence(error.message), _sentence(hint))

    def _signature(self, job: Declaration) -> None:
        function = job.function
        arguments = function.args
        name = job.name
        for starred in (arguments.vararg, arguments.kwarg):
            if starred is not None:
                what = f"Job {name} takes any number of arguments (*{starred.arg})."
                self._add(starred, "DEV303", what, _ONE_RECORD)
        for argument in arguments.kwonlyargs:
            what = f"Job {name} takes {argument.arg} by keyword only."
            self._add(argument, "DEV303", what, _ONE_RECORD)
        positional = _arguments(function)
        if arguments.defaults:
            what = f"Job {name} has a default for {positional[-1].arg}."
            hint = "Leave it out: every enqueue carries the whole payload."
            self._add(arguments.defaults[0], "DEV303", what, hint)
        if len(positional) > 1:
            what = f"Job {name} takes {len(positional)} parameters."
            self._add(positional[1], "DEV303", what, _ONE_RECORD)
        elif positional and positional[0].annotation is None and job.kind == "job":
            what = f"Job {name}: {positional[0].arg} has no type."
            self._add(positional[0], "DEV303", what, _ONE_RECORD)

    def _result(self, job: Declaration) -> None:
        function = job.function
        hint = "Write -> None, and keep the result where the App keeps its state."
        if any(_is_yield(node) for node in _own_nodes(function)):
            message = f"Job {job.name} yields; a job returns nothing."
            self._add(function, "DEV304", message, hint)
            return
        returns = function.returns
        if returns is not None and not self._is_nothing(returns):
            self._add(returns, "DEV304", f"Job {job.name} returns a value.", hint)
        for node in _own_nodes(function):
            if isinstance(node, ast.Return) and not _is_nothing_returned(node):
                self._add(node, "DEV304", f"Job {job.name} returns a value.", hint)

    def _is_nothing(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return node.value in (None, "None")
        chain = chain_of(node)
        return chain is not None and chain[-1] in ("NoneType", "NoReturn", "Never")

    # --- cron -------------------------------------------------------------------------------

    def _cron(self, job: Declaration) -> None:
        if job.call is None:
            return
        arguments = _arguments(job.function)
        if arguments:
            message = f"Cron job {job.name} takes a parameter."
            hint = "Let it take nothing: what it needs, its App looks up."
            self._add(arguments[0], "DEV308", message, hint)
        spec = job.call.args[0] if job.call.args else job.keyword("spec")
        if spec is None:
            if not job.has_unpacked:
                hint = 'Write five fields, for example "0 3 * * *".'
                self._add(job.call, "DEV307", f"Cron job {job.name} has no spec.", hint)
        else:
            self._spec(spec, job.name)
        missed = job.keyword("missed")
        if missed is not None:
            value = self._project.constant(self._module, missed)
            if value is not UNKNOWN and value not in MISSED:
                message = f"missed of cron job {job.name} is none of its policies."
                self._add(missed, "DEV312", message, f"Write one of {', '.join(MISSED)}.")

    def _spec(self, node: ast.expr, name: str) -> None:
        from dever_sql.cron import parse  # croniter takes a while to load

        value: Any = self._project.constant(self._module, node)
        if value is UNKNOWN:
            return
        if not isinstance(value, str):
            kind = type(value).__name__
            hint = 'Write five fields, for example "0 3 * * *".'
            message = f"The spec of cron job {name} must be text, got {kind}."
            self._add(node, "DEV307", message, hint)
            return
        try:
            parse(value)
        except InvalidSpec as error:
            self._add(node, "DEV307", _sentence(error.message), _sentence(error.hint or ""))

    # --- input ------------------------------------------------------------------------------

    def _input(self, job: Declaration) -> None:
        arguments = _arguments(job.function)
        if len(arguments) != 1 or arguments[0].annotation is None:
            return
        node = _unquoted(arguments[0].annotation)
        chain = chain_of(node)
        where = f"Job {job.name}: {arguments[0].arg}"
        if chain is None:
            self._add(node, "DEV305", f"{where} is not a record.", _ONE_RECORD)
            return
        scope = self._module.scope_at[job.function]
        if not self._project.is_bound(self._module, scope, chain[0]):
            hint = "Import the module that declares it."
            self._add(node, "DEV313", f"{where} has a type that is not defined.", hint)
        elif self._project.is_checker_only(self._module, scope, chain[0]):
            self._checker_only(node, where)
        for thing in self._project.of_chain(self._module, scope, chain):
            self._record(job, node, thing, where)

    def _checker_only(self, node: ast.AST, where: str) -> None:
        self._add(
            node,
            "DEV313",
            f"{where} has a type that is imported for the type checker only.",
            "Import it where the program runs, not under TYPE_CHECKING.",
        )

    def _record(self, job: Declaration, node: ast.AST, thing: Thing, where: str) -> None:
        is_record = self._payloads.is_record(thing)
        if is_record is False:
            hint = "Declare the type with @record in the App of this domain."
            self._add(node, "DEV305", f"{where} is not a record.", hint)
            return
        if is_record is None or not isinstance(thing, Symbol):
            if self._place.domain is not None and isinstance(thing, Symbol) and thing.path:
                hint = "Name the record itself, as App declares it."
                self._add(node, "DEV305", f"{where} is not a record.", hint)
            return
        owner = self._project.place(thing.module)
        own = owner.role == "app" and owner.domain == self._place.domain
        if self._place.domain is not None and not self._place.is_test and not own:
            name = self._project.target_prefix(thing.module)
            message = f"{where} is a record of {name}, not of the App of this domain."
            hint = "Declare the record in the App of the job's own domain."
            self._add(node, "DEV305", message, hint)
        for fault in self._payloads.record(thing):
            self._field(fault)

    def _field(self, fault: TypeFault) -> None:
        if fault.checker_only:
            hint = "Import it where the program runs, not under TYPE_CHECKING."
            code = "DEV313"
        else:
            hint = "Use bool, int, float, Decimal, str, UUID, datetime, date, time, timedelta, "
            hint += "Enum, ModelId[M], T | None, list[T], records or Json."
            code = "DEV306"
        message = f"{fault.path}: {fault.why}."
        self._report.add(fault.module, fault.node, code, message, hint)


def check_targets(project: Project, jobs: JobFinder, modules: list[Module], report: Report) -> None:
    """Report two jobs with one target (R1.3). Only in domains: scripts are programs of their own"""
    known: dict[str, Declaration] = {}
    for module in modules:
        place = project.place(module)
        if place.domain is None or place.is_test:
            continue
        for job in jobs.declarations(module):
            target = target_of(project, job)
            if target is None or not job.is_top:
                continue
            before = known.setdefault(target, job)
            if before.function is not job.function:
                where = f"{report.shown(before.module.path)}:{before.function.lineno}"
                report.add(
                    module,
                    job.function,
                    "DEV309",
                    f"The target {target} is declared already, at {where}.",
                    "Rename one of the functions, or pin another target with name=.",
                )


def target_of(project: Project, job: Declaration) -> str | None:
    """The stable name of a job; None when it is computed."""
    node = job.keyword("name")
    if node is None:
        return f"{project.target_prefix(job.module)}.{job.name}"
    value = project.constant(job.module, node)
    return value if isinstance(value, str) else None


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}." if text and text[-1] not in ".!?" else text


def _parts(job: Declaration) -> Iterator[ast.expr]:
    yield job.decorator
    if job.call is not None:
        yield job.call.func


def _arguments(function: FunctionNode) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]


def _own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes inside it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def _is_yield(node: ast.AST) -> bool:
    return isinstance(node, ast.Yield | ast.YieldFrom)


def _is_nothing_returned(node: ast.Return) -> bool:
    """`return`, `return None`, and a bare call, whose result may well be None."""
    value = node.value.value if isinstance(node.value, ast.Await) else node.value
    if isinstance(value, ast.Constant):
        return value.value is None
    return value is None or isinstance(value, ast.Call)


def _has_future_annotations(module: Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in module.tree.body
    )


def _unquoted(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            written = ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError):
            return node
        for each in ast.walk(written):
            ast.copy_location(each, node)
        return written
    return node
