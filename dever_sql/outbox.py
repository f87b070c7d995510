"""The outbox: messages that commit with the caller's rows, delivered at least once (R7.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .engine import Engine
from .queue import Message
from .wire import encode_json

_QUEUE: Final = "__dever_outbox:"


class Outbox:
    """A handle on the outbox of that name.

    Its queue has a reserved name that ordinary sends cannot reach. Defaults: 60 s visibility, 5
    attempts, backoff from 5 s.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def __repr__(self) -> str:
        return f"Outbox({self.name!r})"

    def enqueue(
        self,
        payload: object = None,
        *,
        key: str | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int:
        """Put a message in and return its id.

        With `connection`, the caller's open connection or session, it commits or rolls back with
        the caller's rows; without it is one short transaction.
        """
        return self._engine.outbox_enqueue(
            self.name, encode_json(payload), key, max_attempts, connection
        )

    def run_once(self, worker: str, delivery: Callable[[Message], Any]) -> bool:
        """Deliver one due message; True if one was claimed, False if there was none.

        `delivery` gets the message. When it returns, the message is acknowledged; when it raises,
        the message is delivered again on the curve, or dead after its attempts, with the
        exception's type and place recorded. It must bear repetition: a delivery whose
        acknowledgement is lost comes again.
        """
        message = self.claim(worker)
        if message is None:
            return False
        try:
            delivery(message)
        except Exception as error:
            message.retry(error)
        else:
            message.ack()
        return True

    def claim(self, worker: str) -> Message | None:
        """One due message for a delivery that acknowledges by itself; None if there is none."""
        claimed = self._engine.claim(_QUEUE + self.name, worker, 1)
        return Message(self._engine, claimed[0], None) if claimed else None
