"""huey on SQLite, with four threads (it has no batches), as durable as SQLite can be."""

from __future__ import annotations

import logging
import threading
import time

from huey import SqliteHuey
from measured import arguments, enqueue_slowly, measured, pick_ups

URL, PHASE, COUNT, _ = arguments()
huey = SqliteHuey(filename=URL.removeprefix("sqlite:///"), fsync=True, results=False)
finished = threading.Event()
ran = 0
started: dict[int, float] = {}
count_lock = threading.Lock()


@huey.task(name="nothing")
def nothing(number: int) -> None:
    global ran
    started[number] = time.time()
    with count_lock:
        ran += 1
        if ran == COUNT:
            finished.set()


def main() -> None:
    logging.disable()
    if PHASE == "pick-up":
        consumer = huey.create_consumer(workers=4, periodic=False, initial_delay=0.001)
        consumer.start()
        pick_ups(started)
        consumer.stop(graceful=True)
        return
    if PHASE == "enqueue-slowly":
        enqueue_slowly(COUNT, nothing)
        return
    if PHASE != "drain":
        with measured():
            for number in range(COUNT):
                nothing(number)
        return
    consumer = huey.create_consumer(workers=4, periodic=False, initial_delay=0.001)
    with measured():
        consumer.start()
        finished.wait()
    consumer.stop(graceful=True)


main()
