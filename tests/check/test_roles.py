"""Who may call whom (R1.6, R1.8). Each rule is broken in five ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.projects import FUTURE, codes, only

REACHED = {
    "domain": ("price", "DEV201"),
    "model": ("Order", "DEV201"),
    "port": ("Mail", "DEV201"),
    "adapter": ("SmtpMail", "DEV201"),
    "api": ("post", "DEV201"),
}
JOB = FUTURE + "from dever_sql import Jobs\nfrom . import app\njobs = Jobs()\n"
BODY = """
@jobs.job(retry=3, timeout=1_000)
def work() -> None:
    {call}
"""
WAYS = {
    "direct": "from .{role} import {name}\n",
    "alias": "from . import {role} as helper\n",
    "absolute": "import shop.order.{role}\n",
    "re-export": "from .shown import {name}\n",
    "star": "from .{role} import *\n",
    "star re-export": "from .shown import *\n",
    "type checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    from .{role} import {name}\n",
    "in the function": "",
    "conditional": "try:\n    from .{role} import {name}\nexcept ImportError:\n    {name} = None\n",
    "dynamic": 'import importlib\nhelper = importlib.import_module("shop.order.{role}")\n',
}
CALLS = {
    "alias": "helper.{name}()",
    "absolute": "shop.order.{role}.{name}()",
    "in the function": "from .{role} import {name}; {name}()",
    "dynamic": "helper.{name}()",
}


def test_the_shop_is_right(tmp_path: Path) -> None:
    assert codes(tmp_path) == []


@pytest.mark.req("R1.6")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("role", REACHED)
def test_a_job_reaches_only_its_app(tmp_path: Path, role: str, way: str) -> None:
    name, code = REACHED[role]
    call = CALLS.get(way, "{name}()").format(name=name, role=role)
    text = JOB + WAYS[way].format(name=name, role=role) + BODY.format(call=call)
    shown = f"from .{role} import {name}\n"
    found = codes(tmp_path, {"shop/order/job.py": text + OTHERS, "shop/order/shown.py": shown})
    assert found == [f"{code} shop/order/job.py"]


OTHERS = """
@jobs.job(retry=5, timeout=30_000)
async def send_receipt(receipt: app.Receipt) -> None:
    await app.send_receipt(receipt)
