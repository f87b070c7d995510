"""SIGTERM and Ctrl-C as a request to end: the first one drains, the second one exits (R8.4)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType

from .events import log_event


@contextlib.contextmanager
def signals_stop(stop: Callable[[], None], *, at_latest: float | None = None) -> Generator[None]:
    """Inside the block the first signal calls `stop`; a second one ends the process at once.

    `at_latest`: seconds after the first signal when the process ends with code 1, whatever hangs.
    `stop` runs on a thread of its own: a handler of signals may interrupt code that holds any
    lock, and must not wait for one. Outside the main thread, which alone gets signals, the block
    is just run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    ended = threading.Event()
    reader, writer = os.pipe()

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(128 + number)
        os.write(writer, b"s")

    def listen() -> None:
        os.read(reader, 1)
        if ended.is_set():
            return
        name = signal.Signals(received[0]).name
        log_event("info", "signal received, draining", signal=name)
        stop()
        if not ended.wait(at_latest):
            log_event("error", "something hangs, exiting without it", signal=name)
            os._exit(1)

    thread = threading.Thread(target=listen, name="dever-signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        ended.set()
        os.write(writer, b"e")
        thread.join(timeout=1.0)
        os.close(reader)
        os.close(writer)
