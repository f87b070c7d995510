"""procrastinate, with as many jobs at once as there are slots."""

from __future__ import annotations

import asyncio
import itertools
import time

import procrastinate
from measured import BATCH, arguments, enqueue_slowly, measured, pick_ups

URL, PHASE, COUNT, SLOTS = arguments()
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))
ran = 0
started: dict[int, float] = {}


@app.task(name="nothing")
async def nothing(number: int) -> None:
    global ran
    ran += 1
    if PHASE == "pick-up":
        started[number] = time.time()


async def main() -> None:
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        if PHASE == "pick-up":
            running = asyncio.create_task(
                app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False)
            )
            await asyncio.to_thread(pick_ups, started)
            running.cancel()
            await asyncio.wait([running])
            return
        if PHASE == "enqueue-slowly":
            loop = asyncio.get_running_loop()

            def enqueue(number: int) -> None:
                asyncio.run_coroutine_threadsafe(nothing.defer_async(number=number), loop).result()

            await asyncio.to_thread(enqueue_slowly, COUNT, enqueue)
            return
        with measured():
            if PHASE == "enqueue-one":
                for number in range(COUNT):
                    await nothing.defer_async(number=number)
            elif PHASE == "enqueue-batch":
                numbers = iter(range(COUNT))
                while batch := list(itertools.islice(numbers, BATCH)):
                    await nothing.batch_defer_async(*({"number": number} for number in batch))
            else:
                await app.run_worker_async(
                    wait=False, concurrency=SLOTS, install_signal_handlers=False
                )
        if PHASE == "drain":
            assert ran == COUNT, f"{ran} of {COUNT} jobs ran"


asyncio.run(main())
