"""Values in the text form that PostgreSQL reads, whatever driver and session they go through."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from .arguments import check_instant, check_integers, check_texts, microseconds


def number_array(numbers: Sequence[int], name: str = "id") -> str:
    """An array literal of integers. Raises InvalidArgument with `name` for anything else."""
    check_integers(name, numbers)
    return "{" + ",".join(map(str, numbers)) + "}"


def text_array(texts: Sequence[str | None] | None, name: str) -> str | None:
    """An array literal of texts; None stays null. Raises the error that belongs to `name`."""
    if texts is None:
        return None
    check_texts(name, texts)
    return "{" + ",".join(map(_element, texts)) + "}"


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def duration(value: timedelta | None) -> str | None:
    """A duration that means the same under every IntervalStyle."""
    return None if value is None else f"{microseconds(value)} microseconds"


def instant(value: datetime | None) -> str | None:
    """An instant that means the same under every TimeZone and DateStyle."""
    if value is None:
        return None
    check_instant(value)
    return value.isoformat()


def durations(values: Sequence[timedelta | None] | None) -> str | None:
    """An array literal of durations; None stays null."""
    return None if values is None else text_array([duration(value) for value in values], "delay")


def instants(values: Sequence[datetime | None] | None) -> str | None:
    """An array literal of instants; None stays null."""
    return None if values is None else text_array([instant(value) for value in values], "run_at")


def claims(ids: Sequence[int], tokens: Sequence[int]) -> dict[str, str]:
    """The parameters of the calls that name claims."""
    return {"ids": number_array(ids), "tokens": number_array(tokens, "token")}


def outcomes_of(
    ids: Sequence[int],
    tokens: Sequence[int],
    reasons: Sequence[str | None],
    errors: Sequence[str | None] | None,
) -> dict[str, Any]:
    """The parameters of the calls that end attempts."""
    return {
        **claims(ids, tokens),
        "reasons": text_array(reasons, "reason"),
        "errors": text_array(errors, "error"),
    }
