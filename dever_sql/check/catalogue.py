"""The rules of `dever check`: a stable code each, what it says, a wrong and a right example.

A code is never used again for another rule. DEV0 reading, DEV1 layout, DEV2 roles, DEV3
declarations, DEV4 enqueue, DEV5 transactions, DEV6 schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its code, the requirement it holds, and how to keep it. The examples are texts."""

    code: str
    requirement: str
    title: str
    wrong: str
    right: str


_RULES: Final = (
    Rule(
        "DEV001",
        "R1",
        "A file is valid Python in UTF-8.",
        "def send(:\n",
        "def send():\n    ...\n",
    ),
    Rule(
        "DEV002",
        "R1",
        "A comment that ignores a finding names known codes and gives a reason.",
        "from . import domain  # dever: ignore[DEV201]\n",
        "from . import domain  # dever: ignore[DEV201] goes away with the old job, issue 71\n",
    ),
    Rule(
        "DEV003",
        "R1",
        "A comment that ignores a finding has a finding to ignore.",
        "from . import app  # dever: ignore[DEV201] was a domain once\n",
        "from . import app\n",
    ),
    Rule(
        "DEV101",
        "R1.1",
        "A domain has one job source: job.py or job/.",
        "shop/order/job.py\nshop/order/job/refunds.py\n",
        "shop/order/job/__init__.py\nshop/order/job/receipts.py\nshop/order/job/refunds.py\n",
    ),
    Rule(
        "DEV102",
        "R1.1",
        "A job directory has two topics or more.",
        "shop/order/job/__init__.py\nshop/order/job/receipts.py\n",
        "shop/order/job.py\n",
    ),
    Rule(
        "DEV103",
        "R1.1",
        "A job directory is flat.",
        "shop/order/job/mail/receipts.py\n",
        "shop/order/job/receipts.py\nshop/order/job/reminders.py\n",
    ),
    Rule(
        "DEV104",
        "R1.1",
        "A file in a job directory is named after its topic.",
        "shop/order/job/utils.py\n",
        "shop/order/job/receipts.py\n",
    ),
    Rule(
        "DEV105",
        "R1.1",
        "A domain declares its jobs in its job source.",
        '# shop/order/app.py\njobs = Jobs(database="default")\n',
        '# shop/order/job.py\njobs = Jobs(database="default")\n',
    ),
    Rule(
        "DEV106",
        "R1.2",
        "A job source binds exactly one logical database.",
        'jobs = Jobs(database="default")\naudits = Jobs(database="audit")\n',
        'jobs = Jobs(database="default")\n',
    ),
    Rule(
        "DEV201",
        "R1.6",
        "A job calls only the App of its own domain.",
        "# shop/order/job.py\nfrom .domain import price\n",
        "# shop/order/job.py\nfrom . import app\n",
    ),
    Rule(
        "DEV202",
        "R1.8",
        "An API calls only the App of its own domain.",
        "# shop/order/api.py\nfrom .model import Order\n",
        "# shop/order/api.py\nfrom . import app\n",
    ),
    Rule(
        "DEV203",
        "R1.8",
        "An App calls its own Domain, Model and Port, and any App.",
        "# shop/order/app.py\nfrom shop.user.domain import may_buy\n",
        "# shop/order/app.py\nfrom shop.user import app as user\n",
    ),
    Rule(
        "DEV204",
        "R1.8",
        "A Domain calls only its own Domain.",
        "# shop/order/domain.py\nfrom . import app\n",
        "# shop/order/domain.py\ndef price(amounts: list[int]) -> int:\n    return sum(amounts)\n",
    ),
    Rule(
        "DEV205",
        "R1.8",
        "A Model calls nothing.",
        "# shop/order/model.py\nfrom .domain import price\n",
        "# shop/order/model.py\nclass Order:\n    id: int\n",
    ),
    Rule(
        "DEV206",
        "R1.8",
        "A Port calls nothing.",
        "# shop/order/port.py\nfrom .adapter import PostgresOrders\n",
        "# shop/order/port.py\nclass Orders(Protocol):\n    def load(self, id: int) -> str: ...\n",
    ),
    Rule(
        "DEV207",
        "R1.8",
        "An Adapter calls no App, Domain, Model or other Adapter.",
        "# shop/order/adapter.py\nfrom . import domain\n",
        "# shop/order/adapter.py\nfrom .port import Orders\n",
    ),
    Rule(
        "DEV208",
        "R1.8",
        "An Adapter implements one Port.",
        "class Everything(Orders, Mail): ...\n",
        "class PostgresOrders(Orders): ...\n\nclass SmtpMail(Mail): ...\n",
    ),
    Rule(
        "DEV301",
        "R1.4",
        "retry is the total number of starts, an integer from 1 to 100.",
        "@jobs.job(retry=0, timeout=30_000)\n",
        "@jobs.job(retry=5, timeout=30_000)\n",
    ),
    Rule(
        "DEV302",
        "R1.4",
        "timeout is an integer of milliseconds from 1 to 3,600,000.",
        "@jobs.job(retry=5, timeout=30.0)\n",
        "@jobs.job(retry=5, timeout=30_000)\n",
    ),
    Rule(
        "DEV303",
        "R1.3",
        "A job takes nothing or one record.",
        "async def send(order: int, email: str) -> None: ...\n",
        "async def send(receipt: app.Receipt) -> None: ...\n",
    ),
    Rule(
        "DEV304",
        "R1.3",
        "A job returns nothing.",
        "async def send(receipt: app.Receipt) -> bool: ...\n",
        "async def send(receipt: app.Receipt) -> None: ...\n",
    ),
    Rule(
        "DEV305",
        "R1.3",
        "A job's input is a record that the App of its own domain declares.",
        "# shop/order/job.py\ndef send(user: user_app.User) -> None: ...\n",
        "# shop/order/job.py\ndef send(receipt: app.Receipt) -> None: ...\n",
    ),
    Rule(
        "DEV306",
        "R2.1",
        "Every field of a payload has a wire-safe type.",
        "@record\nclass Receipt:\n    lines: dict[str, int]\n",
        "@record\nclass Line:\n    name: str\n    amount: int\n\n"
        "@record\nclass Receipt:\n    lines: list[Line]\n",
    ),
    Rule(
        "DEV307",
        "R6.1",
        "A cron job has a five-field UTC cron spec that every engine reads alike.",
        '@jobs.cron("@daily", retry=3, timeout=60_000)\n',
        '@jobs.cron("0 3 * * *", retry=3, timeout=60_000)\n',
    ),
    Rule(
        "DEV308",
        "R6.3",
        "A cron job takes no input.",
        '@jobs.cron("0 3 * * *", retry=3, timeout=60_000)\ndef nightly(day: Day) -> None: ...\n',
        '@jobs.cron("0 3 * * *", retry=3, timeout=60_000)\ndef nightly() -> None: ...\n',
    ),
    Rule(
        "DEV309",
        "R1.3",
        "A target is a name of 1 to 255 bytes without a colon, and no two jobs share one.",
        '@jobs.job(retry=3, timeout=1_000, name="order:send")\n',
        '@jobs.job(retry=3, timeout=1_000, name="order.send")\n',
    ),
    Rule(
        "DEV310",
        "R1.3",
        "A job is declared by a decorator on a function at the top of its module.",
        "send = jobs.job(retry=3, timeout=1_000)(app.send)\n",
        "@jobs.job(retry=3, timeout=1_000)\n"
        "def send(receipt: app.Receipt) -> None:\n    app.send(receipt)\n",
    ),
    Rule(
        "DEV311",
        "R1.3",
        "A job source leaves its annotations unevaluated, so that App and job may import each "
        "other.",
        "from dever_sql import Jobs\n",
        "from __future__ import annotations\n\nfrom dever_sql import Jobs\n",
    ),
    Rule(
        "DEV312",
        "R6.6",
        "missed is catch_up, latest or skip.",
        '@jobs.cron("0 3 * * *", retry=3, timeout=1_000, missed="all")\n',
        '@jobs.cron("0 3 * * *", retry=3, timeout=1_000, missed="latest")\n',
    ),
    Rule(
        "DEV313",
        "R1.3",
        "A payload's types are there when the program runs.",
        "if TYPE_CHECKING:\n    from . import app\n\n"
        "@jobs.job(retry=3, timeout=1_000)\ndef send(receipt: app.Receipt) -> None: ...\n",
        "from . import app\n\n"
        "@jobs.job(retry=3, timeout=1_000)\ndef send(receipt: app.Receipt) -> None: ...\n",
    ),
    Rule(
        "DEV401",
        "R1.5",
        "A declared job is enqueued, never called.",
        "await job.send_receipt(receipt)\n",
        'await job.send_receipt.aenqueue(receipt, key="receipt:7")\n',
    ),
    Rule(
        "DEV402",
        "R1.5",
        "A declared job is not handed on as a value.",
        "retries = {1: job.send_receipt}\n",
        'job.send_receipt.enqueue(receipt, key="receipt:7")\n',
    ),
    Rule(
        "DEV403",
        "R1.7",
        "Only an App enqueues.",
        "# shop/order/api.py\njob.send_receipt.enqueue(receipt, key=key)\n",
        "# shop/order/api.py\napp.place(order)\n",
    ),
    Rule(
        "DEV404",
        "R1.7",
        "An App enqueues only jobs of its own domain.",
        "# shop/user/app.py\nfrom shop.order import job\n",
        "# shop/user/app.py\nfrom shop.order import app as order\n",
    ),
    Rule(
        "DEV405",
        "R1.7",
        "An enqueue names its job by a static reference.",
        "getattr(job, kind).enqueue(receipt, key=key)\n",
        "job.send_receipt.enqueue(receipt, key=key)\n",
    ),
    Rule(
        "DEV406",
        "R3.3",
        "run_at is an instant, with a time zone.",
        "job.remind.enqueue_at(key=key, run_at=datetime.now())\n",
        "job.remind.enqueue_at(key=key, run_at=datetime.now(UTC))\n",
    ),
    Rule(
        "DEV501",
        "R3.5",
        "A job is enqueued in a transaction on its own database.",
        'with transaction("audit") as tx:\n    job.send_receipt.enqueue(receipt, key=key)\n',
        'with transaction("default") as tx:\n    job.send_receipt.enqueue(receipt, key=key)\n',
    ),
    Rule(
        "DEV601",
        "R7.4",
        "A stored schedule has a spec that both engines accept.",
        'store.schedule("report", "@hourly", "reports", {})\n',
        'store.schedule("report", "@every 1h", "reports", {})\n',
    ),
)

RULES: Final = {rule.code: rule for rule in _RULES}
"""Every rule by its code."""


def explain(rule: Rule) -> str:
    """The rule as `dever check --explain CODE` shows it."""
    wrong = "".join(f"    {line}\n" for line in rule.wrong.splitlines())
    right = "".join(f"    {line}\n" for line in rule.right.splitlines())
    return (
        f"{rule.code} ({rule.requirement}): {rule.title}\n\nWrong:\n\n{wrong}\nRight:\n\n{right}\n"
        f"Where it cannot be followed: # dever: ignore[{rule.code}] and the reason.\n"
    )
