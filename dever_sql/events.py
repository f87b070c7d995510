"""Log lines: one per event, `key=value` after the words, never a payload."""

from __future__ import annotations

import json
import logging
from typing import Any, Final, Literal

logger: Final = logging.getLogger("dever")

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def log_event(
    level: Literal["debug", "info", "warning", "error"], event: str, **fields: Any
) -> None:
    """Log `event` on the logger `dever`; the fields are also attributes of the record's `dever`."""
    number = _LEVELS[level]
    if not logger.isEnabledFor(number):
        return
    shown = "".join(
        f" {name}={_shown(value)}" for name, value in fields.items() if value is not None
    )
    logger.log(number, "%s%s", event, shown, extra={"dever": {"event": event, **fields}})


def _shown(value: Any) -> str:
    text = str(value)
    if text and all(character.isprintable() and character not in ' "=' for character in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
