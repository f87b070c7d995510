"""Queues without declared jobs: send messages, claim them in batches, finish each (R7.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from .engine import Claimed, Engine
from .failure import describe, storable
from .wire import decode_json, encode_json

LONGEST_ERROR: Final = 1_000
_LONGEST_PAUSE: Final = 0.25


class Message:
    """A claimed message. It is ours until `lease_until`, unless its lease is renewed.

    `ack`, `retry`, `fail` and `heartbeat` are False when the claim was lost: the lease ran out or
    somebody else claimed, cancelled or finished the message. Then nothing was changed.
    """

    __slots__ = ("_claimed", "_engine", "_lease")

    def __init__(self, engine: Engine, claimed: Claimed, lease: timedelta | None) -> None:
        self._engine = engine
        self._claimed = claimed
        self._lease = lease

    def __repr__(self) -> str:
        return f"Message(id={self.id}, token={self.token}, attempt={self.attempt})"

    @property
    def id(self) -> int:
        return self._claimed.id

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every claim before (R4.4)."""
        return self._claimed.token

    @property
    def key(self) -> str | None:
        return self._claimed.key

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self._claimed.attempt

    @property
    def max_attempts(self) -> int:
        return self._claimed.max_attempts

    @property
    def run_at(self) -> datetime:
        return self._claimed.run_at

    @property
    def lease_until(self) -> datetime:
        """Until when the claim holds, as it was made; `heartbeat` moves it in the database."""
        return self._claimed.lease_until

    @property
    def payload(self) -> Any:
        """The JSON value that was sent."""
        return decode_json(self._claimed.payload)

    def ack(self) -> bool:
        """Done: the message succeeded."""
        return self._verdict(lambda: self._engine.complete([self.id], [self.token])[0].ok)

    def retry(
        self, error: str | BaseException | None = None, delay: timedelta | None = None
    ) -> bool:
        """Failed: deliver again after `delay`, else on the curve; dead at its last attempt."""

        def ask() -> bool | None:
            outcome = self._engine.retry(
                [self.id], [self.token], ["handler_failed"], [_text(error)], [delay]
            )[0].outcome
            return None if outcome == "busy" else outcome != "lost"

        return self._verdict(ask)

    def fail(self, error: str | BaseException | None = None) -> bool:
        """Failed for good: dead, whatever attempts are left."""
        return self._verdict(
            lambda: (
                self._engine.bury([self.id], [self.token], ["handler_failed"], [_text(error)])[0].ok
            )
        )

    def heartbeat(self) -> bool:
        """Hold the claim for its full lease from now."""
        return self._verdict(lambda: self._engine.renew([self.id], [self.token], self._lease)[0].ok)

    def _verdict(self, ask: Callable[[], bool | None]) -> bool:
        """Ask until the row is not busy. Who holds it may decide, so there is no other end."""
        pause = 0.005
        while (verdict := ask()) is None:
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return verdict


class Queue:
    """A handle on the queue of that name. Any JSON value can be sent; limits as R2.4."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def send(
        self,
        payload: object = None,
        *,
        key: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        expires: timedelta | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int:
        """Send one message and return its id; an unfinished one with `key` keeps its own.

        `delay` wins over `run_at`; a delay <= 0 is due at once. `expires`: never delivered later
        than this from now. Without `connection` it is one short transaction, with it the message
        joins the transaction of the caller's connection or session.
        """
        return self._engine.send(
            self.name,
            encode_json(payload),
            key=key,
            delay=delay,
            run_at=run_at,
            expires=expires,
            max_attempts=max_attempts,
            connection=connection,
        )

    def send_many(self, payloads: Sequence[object]) -> list[int]:
        """Send messages in one transaction; their ids, in order."""
        return self._engine.send_many(self.name, [encode_json(payload) for payload in payloads])

    def claim(self, n: int = 1, *, worker: str, lease: timedelta | None = None) -> list[Message]:
        """Claim up to `n` due messages, oldest first; none when n <= 0 or the queue is paused.

        `lease`: for how long, instead of the queue's visibility that was stamped on each message.
        """
        claimed = self._engine.claim(self.name, worker, n, lease)
        return [Message(self._engine, one, lease) for one in claimed]


def _text(error: str | BaseException | None) -> str | None:
    """What is stored of an error: a text as it is, an exception's type and place (R5.5)."""
    if error is None:
        return None
    if isinstance(error, BaseException):
        return describe(error)
    return storable(error, LONGEST_ERROR)
