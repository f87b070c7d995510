"""The program: which APIs it has, and which adapters stand behind its ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .order import api, app
from .order.adapter import FolderMail

app.connect(FolderMail(Path("mail")))


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application that `dever run shop.main` serves in the modes api and all."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "http":
        await api.orders(scope, receive, send)


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await app.prepare()
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
