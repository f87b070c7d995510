"""`# dever: ignore[DEV201] reason`: a finding that somebody has looked at."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .catalogue import RULES
from .finding import Finding
from .reporting import Report

_COMMENT: Final = re.compile(
    r"#\s*dever:\s*ignore(?:\[(?P<codes>[^\]]*)\])?(?P<reason>.*)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Ignore:
    """A comment and the findings it is for: those of its codes on its line."""

    line: int
    column: int
    codes: frozenset[str]
    reason: str


def without_ignored(
    report: Report, findings: Sequence[Finding], texts: Sequence[tuple[Path, str]]
) -> list[Finding]:
    """What is left of the findings, with what is wrong with the comments themselves."""
    kept = set(findings)
    for path, text in texts:
        if "dever:" not in text:
            continue
        shown = report.shown(path)
        for ignore in _ignores(text):
            if not _is_well_formed(report, path, ignore):
                continue
            matched = {
                each
                for each in kept
                if each.path == shown and each.line == ignore.line and each.code in ignore.codes
            }
            kept -= matched
            for code in sorted(ignore.codes - {each.code for each in matched}):
                report.add_at(
                    path,
                    ignore.line,
                    ignore.column,
                    "DEV003",
                    f"There is no {code} on this line to ignore.",
                    "Remove the comment.",
                )
    return sorted(kept | {each for each in report.findings if each.code in ("DEV002", "DEV003")})


def _is_well_formed(report: Report, path: Path, ignore: Ignore) -> bool:
    unknown = sorted(ignore.codes - RULES.keys())
    if not ignore.codes:
        what, hint = "names no code", "Write # dever: ignore[DEV201] and the reason."
    elif unknown:
        what = f"names {unknown[0]}, which is no rule"
        hint = "dever check --explain shows the rules."
    elif not ignore.reason:
        what, hint = "gives no reason", "Write the reason after the bracket."
    else:
        return True
    message = f"A comment that ignores findings {what}."
    report.add_at(path, ignore.line, ignore.column, "DEV002", message, hint)
    return False


def _ignores(text: str) -> Iterator[Ignore]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found is not None:
                codes = frozenset(re.findall(r"[^\s,]+", (found["codes"] or "").upper()))
                line, column = token.start
                yield Ignore(line, column + 1, codes, found["reason"].strip(" :-"))
    except (tokenize.TokenError, SyntaxError):  # the file itself is reported
        return
