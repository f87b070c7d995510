"""What a type checker refuses: every line with `# refused`, and no other."""

from __future__ import annotations

from datetime import UTC, datetime

from dever_sql import Jobs, ModelId, record
from dever_sql.testing import Kit


class Order:
    id: int


class User:
    id: int


@record
class Receipt:
    order: ModelId[Order]
    email: str


@record
class Other:
    email: str


jobs = Jobs()


@jobs.job(retry=5, timeout=30_000)
async def send(receipt: Receipt) -> None: ...


@jobs.job(retry=1, timeout=1_000)
def tidy() -> None: ...


receipt = Receipt(order=ModelId(Order, 7), email="a@example.org")
later = datetime.now(UTC)

# A wrong payload, or none.
send.enqueue(Other(email="a"), key="a")  # refused
send.enqueue({"email": "a"}, key="a")  # refused
send.enqueue(key="a")  # refused
send.enqueue(None, key="a")  # refused
send.enqueue_at(Other(email="a"), key="a", run_at=later)  # refused
send.enqueue_many([(Other(email="a"), "a")])  # refused

# A payload for a job without input.
tidy.enqueue(receipt, key="a")  # refused
tidy.enqueue_at(receipt, key="a", run_at=later)  # refused

# No key, or one that is no text.
send.enqueue(receipt)  # refused
send.enqueue(receipt, "a")  # refused
send.enqueue(receipt, key=7)  # refused
tidy.enqueue()  # refused
send.enqueue_at(receipt, key="a")  # refused
send.enqueue_at(receipt, key="a", run_at="tomorrow")  # refused

# A job is no function.
send(receipt)  # refused
tidy()  # refused


# The identity of another model.
Receipt(order=ModelId(User, 7), email="a")  # refused
Receipt(order=7, email="a")  # refused
order: ModelId[Order] = ModelId(User, 7)  # refused
ModelId(Order, 7.5)  # refused

# Records do not change, and have the fields they have.
receipt.email = "b"  # refused
Receipt(order=ModelId(Order, 7))  # refused


# Declarations.
@jobs.job(retry=1)  # refused
def no_timeout() -> None: ...


@jobs.job(timeout=1)  # refused
def no_retry() -> None: ...


@jobs.job(retry="3", timeout=1)  # refused
def text_for_a_number() -> None: ...


@jobs.job(retry=1, timeout=1)  # refused
def two(a: Receipt, b: Receipt) -> None: ...


@jobs.job(retry=1, timeout=1)  # refused
def answer(receipt: Receipt) -> int:
    return 1


@jobs.cron("0 3 * * *", retry=1, timeout=1)  # refused
def nightly(receipt: Receipt) -> None: ...


@jobs.cron("0 3 * * *", retry=1, timeout=1, missed="all")  # refused
def hourly() -> None: ...


async def main() -> None:
    await send(receipt)  # refused
    await send.aenqueue(Other(email="a"), key="a")  # refused
    await tidy.aenqueue(receipt, key="a")  # refused


# A fake is of something that is named.
def test_with_the_kit(dever: Kit) -> None:
    dever.fake(Order, Other(email="a"))  # refused
    dever.fake("shop.order.app.mail")  # refused
    dever.fake(Order, 7, Other(email="a"))  # refused
    dever.drain("all")  # refused
