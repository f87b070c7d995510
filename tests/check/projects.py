"""Small projects on disk for the checker: a right one, and what breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dever_sql.check import check

FUTURE = "from __future__ import annotations\n"

SHOP: Mapping[str, str] = {
    "pyproject.toml": '[project]\nname = "shop"\n',
    "shop/__init__.py": "",
    "shop/order/__init__.py": "",
    "shop/order/app.py": FUTURE
    + """
from decimal import Decimal

from dever_sql import ModelId, record, transaction

from shop.user import app as user

from . import job
from .domain import price
from .model import Order
from .port import Mail


@record
class Receipt:
    order: ModelId[Order]
    email: str
    total: Decimal | None = None


async def place(order: Order) -> None:
    user.known(order.id)
    async with transaction("default"):
        receipt = Receipt(ModelId(Order, order.id), "a@example.org", price(order.amounts))
        await job.send_receipt.aenqueue(receipt, key=f"receipt:{order.id}")


async def send_receipt(receipt: Receipt, mail: Mail | None = None) -> None: ...


def close_day() -> None: ...
""",
    "shop/order/job.py": FUTURE
    + """
from dever_sql import Jobs

from . import app

jobs = Jobs(database="default")


@jobs.job(retry=5, timeout=30_000)
async def send_receipt(receipt: app.Receipt) -> None:
    await app.send_receipt(receipt)


@jobs.cron("0 3 * * *", retry=3, timeout=60_000)
def nightly() -> None:
    app.close_day()
""",
    "shop/order/domain.py": "def price(amounts):\n    return sum(amounts)\n",
    "shop/order/model.py": "class Order:\n    id: int\n    amounts: list[int]\n",
    "shop/order/port.py": FUTURE
    + """
from typing import Protocol

from .model import Order


class Mail(Protocol):
    def send(self, order: Order) -> None: ...
""",
    "shop/order/adapter.py": FUTURE
    + """
from .model import Order
from .port import Mail


class SmtpMail(Mail):
    def send(self, order: Order) -> None: ...
""",
    "shop/order/api.py": "from . import app\n\n\ndef post(order):\n    return app.place(order)\n",
    "shop/user/__init__.py": "",
    "shop/user/app.py": "def known(id):\n    return True\n",
    "shop/user/domain.py": "def may_buy(user):\n    return True\n",
    "shop/user/model.py": "class User:\n    id: int\n",
    "shop/main.py": "from shop.order import api\nfrom shop.order.adapter import SmtpMail\n",
}


def write(directory: Path, files: Mapping[str, str | None]) -> Path:
    """The shop with some files replaced, added or (None) left out."""
    for name, text in {**SHOP, **files}.items():
        if text is not None:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return directory


def codes(directory: Path, files: Mapping[str, str | None] = SHOP) -> list[str]:
    """The codes of the findings in the shop with these changes, each with its file."""
    found = check(write(directory, files), use_cache=False)
    return [f"{each.code} {each.path}" for each in found]


def only(directory: Path, name: str, text: str) -> list[str]:
    """The codes in one changed file."""
    found = check(write(directory, {name: text}), use_cache=False)
    return sorted({each.code for each in found if each.path == name})
