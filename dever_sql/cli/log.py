"""What services log, on standard error: a line an event, as JSON when nobody is watching."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from dever_sql import events

_ENCODE: Final = json.JSONEncoder(default=str).encode


def log_to_standard_error(level: int) -> None:
    """Show what the services log, from `level` on, and the warnings of everything else.

    A program that has set up logging by itself keeps its own handlers and formats.
    """
    events.logger.setLevel(level)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        if sys.stderr.isatty()
        else JsonLines()
    )
    root.addHandler(handler)


class JsonLines(logging.Formatter):
    """A JSON object a line: time, level, event, logger, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "dever", {})
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": fields["event"] if "event" in fields else _words(record),
        }
        line.update(
            (name, value)
            for name, value in fields.items()
            if name not in line and value is not None
        )
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _ENCODE(line)


def _words(record: logging.LogRecord) -> str:
    """The message, without the fields that the logger of a job adds to it."""
    words: object = getattr(record, "dever_words", None)
    if words is None:
        return record.getMessage()
    return str(words) % record.args if record.args else str(words)
