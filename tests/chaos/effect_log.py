"""What happened, written outside the database under test: a file per process, a line per event.

A line is one `write` of an append-only file, so a process that is killed leaves whole lines behind.
Instants are those of the machine's clock, which the engines use as well.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class EffectLog:
    def __init__(self, directory: Path, name: str) -> None:
        path = directory / f"{name}.{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "at": time.time(), **fields}) + "\n"
        os.write(self._file, line.encode())


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    at: float
    fields: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


def read(directory: Path) -> list[Event]:
    """All events of all processes, oldest first."""
    events: list[Event] = []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            events.append(Event(fields.pop("event"), fields.pop("at"), fields))
    return sorted(events, key=lambda event: event.at)
