"""The inbox's background work."""

from __future__ import annotations

from dever_sql import Jobs

from . import app

jobs = Jobs(database="default")


@jobs.job(retry=20, timeout=30_000)
def count(received: app.Received) -> None:
    app.count(received)


@jobs.cron("0 * * * *", retry=3, timeout=30_000)
def summarise() -> None:
    app.summarise()
