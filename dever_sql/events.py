"""Log lines: one per event, `key=value` after the words, never a payload."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

logger: Final = logging.getLogger("dever")

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


_PLAIN: Final = re.compile(r"[!#-<>-~]+")
"""Text that needs no quotes: visible ASCII but `"` and `=`."""


class _Line:
    """The text of an event, written out only where somebody reads it: JSON takes the fields."""

    __slots__ = ("_event", "_fields")

    def __init__(self, event: str, fields: Mapping[str, Any]) -> None:
        self._event = event
        self._fields = fields

    def __str__(self) -> str:
        return self._event + "".join(
            f" {name}={_shown(value)}" for name, value in self._fields.items() if value is not None
        )


def log_event(
    level: Literal["debug", "info", "warning", "error"], event: str, **fields: Any
) -> None:
    """Log `event` on the logger `dever`; the fields are also attributes of the record's `dever`."""
    number = _LEVELS[level]
    if not logger.isEnabledFor(number):
        return
    logger.log(number, _Line(event, fields), extra={"dever": {"event": event, **fields}})


def _shown(value: Any) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    if text and all(character.isprintable() and character not in ' "=' for character in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
