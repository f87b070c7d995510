"""Runs every rule over the files of a project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .configuration import Configuration
from .declarations import check_declarations, check_targets
from .enqueues import check_enqueues, targets_of
from .finding import Finding
from .ignores import without_ignored
from .jobs import JobFinder
from .module import Module
from .project import PRODUCT, Project
from .reporting import Report
from .roles import check_roles
from .schedules import check_schedules
from .sources import check_sources
from .transactions import check_transactions
from .wire_types import PayloadChecker

_MAX_TEXT: Final = 2_000_000


def run_rules(
    configuration: Configuration, files: Sequence[Path]
) -> tuple[list[Finding], list[Path]]:
    """The findings in `files`, and every file that was read for them."""
    project = Project(configuration.root, configuration.source)
    report = Report(configuration.root)
    jobs = JobFinder(project)
    payloads = PayloadChecker(project)
    modules = [
        module
        for file in files
        if (module := project.module(file)) is not None and not _is_product(project, module)
    ]
    check_sources(project, jobs, modules, report)
    check_targets(project, jobs, modules, report)
    targets = targets_of(project, jobs, modules)
    for module in modules:
        check_roles(project, jobs, module, report)
        check_declarations(project, jobs, payloads, module, report)
        check_enqueues(project, jobs, targets, module, report)
        check_transactions(project, jobs, module, report)
        check_schedules(project, module, report)
    _report_broken(project, set(files), report)
    wanted = {report.shown(file) for file in files}
    findings = [
        each
        for each in report.findings
        if each.path in wanted and each.code not in configuration.ignore
    ]
    texts = [(module.path, module.text) for module in modules]
    left = without_ignored(report, findings, texts)
    left = [each for each in left if each.code not in configuration.ignore]
    return left, project.files


def _is_product(project: Project, module: Module) -> bool:
    """The product's own source is a library: what is called job.py there is no job source."""
    return project.target_prefix(module).split(".")[0] == PRODUCT


def _report_broken(project: Project, files: set[Path], report: Report) -> None:
    for broken in project.broken:
        if broken.path in files:
            report.add_at(
                broken.path,
                broken.line,
                broken.column,
                "DEV001",
                f"This file cannot be read: {broken.what}.",
                "Make it valid Python in UTF-8.",
            )
