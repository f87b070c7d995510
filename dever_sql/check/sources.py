"""The layout of job sources (R1.1, R1.2): job.py, or a flat directory job/ of topics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .jobs import JobFinder
from .module import Module
from .project import UNKNOWN, Project
from .reporting import Report

BUCKETS: Final = frozenset(
    {"common", "shared", "utils", "util", "helper", "helpers", "base", "service", "services"}
)
"""Names that say nothing about what is inside."""


def check_sources(
    project: Project, jobs: JobFinder, modules: Sequence[Module], report: Report
) -> None:
    """Report domains whose job source is not laid out as one."""
    domains: dict[Path, list[Module]] = {}
    for module in modules:
        place = project.place(module)
        if place.domain is not None and not place.is_test:
            of_domain = domains.setdefault(place.domain, [])
            if place.role == "job":
                of_domain.append(module)
    for domain, sources in domains.items():
        _check_layout(project, domain, report)
        if sources:
            _check_binding(project, jobs, domain, sources, report)


def _check_layout(project: Project, domain: Path, report: Report) -> None:
    directory = domain / "job"
    if "job" not in project.tree.directories(domain) or not project.tree.has_python(directory):
        return
    files = project.tree.files(directory)
    topics = sorted(files - {"__init__.py"})
    first = directory / (topics[0] if topics else "__init__.py")
    if "job.py" in project.tree.files(domain):
        report.add_at(
            domain / "job.py",
            1,
            1,
            "DEV101",
            "This domain has both job.py and job/.",
            "Move the jobs of job.py into a topic of job/, or the topics into job.py.",
        )
    nested = [
        name
        for name in sorted(project.tree.directories(directory))
        if project.tree.has_python(directory / name)
    ]
    for name in nested:
        inside = _any_file(project, directory / name)
        report.add_at(
            inside,
            1,
            1,
            "DEV103",
            f"The job directory has a directory {name}/ inside.",
            "Make it flat: one file per topic in job/ itself.",
        )
    for name in topics:
        if name.removesuffix(".py") in BUCKETS:
            report.add_at(
                directory / name,
                1,
                1,
                "DEV104",
                f"{name} says nothing about the jobs inside.",
                "Name the file after their topic.",
            )
    if len(topics) < 2 and not nested:
        report.add_at(
            first,
            1,
            1,
            "DEV102",
            f"The job directory has {'one topic' if topics else 'no topic'}.",
            "Merge it into job.py.",
        )


def _any_file(project: Project, directory: Path) -> Path:
    files = sorted(project.tree.files(directory))
    if files:
        return directory / files[0]
    inner = sorted(project.tree.directories(directory))
    return _any_file(
        project, next(directory / n for n in inner if project.tree.has_python(directory / n))
    )


def _check_binding(
    project: Project, jobs: JobFinder, domain: Path, sources: Sequence[Module], report: Report
) -> None:
    """Exactly one logical database per job source; several files may each bind it."""
    bound: dict[Any, Module] = {}
    for module in sources:
        for binding in jobs.jobs_bindings(module):
            database = jobs.database(module, binding)
            if bound and database is not UNKNOWN and database not in bound:
                known = next(iter(bound))
                report.add(
                    module,
                    binding.node,
                    "DEV106",
                    f"This job source binds database {database} beside {known}.",
                    "Bind one logical database, and move the other jobs to a domain of their own.",
                )
            elif database is not UNKNOWN:
                bound.setdefault(database, module)
    if not any(jobs.jobs_bindings(module) or jobs.declarations(module) for module in sources):
        report.add_at(
            sources[0].path,
            1,
            1,
            "DEV106",
            "This job source binds no logical database.",
            'Write jobs = Jobs(database="default") and declare the jobs with it.',
        )
