"""What an order is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    id: str
    email: str
    item: str
    quantity: int
    cents: int
    receipt_sent: bool
