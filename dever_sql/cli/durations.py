"""Durations on the command line: `90s`, `5m`, `2h`, `30d`, `250ms`, `forever`."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

FOREVER = timedelta(days=36_500)

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORM = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>ms|s|m|h|d)")


def duration(text: str) -> timedelta:
    """Parse one duration; for argparse's `type=`."""
    if text == "0":
        return timedelta(0)
    if text == "forever":
        return FOREVER
    found = _FORM.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration; write a number and a unit, such as 90s, 5m, 2h or 30d"
        )
    value = int(found["number"]) * _UNITS[found["unit"]]
    if value > FOREVER // timedelta(milliseconds=1):
        raise argparse.ArgumentTypeError(f"{text!r} is longer than 36500d")
    return timedelta(milliseconds=value)


def show_duration(value: timedelta) -> str:
    """The shortest exact spelling of a duration."""
    if value >= FOREVER:
        return "forever"
    milliseconds, rest = divmod(value, timedelta(milliseconds=1))
    if rest:
        return f"{value.total_seconds():.6f}s"
    if not milliseconds:
        return "0"
    for unit, size in reversed(_UNITS.items()):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
