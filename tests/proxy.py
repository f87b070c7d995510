"""A way to a PostgreSQL server on which a test decides what becomes of each request."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

PASS = "pass"
CUT_BEFORE = "cut before"
"""The server never hears of the request."""
CUT_AFTER = "cut after"
"""The server has committed it, the answer is lost."""
HOLD = "hold"
"""The server has committed it, the answer waits for `Proxy.release`."""
SWALLOW = "swallow"
"""The server has committed it, and no byte passes on this connection any more. No reset either."""

Rule = Callable[[str], str]


class Proxy:
    """Forwards requests to the server of `url`. `rule` is asked before each one, with the text of
    its statement, and may wait as long as it likes."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
        self.rule: Rule = lambda _: PASS
        self.release = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, host: str, port: int) -> None:
        """Where new connections go from now on; those that are open stay where they are."""
        self._target = (host, port)

    def close(self) -> None:
        self._closed.set()
        self.release.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            server = socket.create_connection(self._target)
            with server:
                self._forward(_Side(client), _Side(server))

    def _forward(self, client: _Side, server: _Side) -> None:
        server.write(_start(client))
        prepared: dict[bytes, str] = {}
        # From here the server also speaks unasked: notifications, and the end of the session.
        threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
        while True:
            request, text = _request(client, prepared)
            action = self.rule(text) if text else PASS
            if action == CUT_BEFORE:
                return _cut(client, server)
            server.ask(action)
            server.write(request)
            if action == SWALLOW:
                self._closed.wait()

    def _answers(self, server: _Side, client: _Side) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, message = server.message()
                action = server.asked()
                if action == SWALLOW:
                    self._closed.wait()
                elif action == HOLD:
                    self.release.wait()
                if action != CUT_AFTER:
                    client.write(message)
                elif kind == b"Z":
                    break
                if kind == b"Z":
                    server.done()
        _cut(client, server)


class _Side:
    """One end of a connection: whole messages are read from it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._file = connection.makefile("rb")
        self._asked: list[str] = []

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def message(self) -> tuple[bytes, bytes]:
        kind = self.read(1)
        length = self.read(4)
        return kind, kind + length + self.read(struct.unpack("!I", length)[0] - 4)

    def write(self, data: bytes) -> None:
        self.connection.sendall(data)

    def ask(self, action: str) -> None:
        self._asked.append(action)

    def asked(self) -> str:
        """What is to become of the answer to the oldest request that has none yet."""
        return self._asked[0] if self._asked else PASS

    def done(self) -> None:
        if self._asked:
            self._asked.pop(0)


def _start(client: _Side) -> bytes:
    """The start of a session: the only messages without a kind. Encryption is declined."""
    while True:
        length = client.read(4)
        content = client.read(struct.unpack("!I", length)[0] - 4)
        if content[:4] in (struct.pack("!I", 80877103), struct.pack("!I", 80877104)):
            client.write(b"N")
            continue
        return length + content


def _request(client: _Side, prepared: dict[bytes, str]) -> tuple[bytes, str]:
    """Messages up to the one that the server answers, and the statement that they run, if any."""
    data = b""
    text = ""
    while True:
        kind, message = client.message()
        data += message
        content = message[5:]
        if kind == b"P":
            name, statement = content.split(b"\0")[:2]
            prepared[name] = statement.decode()
        elif kind == b"B":
            text = prepared.get(content.split(b"\0")[1], "")
        elif kind == b"Q":
            return data, content.rstrip(b"\0").decode()
        elif kind in (b"S", b"X", b"p"):
            return data, text


def _cut(*sides: _Side) -> None:
    for side in sides:
        with contextlib.suppress(OSError):
            side.connection.shutdown(socket.SHUT_RDWR)


def once(pattern: str, action: str) -> tuple[Rule, threading.Event]:
    """A rule for the first request whose statement has the pattern; set once it was applied."""
    applied = threading.Event()

    def rule(text: str) -> str:
        if not applied.is_set() and re.search(pattern, text):
            applied.set()
            return action
        return PASS

    return rule, applied
