"""Mail as files in a folder; a real one would hand them to a mail service."""

from __future__ import annotations

import asyncio
from pathlib import Path

from .port import Mail


class FolderMail(Mail):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, to: str, text: str, key: str) -> None:
        await asyncio.to_thread(self._write, f"To: {to}\n\n{text}\n", key)

    def _write(self, mail: str, key: str) -> None:
        self._folder.mkdir(exist_ok=True)
        # The key names the file, so a repetition replaces the mail by itself.
        (self._folder / f"{key.encode().hex()}.txt").write_text(mail, encoding="utf-8")
