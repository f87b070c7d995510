"""pgqueuer, with asyncpg, in batches of as many jobs as there are slots. It wants room for twice as
many jobs at once as a batch has, and gets it for four times as many."""

from __future__ import annotations

import asyncio
import itertools
import json

import asyncpg
from measured import BATCH, arguments, measured
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
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
    queue = PgQueuer(driver)
    ran = 0

    @queue.entrypoint("nothing")
    async def nothing(job: object) -> None:
        nonlocal ran
        ran += 1

    with measured():
        await queue.run(
            batch_size=slots,
            max_concurrent_tasks=4 * slots,
            mode=QueueExecutionMode.drain,
        )
    assert ran == count, f"{ran} of {count} jobs ran"


asyncio.run(main())
