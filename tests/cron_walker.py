"""A brute-force cron: walks over calendar dates, and random specs whose values are known.

Shares nothing with the product: a random spec is built together with the values it must mean, so no
parser is needed here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

MONTH_NAMES = ["jan", "feb", "mar", "apr", "may", "jun"]
MONTH_NAMES += ["jul", "aug", "sep", "oct", "nov", "dec"]
DAY_NAMES = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]

Values = frozenset[int]


@dataclass(frozen=True)
class Spec:
    """A spec as text and what it means."""

    text: str
    minutes: Values
    hours: Values
    days: Values
    months: Values
    weekdays: Values
    either: bool

    def fires_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date = day.day in self.days
        by_weekday = (day.weekday() + 1) % 7 in self.weekdays
        return (by_date or by_weekday) if self.either else (by_date and by_weekday)

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The instants after `instant`, for nine years."""
        day = instant.date()
        for _ in range(9 * 366):
            if self.fires_on(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        window = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
                        if window > instant:
                            yield window
            day += timedelta(days=1)


def random_spec(rng: random.Random) -> Spec:
    """A valid spec: by construction within R6.1 and R6.2, and with dates that come."""
    while True:
        minutes = _field(rng, 0, 59, [])
        hours = _field(rng, 0, 23, [])
        days = _field(rng, 1, 31, [])
        months = _field(rng, 1, 12, MONTH_NAMES)
        weekdays = _weekdays(rng)
        texts = [minutes[0], hours[0], days[0], months[0], weekdays[0]]
        either = days[0] != "*" and weekdays[0] != "*"
        if either and ("*" in days[0] + weekdays[0] or len(days[1]) == 31 or len(weekdays[1]) == 7):
            continue
        lengths = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        if weekdays[0] == "*" and not any(
            day <= lengths[month - 1] for month in months[1] for day in days[1]
        ):
            continue
        text = (" " * rng.choice([1, 1, 1, 3])).join(texts)
        return Spec(text, minutes[1], hours[1], days[1], months[1], weekdays[1], either)


def random_instant(rng: random.Random) -> datetime:
    start = datetime(1999, 1, 1, tzinfo=UTC)
    instant = start + timedelta(days=rng.randrange(110 * 365), seconds=rng.randrange(86_400))
    if rng.random() < 0.5:
        return instant.replace(second=0)
    return instant.replace(microsecond=rng.choice([0, 1, 999_999]))


def malformed(rng: random.Random) -> str:
    """A valid text with one to three edits; it may still be valid."""
    text = list(random_spec(rng).text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(text) + 1)
        piece = rng.choice("*/-,0123456789 LW#?@HRxé\t\n٣１") if rng.random() < 0.8 else "mon"
        match rng.randrange(3):
            case 0:
                text.insert(place, piece)
            case 1 if len(text) > 1:
                del text[min(place, len(text) - 1)]
            case _:
                text[min(place, len(text) - 1)] = piece
    return "".join(text)


def _field(rng: random.Random, low: int, high: int, names: list[str]) -> tuple[str, Values]:
    kind = rng.random()
    if kind < 0.35:
        return "*", frozenset(range(low, high + 1))
    if kind < 0.5:
        step = rng.randint(1, high - low)
        return f"*/{step}", frozenset(range(low, high + 1, step))
    return _items(rng, low, high, names, high)


def _weekdays(rng: random.Random) -> tuple[str, Values]:
    kind = rng.random()
    if kind < 0.45:
        return "*", frozenset(range(7))
    if kind < 0.5:
        step = rng.randint(1, 6)
        return f"*/{step}", frozenset(range(0, 7, step))
    text, values = _items(rng, 0, 7, DAY_NAMES, 6)
    return text, frozenset(value % 7 for value in values)


def _items(
    rng: random.Random, low: int, high: int, names: list[str], last_name: int
) -> tuple[str, Values]:
    def shown(value: int) -> str:
        if names and value <= last_name and rng.random() < 0.4:
            name = names[value - low]
            return rng.choice([name, name.upper(), name.title()])
        return rng.choice([str(value), f"{value:02}"])

    items: list[str] = []
    values: set[int] = set()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        first = rng.randint(low, high)
        if rng.random() < 0.5 or first == high:
            items.append(shown(first))
            values.add(first)
            continue
        last = rng.randint(first + 1, high)
        step = rng.randint(1, last - first) if rng.random() < 0.5 else 1
        text = f"{shown(first)}-{shown(last)}"
        items.append(text if step == 1 and rng.random() < 0.8 else f"{text}/{step}")
        values.update(range(first, last + 1, step))
    return ",".join(items), frozenset(values)
