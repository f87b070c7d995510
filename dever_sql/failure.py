"""What is kept of a failure: a type and a place, the message only on request (R5.5)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Final

from .credentials import hide_credentials
from .secret import hide_secrets

LONGEST_MESSAGE: Final = 1_000
LONGEST_REASON: Final = 200
_LONGEST_READ: Final = 10_000
"""How much of a message is looked at: one of 10 MB is not searched through."""
_TRACEBACK: Final[Any] = BaseException.__dict__["__traceback__"]
_SHORTEST_HIDDEN: Final = 3
"""Payload values below this length are words like `a` and `42`: hiding them hides the message."""


def describe(error: BaseException, *, payload: str | None = None) -> str:
    """`ValueError at app.py:12 in place`; with `payload` given also the message, without any of
    the payload's values and cut. Never fails, whatever the exception does."""
    shown = f"{_type_name(type(error))} at {_place(error)}"
    if payload is None:
        return shown
    message = _message(error, payload)
    return f"{shown}: {message}" if message else shown


def storable(text: object, limit: int) -> str:
    """Text that every database can store: no U+0000, no half surrogate, at most `limit` long."""
    try:
        value = str(text)[:limit]
    except BaseException:  # a handler's own object: nothing it does may stop the worker
        return "?"
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _type_name(kind: type[BaseException]) -> str:
    name = storable(kind.__qualname__, LONGEST_REASON)
    module = storable(kind.__module__, LONGEST_REASON)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _place(error: BaseException) -> str:
    # Past the object: what it answers when asked for an attribute is its own affair.
    traceback = _TRACEBACK.__get__(error)
    if traceback is None:
        return "unknown place"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    file = storable(os.path.basename(code.co_filename), LONGEST_REASON)
    return f"{file}:{traceback.tb_lineno} in {storable(code.co_name, LONGEST_REASON)}"


def _message(error: BaseException, payload: str) -> str:
    message = hide_secrets(hide_credentials(storable(error, _LONGEST_READ)))
    try:
        values = {text for text in _scalars(json.loads(payload)) if len(text) >= _SHORTEST_HIDDEN}
    except (ValueError, RecursionError):
        return ""
    for value in sorted((value for value in values if value in message), key=len, reverse=True):
        message = message.replace(value, "***")
    return message[:LONGEST_MESSAGE]


def _scalars(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value, as it may show up in a message."""
    pending = [value]
    while pending:
        item: Any = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        elif isinstance(item, list):
            pending.extend(item)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(item, str):
            yield item
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield str(item)
