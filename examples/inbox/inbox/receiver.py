"""A receiver of notifications that fails at random, to show that none is lost."""

from __future__ import annotations

import random
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        luck = random.random()
        if luck < 0.15:
            self.send_error(503)
            return
        # Printed before the answer, like a receiver that works and then loses its connection.
        # One write for the whole line: each request has a thread of its own.
        sys.stdout.write(f"{self.headers['Idempotency-Key']}\n")
        sys.stdout.flush()
        if luck < 0.25:
            self.close_connection = True
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing but the keys is printed."""


def run(port: int) -> None:
    """Print the key of every notification that arrives, until the process is ended."""
    with ThreadingHTTPServer(("127.0.0.1", port), _Handler) as server:
        server.serve_forever()
