"""What things cost."""

from __future__ import annotations

PRICES = {"tea": 450, "cup": 1_250, "kettle": 3_900}
"""Cents apiece."""


def total(item: str, quantity: int) -> int:
    """The price of an order in cents. Raises ValueError for what cannot be ordered."""
    if item not in PRICES:
        raise ValueError(f"there is no {item!r}; there are {', '.join(PRICES)}")
    if not 1 <= quantity <= 100:
        raise ValueError("the quantity must be from 1 to 100")
    return PRICES[item] * quantity


def receipt_text(item: str, quantity: int, cents: int) -> str:
    return f"{quantity} x {item}: {cents / 100:.2f}"
