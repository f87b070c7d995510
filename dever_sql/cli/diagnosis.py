"""What `dever doctor` says about one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `hint` says what to do, always when it is not ok."""

    check: str
    ok: bool
    found: str
    hint: str | None = None
