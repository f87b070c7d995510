"""Where the scan of a claim starts: the head hint of the SQLite engine.

Rows in front that a worker may not run (other contracts, used attempts) would be walked over at
each of its looks, with the write lock held. After a scan that was dear the next ones start where it
ended, until 20 times its cost has passed, at most 20 seconds; a row below that becomes due again (a
lease that ran out, a job that was released) waits at most that long. Only a hint: it goes with the
engine object.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .engine import Claimed
from .sqlite_verbs import instant_us

Place = tuple[int, int]
"""run_at in microseconds, and id."""

FRONT: Final[Place] = (-(2**63), 0)

_TIMES: Final = 20
_COSTLIEST: Final = 1.0
"""Seconds a scan counts for at most: of more it was the process that stood still, not the scan."""
_DEAR: Final = 50
"""Thousands of instructions of SQLite's machine: some 2,000 rows passed over."""
_DEAR_SHARE: Final = 4
"""Every so many rows to claim allow a thousand more."""


@dataclass(frozen=True, slots=True)
class _Head:
    place: Place
    until: float


class Heads:
    """The heads of one engine. Guarded by the write transaction in which a claim runs."""

    def __init__(self) -> None:
        self._heads: dict[str, _Head] = {}

    def place(self, scan: str) -> Place:
        """Where a scan over the same queue and contracts starts now."""
        head = self._heads.get(scan)
        if head is not None and time.monotonic() > head.until:
            del self._heads[scan]
            head = None
        return FRONT if head is None else head.place

    def scanned(
        self, scan: str, n: int, now: int, claimed: Sequence[Claimed], work: int, seconds: float
    ) -> None:
        """A scan for `n` rows at the instant `now` took `work` thousand instructions."""
        if n <= 0:
            return  # nothing was looked at
        head = self._heads.get(scan)
        if head is None and work <= _DEAR + n // _DEAR_SHARE:
            return
        # Nothing more was due: what is from now on comes later than this instant.
        place = (now, 0)
        if claimed and len(claimed) >= n:
            place = (instant_us(claimed[0].run_at) or 0, claimed[0].id)
        cost = min(seconds, _COSTLIEST)
        until = time.monotonic() + _TIMES * cost if head is None else head.until
        self._heads[scan] = _Head(place, until)
