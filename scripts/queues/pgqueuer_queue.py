"""pgqueuer, with asyncpg, in batches of as many jobs as there are slots. `drain` sets no limit on
what runs at once, `drain-limited` one of four batches (it takes no less than two)."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import asyncpg
from measured import BATCH, arguments, enqueue_slowly, measured, pick_ups
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode


def payload(number: int) -> bytes:
    return json.dumps({"number": number}).encode()


async def main() -> None:
    url, phase, count, slots = arguments()
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    if not await queries.schema_is_installed():
        await queries.install()
    if phase == "enqueue-one":
        with measured():
            for number in range(count):
                await queries.enqueue("nothing", payload(number))
        return
    if phase == "enqueue-batch":
        with measured():
            numbers = iter(range(count))
            while batch := list(itertools.islice(numbers, BATCH)):
                await queries.enqueue(
                    ["nothing"] * len(batch), [payload(n) for n in batch], [0] * len(batch)
                )
        return
    if phase == "enqueue-slowly":
        loop = asyncio.get_running_loop()

        def enqueue(number: int) -> None:
            asyncio.run_coroutine_threadsafe(
                queries.enqueue("nothing", payload(number)), loop
            ).result()

        await asyncio.to_thread(enqueue_slowly, count, enqueue)
        return
    queue = PgQueuer(driver)
    ran = 0
    started: dict[int, float] = {}

    @queue.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        nonlocal ran
        ran += 1
        if phase == "pick-up":
            started[json.loads(job.payload or b"")["number"]] = time.time()

    if phase == "pick-up":
        running = asyncio.create_task(queue.run(batch_size=slots))
        await asyncio.to_thread(pick_ups, started)
        queue.shutdown.set()
        await running
        return
    with measured():
        await queue.run(
            batch_size=slots,
            max_concurrent_tasks=4 * slots if phase == "drain-limited" else None,
            mode=QueueExecutionMode.drain,
        )
    assert ran == count, f"{ran} of {count} jobs ran"


asyncio.run(main())
