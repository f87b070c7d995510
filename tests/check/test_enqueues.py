"""Who enqueues what (R1.5, R1.7), transactions (R3.5) and schedules (R7.4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.projects import FUTURE, SHOP, codes, only

ORDER_APP = SHOP["shop/order/app.py"]


def in_app(tmp_path: Path, text: str) -> list[str]:
    return only(tmp_path, "shop/order/app.py", ORDER_APP + text)


@pytest.mark.req("R1.5")
@pytest.mark.parametrize(
    "text",
    [
        "async def f(r):\n    await job.send_receipt(r)\n",
        "from .job import send_receipt as send\nasync def f(r):\n    await send(r)\n",
        "send = job.send_receipt\ndef f(r):\n    send(r)\n",
        "from .shown import nightly\ndef f():\n    nightly()\n",
        "from .job import *\ndef f():\n    nightly()\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .job import nightly\n"
        "def f():\n    nightly()\n",
        "def f():\n    from .job import nightly\n    nightly()\n",
    ],
)
def test_a_job_is_not_called(tmp_path: Path, text: str) -> None:
    files = {
        "shop/order/app.py": ORDER_APP + text,
        "shop/order/shown.py": "from .job import nightly\n",
    }
    assert codes(tmp_path, files) == ["DEV401 shop/order/app.py"]


@pytest.mark.req("R1.5")
@pytest.mark.parametrize(
    "text",
    [
        "handlers = {1: job.send_receipt}\n",
        "handlers = [job.nightly]\n",
        "import functools\nf = functools.partial(job.send_receipt)\n",
        "def f():\n    return job.nightly\n",
        "def f(x):\n    (job.nightly if x else job.send_receipt).enqueue(key='a')\n",
        "def f():\n    job.nightly.handler()\n",
        "from .job import *\nx = [nightly]\n",
    ],
)
def test_a_job_is_not_handed_on(tmp_path: Path, text: str) -> None:
    assert in_app(tmp_path, text) == ["DEV402"]


ENQUEUE = {
    "direct": ("from shop.order import job\n", "job.nightly"),
    "alias": ("import shop.order.job as line\n", "line.nightly"),
    "function": ("from shop.order.job import nightly as night\n", "night"),
    "re-export": ("from shop.order.shown import nightly\n", "nightly"),
    "star": ("from shop.order.job import *\n", "nightly"),
    "assigned": ("from shop.order import job\nsend = job.nightly\n", "send"),
    "type checking": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.order import job\n",
        "job.nightly",
    ),
}
SHOWN = {"shop/order/shown.py": "from .job import nightly\n"}


@pytest.mark.req("R1.7")
@pytest.mark.parametrize("way", ENQUEUE)
@pytest.mark.parametrize("verb", ["enqueue", "enqueue_at", "aenqueue", "enqueue_many"])
def test_nobody_but_an_app_enqueues(tmp_path: Path, way: str, verb: str) -> None:
    imported, name = ENQUEUE[way]
    text = f"{imported}\ndef f():\n    {name}.{verb}(key='a')\n"
    assert codes(tmp_path, {"shop/cli.py": text, **SHOWN}) == ["DEV403 shop/cli.py"]


@pytest.mark.req("R1.7")
@pytest.mark.parametrize("way", ENQUEUE)
def test_an_app_enqueues_its_own_jobs_only(tmp_path: Path, way: str) -> None:
    imported, name = ENQUEUE[way]
    text = f"{imported}\ndef known(id):\n    {name}.enqueue(key='a')\n"
    assert codes(tmp_path, {"shop/user/app.py": text, **SHOWN}) == ["DEV404 shop/user/app.py"]
    assert (
        codes(
            tmp_path,
            {
                "shop/order/app.py": ORDER_APP + text,
                "shop/user/app.py": SHOP["shop/user/app.py"],
                **SHOWN,
            },
        )
        == []
    )


@pytest.mark.req("R1.7")
def test_a_job_source_does_not_enqueue(tmp_path: Path) -> None:
    text = SHOP["shop/order/job.py"] + "    send_receipt.enqueue(None, key='a')\n"
    assert only(tmp_path, "shop/order/job.py", text) == ["DEV403"]


@pytest.mark.req("R1.7")
@pytest.mark.parametrize(
    "text",
    [
        "def f(kind):\n    getattr(job, kind).enqueue(key='a')\n",
        "def f(kind):\n    vars(job)[kind].enqueue(key='a')\n",
        "def f(engine):\n    engine.enqueue('shop.order.job.nightly', 'a')\n",
        "NAME = 'shop.order.job.nightly'\ndef f(engine):\n    engine.enqueue(NAME, 'a')\n",
        "def f(engine):\n    engine.enqueue(job='shop.order.job.nightly', key='a')\n",
        "def f(helper):\n    helper(job)\n",
    ],
)
def test_a_static_reference(tmp_path: Path, text: str) -> None:
    assert in_app(tmp_path, text) == ["DEV405"]


@pytest.mark.req("R1.7")
@pytest.mark.parametrize(
    "text",
    [
        "def f(job):\n    job.enqueue('a')\n    job(3)\n",
        "def f(outbox):\n    outbox.enqueue('text')\n",
        "night = job.nightly\ndef f():\n    night.enqueue(key='a')\n",
        "def f():\n    print(job.nightly.target)\n",
        "try:\n    from . import job\nexcept ImportError:\n    job = None\n",
        "import importlib\n",
        "x = [job for job in range(3)]\n",
    ],
)
def test_no_false_alarm(tmp_path: Path, text: str) -> None:
    assert in_app(tmp_path, text) == []


@pytest.mark.req("R1.7")
def test_tests_may_enqueue(tmp_path: Path) -> None:
    text = "from shop.order import job\n\n\ndef test_it(dever):\n    job.nightly.enqueue(key='a')\n"
    text += "    for each in (job.nightly,):\n        each.enqueue(key='b')\n"
    assert codes(tmp_path, {"tests/test_order.py": text, "shop/order/test_order.py": text}) == []


@pytest.mark.req("R3.3")
@pytest.mark.parametrize(
    ("run_at", "expected"),
    [
        ("datetime.now()", ["DEV406"]),
        ("datetime.utcnow()", ["DEV406"]),
        ("datetime(2027, 1, 1)", ["DEV406"]),
        ("datetime.now(UTC)", []),
        ("datetime.now(tz=UTC)", []),
        ("datetime(2027, 1, 1, tzinfo=UTC)", []),
        ("datetime.now(UTC) + timedelta(hours=1)", []),
        ("later", []),
    ],
)
def test_an_instant_has_a_time_zone(tmp_path: Path, run_at: str, expected: list[str]) -> None:
    text = "from datetime import UTC, datetime, timedelta\n"
    text += f"def f(later):\n    job.nightly.enqueue_at(key='a', run_at={run_at})\n"
    assert in_app(tmp_path, text) == expected


# --- transactions -----------------------------------------------------------------------------


TRANSACTIONS = {
    "direct": "async def f():\n    async with transaction('audit'):\n        {}\n",
    "alias": "from dever_sql import transaction as t\ndef f():\n    with t('audit'):\n        {}\n",
    "module": "import dever_sql\ndef f():\n    with dever_sql.transaction('audit'):\n        {}\n",
    "constant": "DB = 'audit'\ndef f():\n    with transaction(DB):\n        {}\n",
    "star": "from dever_sql import *\ndef f():\n    with transaction('audit'):\n        {}\n",
    "deep": "def f():\n    with open('x'), transaction('audit'):\n        if 1:\n            {}\n",
}


@pytest.mark.req("R3.5")
@pytest.mark.parametrize("way", TRANSACTIONS)
def test_a_transaction_on_another_database(tmp_path: Path, way: str) -> None:
    text = TRANSACTIONS[way].format("job.nightly.enqueue(key='a')")
    assert in_app(tmp_path, text) == ["DEV501"]
    assert in_app(tmp_path, text.replace("audit", "default")) == []


@pytest.mark.req("R3.5")
def test_an_enqueue_in_a_function_that_is_called(tmp_path: Path) -> None:
    text = "def g():\n    h()\ndef h():\n    job.nightly.enqueue(key='a')\n"
    text += TRANSACTIONS["direct"].format("g()")
    assert in_app(tmp_path, text) == ["DEV501"]


@pytest.mark.req("R3.5")
@pytest.mark.parametrize(
    "inside",
    [
        "def g():\n            job.nightly.enqueue(key='a')\n",
        "with transaction('default'):\n            job.nightly.enqueue(key='a')\n",
        "job.nightly.enqueue(key='a', connection=other)\n",
    ],
)
def test_what_does_not_join_the_transaction(tmp_path: Path, inside: str) -> None:
    assert in_app(tmp_path, TRANSACTIONS["direct"].format(inside)) == []


# --- schedules --------------------------------------------------------------------------------


@pytest.mark.req("R7.4")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("'@every 1h'", []),
        ("'0 3 * * *'", []),
        ("'@daily'", ["DEV601"]),
        ("'0 0 30 2 *'", ["DEV601"]),
        ("spec", []),
    ],
)
@pytest.mark.parametrize(
    "opened",
    ["store = Store.open('sqlite:///x.db')", "store = await AsyncStore.open('sqlite:///x')"],
)
def test_schedules(tmp_path: Path, spec: str, expected: list[str], opened: str) -> None:
    text = FUTURE + "from dever_sql import AsyncStore, Store\n"
    text += f"async def f(spec):\n    {opened}\n    store.schedule('a', {spec}, 'q', {{}})\n"
    assert only(tmp_path, "shop/plan.py", text) == expected
