"""The golden examples of the wire format (`tests/golden/wire.json`), for every engine's tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_FILE = Path(__file__).parent / "golden" / "wire.json"

EngineName = Literal["python", "postgresql", "sqlite"]


@dataclass(frozen=True, slots=True)
class WireCase:
    """One payload and what becomes of it. `path` is None when it is accepted."""

    schema_name: str
    schema: dict[str, Any]
    fingerprint: str
    number: int
    text: str | dict[str, Any]
    """The payload as the file spells it."""
    path: str | None
    unparsable: bool
    """Refused by the engine's own JSON parser, whose error names no path."""

    @property
    def payload(self) -> str:
        if isinstance(self.text, str):
            return self.text
        middle = self.text["between"].join([self.text["repeat"]] * self.text["times"])
        return self.text["before"] + middle + self.text["after"]

    @property
    def label(self) -> str:
        verdict = "accepted" if self.path is None else "refused"
        return f"{self.schema_name}-{verdict}-{self.number}"


def schemas() -> list[dict[str, Any]]:
    """The entries of the file as they stand there."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


def cases(engine: EngineName) -> list[WireCase]:
    """Every example that applies to an engine."""
    return [
        WireCase(
            schema_name=entry["name"],
            schema=entry["schema"],
            fingerprint=entry["fingerprint"],
            number=number,
            text=case["payload"],
            path=case.get("path"),
            unparsable=engine in case.get("unparsable", []),
        )
        for entry in schemas()
        for verdict in ("accepted", "refused")
        for number, case in enumerate(entry[verdict])
        if engine in case.get("engines", ["python", "postgresql", "sqlite"])
    ]
