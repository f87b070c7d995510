"""In which orders several sessions can take their steps: all of them, or a seeded sample."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from typing import Any


@cache
def step_orders(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every order of steps in which session `i` takes `counts[i]` of them, as session numbers."""
    if not any(counts):
        return ((),)
    return tuple(
        (session, *rest)
        for session, count in enumerate(counts)
        if count
        for rest in step_orders((*counts[:session], count - 1, *counts[session + 1 :]))
    )


@dataclass(frozen=True)
class Case:
    """One run: how the job stands at first, each session's verb and end, the order of the steps."""

    start: str
    verbs: tuple[str, ...]
    commits: tuple[bool, ...]
    order: tuple[int, ...]


class Cases:
    """All cases of `sessions` sessions, each of which takes `steps` steps with one verb in them;
    the number after theirs is that of the clock, which is moved once."""

    def __init__(
        self, starts: Sequence[str], verbs: Sequence[str], sessions: int, steps: int
    ) -> None:
        # Which session has which verb makes no difference: the orders are all of them.
        self._dimensions: tuple[Sequence[Any], ...] = (
            starts,
            list(combinations_with_replacement(verbs, sessions)),
            _endings(sessions),
            step_orders((*(steps,) * sessions, 1)),
        )

    def __len__(self) -> int:
        return math.prod(len(dimension) for dimension in self._dimensions)

    def __getitem__(self, number: int) -> Case:
        values: list[Any] = []
        for dimension in self._dimensions:
            number, position = divmod(number, len(dimension))
            values.append(dimension[position])
        return Case(*values)

    def sample(self, count: int, seed: int) -> Iterator[Case]:
        """`count` different cases, or all of them when there are no more."""
        numbers = range(len(self))
        chosen = numbers if count >= len(self) else random.Random(seed).sample(numbers, count)
        return (self[number] for number in chosen)


def _endings(sessions: int) -> list[tuple[bool, ...]]:
    return [
        tuple(bool(number >> session & 1) for session in range(sessions))
        for number in range(2**sessions)
    ]
