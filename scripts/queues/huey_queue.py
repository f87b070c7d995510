"""huey on SQLite, with four threads (it has no batches), as durable as SQLite can be."""

from __future__ import annotations

import logging
import threading

from huey import SqliteHuey
from measured import arguments, measured

URL, PHASE, COUNT, _ = arguments()
huey = SqliteHuey(filename=URL.removeprefix("sqlite:///"), fsync=True, results=False)
finished = threading.Event()
ran = 0
count_lock = threading.Lock()


@huey.task(name="nothing")
def nothing(number: int) -> None:
    global ran
    with count_lock:
        ran += 1
        if ran == COUNT:
            finished.set()


def main() -> None:
    logging.disable()
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
