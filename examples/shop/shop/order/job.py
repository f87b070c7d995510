"""The background work of orders."""

from __future__ import annotations

from dever_sql import Jobs

from . import app

jobs = Jobs(database="default")


@jobs.job(retry=10, timeout=30_000)
async def send_receipt(receipt: app.Receipt) -> None:
    await app.send_receipt(receipt)


@jobs.cron("5 0 * * *", retry=3, timeout=60_000)
async def close_days() -> None:
    await app.close_days()
