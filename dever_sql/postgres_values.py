"""Values in the text form that PostgreSQL reads, whatever driver and session they go through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from .errors import InvalidArgument


def number_array(numbers: Iterable[int]) -> str:
    """An array literal of integers."""
    return "{" + ",".join(map(str, numbers)) + "}"


def text_array(texts: Iterable[str | None] | None) -> str | None:
    """An array literal of texts; None stays null."""
    if texts is None:
        return None
    return "{" + ",".join(map(_element, texts)) + "}"


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def duration(value: timedelta | None) -> str | None:
    """A duration that means the same under every IntervalStyle."""
    return None if value is None else f"{value // timedelta(microseconds=1)} microseconds"


def instant(value: datetime | None) -> str | None:
    """An instant that means the same under every TimeZone and DateStyle."""
    if value is None:
        return None
    if value.utcoffset() is None:
        raise InvalidArgument(
            "the instant has no time zone", hint="pass an aware datetime, such as datetime.now(UTC)"
        )
    return value.isoformat()


def instants(values: Sequence[datetime | None] | None) -> str | None:
    """An array literal of instants; None stays null."""
    return None if values is None else text_array([instant(value) for value in values])


def outcomes_of(
    ids: Sequence[int],
    tokens: Sequence[int],
    reasons: Sequence[str | None],
    errors: Sequence[str | None] | None,
) -> dict[str, Any]:
    """The parameters of the calls that end attempts."""
    return {
        "ids": number_array(ids),
        "tokens": number_array(tokens),
        "reasons": text_array(reasons),
        "errors": text_array(errors),
    }
