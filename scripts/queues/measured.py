"""What the programs beside this file share: arguments and the line they answer with."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
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


def enqueue_slowly(count: int, enqueue: Callable[[int], object]) -> None:
    """Enqueue one job after the other, so slowly that the worker sleeps in between; prints when
    each was committed."""
    committed: list[float] = []
    for number in range(count):
        enqueue(number)
        committed.append(time.time())
        time.sleep(0.02)
    print(json.dumps(committed))


def pick_ups(started: Mapping[int, float]) -> None:
    """Let another process enqueue slowly while a worker runs in this one, and print how long after
    its commit each job was `started`: milliseconds, the median and the 99th percentile."""
    url, _, count, slots = arguments()
    enqueuer = [sys.executable, sys.argv[0], url, "enqueue-slowly", str(count), str(slots)]
    said = subprocess.run(enqueuer, check=True, capture_output=True, text=True).stdout
    committed: list[float] = json.loads(said.splitlines()[-1])
    deadline = time.monotonic() + 10
    while len(started) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    # A job may start before the enqueuer hears of its own commit.
    took = sorted(max(0.0, started[n] - committed[n]) * 1e3 for n in range(count))
    print(json.dumps({"p50": took[count // 2], "p99": took[count * 99 // 100]}))
