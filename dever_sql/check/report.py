"""Findings as text for a person, JSON for a program, or annotations for GitHub."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Final

from .finding import Finding


def as_text(findings: Sequence[Finding]) -> str:
    """A finding a pair of lines, and how many there are."""
    lines = [
        f"{each.path}:{each.line}:{each.column}: {each.code} {each.message}\n    {each.hint}"
        for each in findings
    ]
    if findings:
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        lines.append(f"{count}; dever check --explain {findings[0].code} shows a right example")
    else:
        lines.append("nothing found")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> str:
    """A list of objects with the fields of `Finding`."""
    return json.dumps([dataclasses.asdict(each) for each in findings], indent=2)


def as_github(findings: Sequence[Finding]) -> str:
    """Workflow commands that GitHub shows beside the lines of a change."""
    return "\n".join(
        f"::error file={_property(each.path)},line={each.line},col={each.column},"
        f"title={_property(each.code)}::{_data(f'{each.message} {each.hint}')}"
        for each in findings
    )


FORMATS: Final[dict[str, Callable[[Sequence[Finding]], str]]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
