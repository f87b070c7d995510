"""What can be done with orders."""

from __future__ import annotations

from datetime import UTC, datetime

from dever_sql import ModelId, record, transaction
from dever_sql import job as dever_job
from shop.statement import run

from . import job
from .domain import receipt_text, total
from .model import Order
from .port import Mail

_mail: Mail | None = None


@record
class Receipt:
    order: ModelId[Order]


def connect(mail: Mail) -> None:
    """Say how mail is sent, before any job runs."""
    global _mail
    _mail = mail


async def prepare() -> None:
    """Create the tables where they are missing."""
    async with transaction("default") as tx:
        await run(
            tx,
            "create table if not exists shop_order (id text primary key, email text not null,"
            " item text not null, quantity integer not null, cents integer not null,"
            " day text not null, receipt_sent integer not null default 0)",
        )
        await run(
            tx,
            "create table if not exists shop_day (day text primary key, orders integer not null,"
            " cents integer not null)",
        )


async def place(id: str, email: str, item: str, quantity: int) -> bool:
    """Place an order; False when it is there already. Its receipt is part of the same commit.

    Raises ValueError for what cannot be ordered.
    """
    cents = total(item, quantity)
    async with transaction("default") as tx:
        stored = await run(
            tx,
            "insert into shop_order (id, email, item, quantity, cents, day)"
            " values (:id, :email, :item, :quantity, :cents, :day)"
            " on conflict (id) do nothing returning id",
            {
                "id": id,
                "email": email,
                "item": item,
                "quantity": quantity,
                "cents": cents,
                "day": datetime.now(UTC).date().isoformat(),
            },
        )
        if stored:
            await job.send_receipt.aenqueue(Receipt(order=ModelId(Order, id)), key=f"receipt:{id}")
    return bool(stored)


async def find(id: str) -> Order | None:
    async with transaction("default") as tx:
        rows = await run(
            tx,
            "select id, email, item, quantity, cents, receipt_sent from shop_order where id = :id",
            {"id": id},
        )
    if not rows:
        return None
    [(id, email, item, quantity, cents, receipt_sent)] = rows
    return Order(id, email, item, quantity, cents, bool(receipt_sent))


async def send_receipt(receipt: Receipt) -> None:
    """Mail the receipt, then note it and complete the job in one commit.

    The mail may be sent again when the process dies in between; its key makes that harmless.
    """
    order = await find(str(receipt.order.value))
    if order is None or _mail is None:
        raise dever_job.Dead("no such order" if order is None else "no mail is connected")
    text = receipt_text(order.item, order.quantity, order.cents)
    await _mail.send(order.email, text, key=f"receipt:{order.id}")
    async with transaction("default") as tx:
        await run(tx, "update shop_order set receipt_sent = 1 where id = :id", {"id": order.id})
        await dever_job.current().acomplete(tx)


async def close_days() -> None:
    """Sum up the days that have orders."""
    async with transaction("default") as tx:
        await run(
            tx,
            "insert into shop_day (day, orders, cents)"
            " select day, count(*), sum(cents) from shop_order where true group by day"
            " on conflict (day) do update set orders = excluded.orders, cents = excluded.cents",
        )