"""


@pytest.mark.req("R1.6")
@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("from shop.user import app as user\n", "user.known(1)"),
        ("import shop.user.app\n", "shop.user.app.known(1)"),
        ("from shop.user.app import known\n", "known(1)"),
        ("from shop.user.app import *\n", "known(1)"),
        ("from shop import user\n", "user.app.known(1)"),
    ],
)
def test_a_job_does_not_reach_another_app(tmp_path: Path, imported: str, call: str) -> None:
    text = JOB + imported + BODY.format(call=call) + OTHERS
    assert only(tmp_path, "shop/order/job.py", text) == ["DEV201"]


@pytest.mark.req("R1.6")
def test_what_the_app_shows_of_its_domain_is_still_the_domain(tmp_path: Path) -> None:
    text = JOB + BODY.format(call="app.price([])") + OTHERS
    assert only(tmp_path, "shop/order/job.py", text) == ["DEV201"]


@pytest.mark.req("R1.6")
def test_a_job_of_the_same_source_is_not_called(tmp_path: Path) -> None:
    first = JOB.replace("from . import app", "from .. import app")
    files = {
        "shop/order/job.py": None,
        "shop/order/job/__init__.py": "from .receipts import send_receipt\n",
        "shop/order/job/receipts.py": first + OTHERS,
        "shop/order/job/refunds.py": first + "from .receipts import send_receipt\n",
    }
    assert codes(tmp_path, files) == ["DEV201 shop/order/job/refunds.py"]


@pytest.mark.req("R1.6")
def test_a_type_for_the_checker_alone_is_no_call(tmp_path: Path) -> None:
    text = (
        JOB
        + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .domain import price\n"
        + BODY.format(call="value: price | None = None")
        + OTHERS
    )
    assert only(tmp_path, "shop/order/job.py", text) == []


FORBIDDEN = {
    "api": ["domain", "model", "port", "adapter", "job"],
    "app": ["api", "adapter"],
    "domain": ["api", "app", "model", "port", "adapter", "job"],
    "model": ["api", "app", "domain", "port", "adapter", "job"],
    "port": ["api", "app", "domain", "adapter", "job"],
    "adapter": ["api", "app", "domain", "job"],
}
CODES = {
    "api": "DEV202",
    "app": "DEV203",
    "domain": "DEV204",
    "model": "DEV205",
    "port": "DEV206",
    "adapter": "DEV207",
}


@pytest.mark.req("R1.8")
@pytest.mark.parametrize(
    ("role", "other"), [(role, other) for role, others in FORBIDDEN.items() for other in others]
)
def test_the_matrix(tmp_path: Path, role: str, other: str) -> None:
    text = f"import shop.order.{other} as reached\n\n\ndef f():\n    return reached.x()\n"
    files = {
        "shop/extra/__init__.py": "",
        f"shop/order/{role}.py": text,
        f"shop/order/{other}.py": "def x(): ...\n",
    }
    found = codes(tmp_path, files)
    assert f"{CODES[role]} shop/order/{role}.py" in found


@pytest.mark.req("R1.8")
@pytest.mark.parametrize("role", ["api", "app", "domain", "model", "port", "adapter"])
@pytest.mark.parametrize("other", ["domain", "model"])
def test_nothing_of_another_domain_but_its_app(tmp_path: Path, role: str, other: str) -> None:
    name = {"domain": "may_buy", "model": "User"}[other]
    text = f"from shop.user.{other} import {name}\n\n\ndef f():\n    return {name}()\n"
    assert CODES[role] in only(tmp_path, f"shop/order/{role}.py", text)


@pytest.mark.req("R1.8")
def test_the_app_names_a_model_of_another_domain_by_its_identity(tmp_path: Path) -> None:
    text = (
        FUTURE
        + "from dever_sql import ModelId, record\n"
        + "from shop.order.model import Order\n\n\n"
        + "@record\nclass Visit:\n    order: ModelId[Order]\n\n\n"
        + "def visit(id):\n    return Visit(ModelId(Order, id))\n"
    )
    assert only(tmp_path, "shop/user/app.py", text) == []


@pytest.mark.req("R1.8")
def test_an_adapter_implements_one_port(tmp_path: Path) -> None:
    text = "from . import port\n\n\nclass Both(port.Mail, port.Orders): ...\n"
    files = {
        "shop/order/adapter.py": text,
        "shop/order/port.py": "class Mail: ...\n\n\nclass Orders: ...\n",
        "shop/main.py": "",
    }
    assert codes(tmp_path, files) == ["DEV208 shop/order/adapter.py"]


@pytest.mark.req("R1.8")
def test_adapters_do_not_know_each_other(tmp_path: Path) -> None:
    files = {
        "shop/order/adapter.py": None,
        "shop/order/adapter/__init__.py": "from .smtp import SmtpMail\n",
        "shop/order/adapter/smtp.py": "from ..port import Mail\n\n\nclass SmtpMail(Mail): ...\n",
        "shop/order/adapter/file.py": "from .smtp import SmtpMail\n\n\nx = SmtpMail()\n",
    }
    assert codes(tmp_path, files) == ["DEV207 shop/order/adapter/file.py"]


@pytest.mark.req("R1.8")
def test_flat_directories_are_roles_too(tmp_path: Path) -> None:
    files = {
        "shop/order/domain.py": None,
        "shop/order/domain/__init__.py": "from .amounts import price\n",
        "shop/order/domain/amounts.py": "from .. import app\n\n\ndef price(a):\n    app.f()\n",
    }
    assert codes(tmp_path, files) == ["DEV204 shop/order/domain/amounts.py"]


@pytest.mark.req("R1.8")
def test_namespace_packages(tmp_path: Path) -> None:
    files: dict[str, str | None] = {
        "shop/__init__.py": None,
        "shop/order/__init__.py": None,
        "shop/user/__init__.py": None,
    }
    assert codes(tmp_path, files) == []
    text = JOB + "from shop.user import app as user\n" + BODY.format(call="user.known()") + OTHERS
    found = codes(tmp_path, {**files, "shop/order/job.py": text})
    assert found == ["DEV201 shop/order/job.py"]
