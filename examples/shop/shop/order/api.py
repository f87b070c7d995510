"""Orders over HTTP: POST /orders {"id", "email", "item", "quantity"} and GET /orders/ID."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from . import app


async def orders(scope: Any, receive: Any, send: Any) -> None:
    """The routes of this domain, in plain ASGI so that the example needs no framework."""
    method, path = scope["method"], scope["path"]
    if method == "POST" and path == "/orders":
        await _answer(send, *await _place(await _body(receive)))
    elif method == "GET" and path.startswith("/orders/"):
        order = await app.find(path.removeprefix("/orders/"))
        if order is None:
            await _answer(send, 404, {"error": "there is no such order"})
        else:
            await _answer(send, 200, asdict(order))
    else:
        await _answer(send, 404, {"error": "POST /orders or GET /orders/ID"})


async def _place(body: bytes) -> tuple[int, dict[str, Any]]:
    try:
        order = json.loads(body)
        id, email, item = (str(order[name]) for name in ("id", "email", "item"))
        created = await app.place(id, email, item, int(order["quantity"]))
    except KeyError as error:
        return 400, {"error": f"{error} is missing"}
    except (TypeError, ValueError) as error:
        return 400, {"error": str(error)}
    return 201 if created else 200, {"id": id, "created": created}


async def _body(receive: Any) -> bytes:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _answer(send: Any, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
