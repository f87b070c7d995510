"""Delivers the notifications of the outbox to a URL, each at least once.

The receiver knows a repetition by the header `Idempotency-Key`.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request

from dever_sql import Store
from dever_sql.queue import Message


def run(url: str) -> None:
    """Deliver until the process is ended."""
    outbox = Store.of().outbox("notify")
    worker = f"relay-{os.getpid()}"

    def post(message: Message) -> None:
        request = urllib.request.Request(
            url,
            data=json.dumps(message.payload).encode(),
            headers={"Content-Type": "application/json", "Idempotency-Key": message.key or ""},
        )
        with urllib.request.urlopen(request, timeout=10):
            pass  # any status from 400 on has raised

    while True:
        if not outbox.run_once(worker, post):
            time.sleep(0.2)
