"""What a type checker accepts; read by pyright, never run."""

from __future__ import annotations

from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import assert_type

from dever_sql import Job, Jobs, Json, ModelId, job, record
from dever_sql.engine import Enqueued
from dever_sql.testing import Kit, Ran


class Order:
    id: int


class User:
    id: int


@record
class Receipt:
    order: ModelId[Order]
    email: str
    note: Json = None
    lines: list[str] = field(default_factory=list[str])


jobs = Jobs(database="default", queue="mail")


@jobs.job(retry=5, timeout=30_000)
async def send(receipt: Receipt) -> None: ...


@jobs.job(retry=5, timeout=30_000, name="shop.print")
def print_it(receipt: Receipt) -> None: ...


@jobs.job(retry=1, timeout=1_000)
def tidy() -> None:
    context = job.current()
    if context.attempt == 1:
        raise job.Retry(delay=timedelta(minutes=1))
    raise job.Dead("nothing to do")


@jobs.cron("0 3 * * *", retry=3, timeout=60_000, missed="skip")
async def nightly() -> None: ...


assert_type(send, Job[Receipt])
assert_type(print_it, Job[Receipt])
assert_type(tidy, Job[None])
assert_type(nightly, Job[None])

receipt = Receipt(order=ModelId(Order, 7), email="a@example.org")
assert_type(receipt.order, ModelId[Order])
later = datetime.now(UTC)

assert_type(send.enqueue(receipt, key="receipt:7"), Enqueued)
send.enqueue(receipt, key="receipt:7", connection=object())
send.enqueue_at(receipt, key="receipt:7", run_at=later)
assert_type(send.enqueue_many([(receipt, "a"), (receipt, "b", later)]), list[Enqueued])
tidy.enqueue(key="tidy")
tidy.enqueue_at(key="tidy", run_at=later)
tidy.enqueue_many(["a", "b"])
nightly.enqueue(key="by hand")


async def main() -> None:
    assert_type(await send.aenqueue(receipt, key="receipt:7"), Enqueued)
    await send.aenqueue_at(receipt, key="receipt:7", run_at=later)
    await tidy.aenqueue(key="tidy")
    await send.aenqueue_many([(receipt, "a")])


class FakeMail:
    sent: list[str]


def test_with_the_kit(dever: Kit) -> None:
    assert_type(dever.fake(job, "current", FakeMail()), FakeMail)
    assert_type(dever.fake("shop.order.app.mail", FakeMail()), FakeMail)
    assert_type(dever.drain(), list[Ran])
