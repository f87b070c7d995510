"""The program whose jobs the shell enqueues."""

from __future__ import annotations

from dever_sql import Jobs, record

jobs = Jobs()


@record
class Receipt:
    order_id: int
    email: str


@jobs.job(retry=5, timeout=30_000)
def send_receipt(receipt: Receipt) -> None:
    print(f"receipt for order {receipt.order_id}", flush=True)
