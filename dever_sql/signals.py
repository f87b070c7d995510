"""SIGTERM and Ctrl-C as a request to end: the first one drains, the second one exits (R8.4)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final

from .events import log_event

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_END: Final = 0


@contextlib.contextmanager
def signals_stop(stop: Callable[[], None], *, at_latest: float | None = None) -> Generator[None]:
    """Inside the block the first signal calls `stop`; a second one ends the process at once.

    `at_latest`: seconds after the first signal when the process ends with code 1, whatever hangs.
    Outside the main thread, which alone may set handlers, the block is just run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    thread = threading.Thread(
        target=_listen, args=(reader, stop, at_latest), name="dever-signals", daemon=True
    )
    thread.start()
    # The numbers of signals arrive in the pipe. A handler in Python would have to wait until the
    # main thread comes by, may interrupt code that holds any lock, and must not wait for one.
    pipe_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _do_nothing) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe_before)
        os.write(writer, bytes([_END]))
        thread.join(timeout=1.0)
        os.close(reader)
        os.close(writer)


def _do_nothing(_: int, __: FrameType | None) -> None:
    pass


def _listen(reader: int, stop: Callable[[], None], at_latest: float | None) -> None:
    received = False
    deadline: float | None = None
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not poll.poll(left):
            log_event("error", "something hangs, exiting without it")
            os._exit(1)
        for number in os.read(reader, 64):
            if number == _END:
                return
            if number not in _SIGNALS:
                continue
            if received:
                os._exit(128 + number)
            received = True
            if at_latest is not None:
                deadline = time.monotonic() + at_latest
            log_event("info", "signal received, draining", signal=signal.Signals(number).name)
            stop()
