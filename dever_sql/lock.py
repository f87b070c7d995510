"""Named locks with a lease and a fencing token (R7.7)."""

from __future__ import annotations

import os
import socket
import uuid
from datetime import timedelta

from .engine import Engine


class Lease:
    """A lock that was acquired. `token` is larger than that of every holder before.

    Hand the token to what the lock protects: a holder that was frozen past its lease cannot know
    that it lost it, but its token is the smaller one.
    """

    __slots__ = ("_engine", "_ttl", "name", "owner", "token")

    def __init__(self, engine: Engine, name: str, owner: str, token: int, ttl: timedelta) -> None:
        self._engine = engine
        self._ttl = ttl
        self.name = name
        self.owner = owner
        self.token = token

    def __repr__(self) -> str:
        return f"Lease({self.name!r}, owner={self.owner!r}, token={self.token})"

    def renew(self, ttl: timedelta | None = None) -> bool:
        """Hold it for a full `ttl` from now (that of `acquire` if None); False when it was lost."""
        return self._engine.lock_renew(
            self.name, self.owner, self.token, self._ttl if ttl is None else ttl
        )

    def release(self) -> bool:
        """Give it back; False when it was lost or has expired, then nothing was changed."""
        return self._engine.lock_release(self.name, self.owner, self.token)


class Lock:
    """A handle on the lock of that name."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def __repr__(self) -> str:
        return f"Lock({self.name!r})"

    def acquire(self, ttl: timedelta, *, owner: str | None = None) -> Lease | None:
        """Take the lock for `ttl`; None while anyone holds it, the same owner included.

        `owner` is shown to others; None: this host and process, unique to this call.
        """
        owner = unique_owner() if owner is None else owner
        token = self._engine.lock_acquire(self.name, owner, ttl)
        return None if token is None else Lease(self._engine, self.name, owner, token, ttl)


def unique_owner() -> str:
    """A name for a holder in this process that no other holder has."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
