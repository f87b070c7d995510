"""Every rule broken in five ways: direct, by an alias, through a re-export, by a star import, and
by an import for the type checker only that is used all the same.

A rule about a name is broken by importing that name in each way. What cannot be broken in a way
says so in `CANNOT`; together the two tables hold every rule and every way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from check.projects import FUTURE, SHOP, codes

from dever_sql.check.catalogue import RULES

pytestmark = [
    pytest.mark.req("R1.1", "R1.2", "R1.3", "R1.4", "R1.5", "R1.6", "R1.7", "R1.8"),
    pytest.mark.req("R2.1", "R3.3", "R3.5", "R6.1", "R6.3", "R6.6", "R7.4"),
]

WAYS = {
    "direct": ("from {module} import {name}\n", "{name}"),
    "alias": ("from {module} import {name} as other\n", "other"),
    "re-export": ("from shop.shown import {name}\n", "{name}"),
    "star": ("from {module} import *\n", "{name}"),
    "type checking": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {module} import {name}\n",
        "{name}",
    ),
}


@dataclass(frozen=True)
class Broken:
    """A file that breaks a rule with a name of a module. `body` has the name as `{use}`."""

    file: str
    module: str
    name: str
    body: str
    head: str = ""
    files: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])


ORDER_APP = SHOP["shop/order/app.py"]
ORDER_JOB = SHOP["shop/order/job.py"].removeprefix(FUTURE)
AROUND: Mapping[str, str | None] = {
    "shop/settings.py": "RETRY = 0\nTIMEOUT = 1.5\nSPEC = '@daily'\nMISSED = 'all'\nNAME = 'a:b'\n"
    "AUDIT = 'audit'\nclass Plain: ...\n",
    "shop/line.py": FUTURE
    + "from dever_sql import Jobs, record\njobs = Jobs()\n@record\nclass Day:\n    number: int\n",
}
RECORD = "from dever_sql import record\n@record\nclass Visit:\n    day: int\n"


def calling(role: str, module: str, name: str) -> Broken:
    """A file of a role of the order domain that calls what it may not."""
    body = "def f():\n    return {use}()\n"
    kept = {"job": ORDER_JOB, "app": ORDER_APP.removeprefix(FUTURE)}.get(role, "")
    return Broken(f"shop/order/{role}.py", module, name, kept + body)


def setting(name: str, declaration: str) -> Broken:
    """A script with a declaration that takes a setting from another file."""
    body = f"jobs = Jobs()\n@jobs.{declaration}\ndef work() -> None: ...\n"
    head = "from dever_sql import Jobs\n"
    return Broken("shop/tasks.py", "shop.settings", name, body, head)


def declaring(body: str) -> Broken:
    """A script that declares a job with the `jobs` of another file."""
    return Broken("shop/tasks.py", "shop.line", "jobs", body, "from shop.line import Day\n")


def enqueueing(
    file: str, body: str, name: str = "nightly", module: str = "shop.order.job"
) -> Broken:
    kept = {"shop/order/app.py": ORDER_APP, "shop/user/app.py": SHOP["shop/user/app.py"]}
    return Broken(file, module, name, kept.get(file, "").removeprefix(FUTURE) + body)


BROKEN: Mapping[str, Broken] = {
    "DEV105": Broken("shop/order/app.py", "dever_sql", "Jobs", "jobs = {use}()\n"),
    "DEV105 decorator": Broken(
        "shop/order/app.py",
        "shop.order.job",
        "jobs",
        ORDER_APP.removeprefix(FUTURE)
        + "@{use}.job(retry=1, timeout=1)\ndef work() -> None: ...\n",
    ),
    "DEV106": Broken("shop/order/job.py", "dever_sql", "Jobs", ORDER_JOB + "more = {use}()\n"),
    "DEV201": calling("job", "shop.order.domain", "price"),
    "DEV202": calling("api", "shop.order.domain", "price"),
    "DEV203": calling("app", "shop.user.domain", "may_buy"),
    "DEV204": calling("domain", "shop.order.model", "Order"),
    "DEV205": calling("model", "shop.order.domain", "price"),
    "DEV206": calling("port", "shop.order.domain", "price"),
    "DEV207": calling("adapter", "shop.order.domain", "price"),
    "DEV208": Broken(
        "shop/order/adapter.py",
        "shop.order.port",
        "Orders",
        "class Both(Mail, {use}): ...\n",
        "from shop.order.port import Mail\n",
        {"shop/order/port.py": "class Mail: ...\nclass Orders: ...\n", "shop/main.py": ""},
    ),
    "DEV301": setting("RETRY", "job(retry={use}, timeout=1)"),
    "DEV302": setting("TIMEOUT", "job(retry=1, timeout={use})"),
    "DEV301 decorator": declaring("@{use}.job(retry=0, timeout=1)\ndef work() -> None: ...\n"),
    "DEV302 decorator": declaring("@{use}.job(retry=1, timeout=0)\ndef work() -> None: ...\n"),
    "DEV303": declaring("@{use}.job(retry=1, timeout=1)\ndef work(a: Day, b: Day) -> None: ...\n"),
    "DEV304": declaring("@{use}.job(retry=1, timeout=1)\ndef work(day: Day) -> int: ...\n"),
    "DEV305": Broken(
        "shop/order/job.py",
        "shop.user.app",
        "Visit",
        ORDER_JOB + "@jobs.job(retry=1, timeout=1)\ndef work(visit: {use}) -> None: ...\n",
        "",
        {"shop/user/app.py": RECORD + SHOP["shop/user/app.py"]},
    ),
    "DEV306": Broken(
        "shop/order/app.py",
        "shop.settings",
        "Plain",
        ORDER_APP.removeprefix(FUTURE).replace("email: str", "email: {use}"),
    ),
    "DEV307": setting("SPEC", "cron({use}, retry=1, timeout=1)"),
    "DEV307 decorator": declaring(
        "@{use}.cron('@daily', retry=1, timeout=1)\ndef work() -> None: ...\n"
    ),
    "DEV308": declaring(
        "@{use}.cron('0 3 * * *', retry=1, timeout=1)\ndef work(day: Day) -> None: ...\n"
    ),
    "DEV309": setting("NAME", "job(retry=1, timeout=1, name={use})"),
    "DEV310": declaring("def run() -> None: ...\nwork = {use}.job(retry=1, timeout=1)(run)\n"),
    "DEV312": setting("MISSED", "cron('0 3 * * *', retry=1, timeout=1, missed={use})"),
    "DEV313": Broken(
        "shop/tasks.py",
        "shop.line",
        "Day",
        "from dever_sql import Jobs\njobs = Jobs()\n"
        "@jobs.job(retry=1, timeout=1)\ndef work(day: {use}) -> None: ...\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    ",
    ),
    "DEV313 field": Broken(
        "shop/order/app.py",
        "shop.settings",
        "Plain",
        ORDER_APP.removeprefix(FUTURE).replace("email: str", "email: {use}"),
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    ",
    ),
    "DEV401": enqueueing("shop/order/app.py", "def f():\n    {use}()\n"),
    "DEV402": enqueueing("shop/order/app.py", "def f():\n    return [{use}]\n"),
    "DEV403": enqueueing("shop/cli.py", "def f():\n    {use}.enqueue(key='a')\n"),
    "DEV404": enqueueing("shop/user/app.py", "def f():\n    {use}.enqueue(key='a')\n"),
    "DEV405": enqueueing(
        "shop/order/app.py",
        "def f(x):\n    getattr({use}, x).enqueue(key='a')\n",
        "job",
        "shop.order",
    ),
    "DEV406": enqueueing(
        "shop/order/app.py",
        "def f():\n    job.nightly.enqueue_at(key='a', run_at={use}.now())\n",
        "datetime",
        "datetime",
    ),
    "DEV501": enqueueing(
        "shop/order/app.py",
        "def f():\n    with {use}('audit'):\n        job.nightly.enqueue(key='a')\n",
        "transaction",
        "dever_sql",
    ),
    "DEV501 name": enqueueing(
        "shop/order/app.py",
        "def f():\n    with transaction({use}):\n        job.nightly.enqueue(key='a')\n",
        "AUDIT",
        "shop.settings",
    ),
    "DEV601 spec": Broken(
        "shop/plan.py",
        "shop.settings",
        "SPEC",
        "store = Store.open('sqlite:///x.db')\nstore.schedule('a', {use}, 'q', {})\n",
        "from dever_sql import Store\n",
    ),
    "DEV601": Broken(
        "shop/plan.py",
        "dever_sql",
        "Store",
        "store = {use}.open('sqlite:///x.db')\nstore.schedule('a', '@daily', 'q', {})\n",
    ),
}

NO_NAME = "it is about a file's text or place, where no name is imported"
UNDER = "every way of this rule stands under TYPE_CHECKING"
ANY = tuple(WAYS)
CANNOT: Mapping[str, Mapping[str, str]] = {
    **{
        code: dict.fromkeys(ANY, NO_NAME)
        for code in ("DEV001", "DEV002", "DEV003", "DEV101", "DEV102", "DEV103", "DEV104")
    },
    "DEV306": {"type checking": "a type that is not there when it runs is DEV313"},
    "DEV313": {"type checking": UNDER},
    "DEV313 field": {"type checking": UNDER},
    "DEV311": dict.fromkeys(ANY, "from __future__ has one spelling; the language allows no other"),
}


def ways() -> list[tuple[str, str]]:
    return [(rule, way) for rule in BROKEN for way in WAYS if way not in CANNOT.get(rule, {})]


@pytest.mark.parametrize(("rule", "way"), ways())
def test_a_rule_is_broken(tmp_path: Path, rule: str, way: str) -> None:
    broken = BROKEN[rule]
    statement, use = (text.format(module=broken.module, name=broken.name) for text in WAYS[way])
    text = FUTURE + broken.head + statement + broken.body.replace("{use}", use)
    shown = WAYS["direct"][0].format(module=broken.module, name=broken.name)
    files = {**AROUND, **broken.files, "shop/shown.py": shown}
    assert f"{rule[:6]} {broken.file}" in codes(tmp_path, {**files, broken.file: text})


@pytest.mark.parametrize("rule", BROKEN)
def test_what_is_around_it_is_right(tmp_path: Path, rule: str) -> None:
    assert codes(tmp_path, {**AROUND, **BROKEN[rule].files}) == []


def test_every_rule_and_every_way_is_in_the_tables() -> None:
    assert {rule[:6] for rule in (*BROKEN, *CANNOT)} == set(RULES)
    for rule in RULES.keys() - BROKEN.keys():
        assert CANNOT[rule].keys() == WAYS.keys()
