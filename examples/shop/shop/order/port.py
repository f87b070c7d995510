"""What the domain needs from outside."""

from __future__ import annotations

from typing import Protocol


class Mail(Protocol):
    async def send(self, to: str, text: str, key: str) -> None:
        """Send a mail. Sending again with the same key must not reach anybody twice."""
        ...
