"""Dever SQL: on PostgreSQL, or on SQLite when the URL says so."""

from __future__ import annotations

import itertools
import time

from measured import BATCH, arguments, enqueue_slowly, measured, pick_ups

from dever_sql import Jobs, database, record
from dever_sql.database import open_engine
from dever_sql.declare import all_jobs
from dever_sql.serving import tasks_of
from dever_sql.worker import Worker, WorkerOptions

jobs = Jobs()


@record
class Payload:
    number: int


@jobs.job(retry=3, timeout=60_000, name="nothing")
async def nothing(payload: Payload) -> None:
    if started is not None:
        started[payload.number] = time.time()


started: dict[int, float] | None = None
"""When each job started, where that is measured."""


def main() -> None:
    global started
    url, phase, count, slots = arguments()
    engine = open_engine(url)
    engine.install()
    database.use_engine("default", engine)
    options = WorkerOptions(workers=slots)
    if phase == "drain":
        worker = Worker(engine, tasks_of(all_jobs(), options), options)
        with measured():
            ran = worker.drain()
        assert ran == count, f"{ran} of {count} jobs ran"
        return
    if phase == "pick-up":
        started = {}
        worker = Worker(engine, tasks_of(all_jobs(), options), options)
        worker.start()
        pick_ups(started)
        worker.stop()
        worker.wait()
        return
    if phase == "enqueue-slowly":
        enqueue_slowly(count, lambda n: nothing.enqueue(Payload(number=n), key=f"slowly:{n}"))
        return
    nothing.enqueue(Payload(number=0), key=f"{phase}:warm")
    with measured():
        if phase == "enqueue-one":
            for number in range(1, count):
                nothing.enqueue(Payload(number=number), key=f"one:{number}")
        else:
            numbers = iter(range(1, count))
            while batch := list(itertools.islice(numbers, BATCH)):
                nothing.enqueue_many([(Payload(number=n), f"batch:{n}") for n in batch])
    engine.close()


main()
