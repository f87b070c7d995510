"""One thing that `dever check` found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Where something is wrong, what, and what to do about it.

    `line` and `column` begin at 1. `path` is relative to the project where possible. `message`
    and `hint` are one sentence each.
    """

    path: str
    line: int
    column: int
    code: str
    message: str
    hint: str
