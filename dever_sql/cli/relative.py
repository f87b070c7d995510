"""Distances in time as a person says them: `in 4m 30s`, `2d 3h ago`, `now`."""

from __future__ import annotations

from datetime import datetime, timedelta

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def relative(instant: datetime | None, now: datetime) -> str | None:
    """How far `instant` lies from `now`, in its two largest units; None for None."""
    if instant is None:
        return None
    if abs(instant - now) < timedelta(seconds=1):
        return "now"
    seconds = int(abs(instant - now).total_seconds())
    parts: list[str] = []
    for unit, size in _UNITS:
        if seconds >= size or parts:
            count, seconds = divmod(seconds, size)
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    distance = " ".join(part for part in parts if part)
    return f"in {distance}" if instant > now else f"{distance} ago"
