"""What the programs beside this file share: arguments and the line they answer with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BATCH = 1_000


def arguments() -> tuple[str, str, int, int]:
    """URL, phase, count, slots."""
    url, phase, count, slots = sys.argv[1:]
    return url, phase, int(count), int(slots)


@contextmanager
def measured() -> Iterator[None]:
    """Prints how long the block took."""
    started, cpu = time.perf_counter(), time.process_time()
    yield
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}))
