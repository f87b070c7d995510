"""Job declarations, layout and payload types as `dever check` reads them (R1.1-R1.4, R2.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.projects import FUTURE, SHOP, codes, only, write

from dever_sql.check import check
from dever_sql.check.sources import BUCKETS

JOB = FUTURE + "from dever_sql import Jobs\nfrom . import app\njobs = Jobs()\n"
SEND = """
@jobs.job(retry=5, timeout=30_000)
async def send_receipt(receipt: app.Receipt) -> None:
    await app.send_receipt(receipt)
"""


def in_job(tmp_path: Path, text: str) -> list[str]:
    return only(tmp_path, "shop/order/job.py", JOB + SEND + text)


# --- layout -----------------------------------------------------------------------------------


@pytest.mark.req("R1.1")
@pytest.mark.parametrize(
    ("files", "code"),
    [
        (["job/__init__.py", "job/receipts.py", "job/refunds.py"], "DEV101 shop/order/job.py"),
        (["-job.py", "job/__init__.py", "job/receipts.py"], "DEV102 shop/order/job/receipts.py"),
        (["-job.py", "job/__init__.py"], "DEV102 shop/order/job/__init__.py"),
        (
            ["-job.py", "job/a.py", "job/b.py", "job/mail/c.py"],
            "DEV103 shop/order/job/mail/c.py",
        ),
        *[
            (["-job.py", "job/a.py", f"job/{name}.py"], f"DEV104 shop/order/job/{name}.py")
            for name in sorted(BUCKETS)
        ],
    ],
)
def test_layout(tmp_path: Path, files: list[str], code: str) -> None:
    changed: dict[str, str | None] = {"shop/order/app.py": FUTURE}
    for name in files:
        changed[f"shop/order/{name.removeprefix('-')}"] = None if name[0] == "-" else ""
    if "shop/order/job/a.py" in changed:
        changed["shop/order/job/a.py"] = "from dever_sql import Jobs\njobs = Jobs()\n"
    found = [each for each in codes(tmp_path, changed) if each[:6] == code[:6]]
    assert found == [code]


@pytest.mark.req("R1.1")
def test_a_flat_directory_of_topics_is_right(tmp_path: Path) -> None:
    topic = JOB.replace("from . import app", "from .. import app")
    files = {
        "shop/order/job.py": None,
        "shop/order/job/__init__.py": "from .receipts import send_receipt\n",
        "shop/order/job/receipts.py": topic + SEND,
        "shop/order/job/refunds.py": topic + SEND.replace("send_receipt(", "refund(", 1),
    }
    assert codes(tmp_path, files) == []


@pytest.mark.req("R1.1")
def test_a_job_outside_the_job_source(tmp_path: Path) -> None:
    text = SHOP["shop/user/app.py"] + "from dever_sql import Jobs\njobs = Jobs()\n"
    assert only(tmp_path, "shop/user/app.py", text) == ["DEV105"]


@pytest.mark.req("R1.2")
@pytest.mark.parametrize(
    "more",
    [
        'audits = Jobs(database="audit")\n',
        "other = Jobs()\n",
        "from dever_sql import Jobs as J\nother = J()\n",
        "import dever_sql\nother = dever_sql.Jobs()\n",
        "from dever_sql import *\nother = Jobs()\n",
        "from dever_sql.declare import Jobs as K\nother = K()\n",
    ],
)
def test_one_binding(tmp_path: Path, more: str) -> None:
    assert in_job(tmp_path, more) == ["DEV106"]


@pytest.mark.req("R1.2")
def test_a_job_source_without_a_binding(tmp_path: Path) -> None:
    files = {"shop/order/job.py": "", "shop/order/app.py": FUTURE}
    assert codes(tmp_path, files) == ["DEV106 shop/order/job.py"]


@pytest.mark.req("R1.2")
def test_topics_on_two_databases(tmp_path: Path) -> None:
    topic = JOB.replace("from . import app", "from .. import app")
    files = {
        "shop/order/job.py": None,
        "shop/order/job/receipts.py": topic + SEND,
        "shop/order/job/refunds.py": topic.replace("Jobs()", 'Jobs("audit")'),
        "shop/order/app.py": SHOP["shop/order/app.py"].replace("job.send_receipt", "job.receipts"),
    }
    assert "DEV106 shop/order/job/refunds.py" in codes(tmp_path, files)


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.req("R1.4")
@pytest.mark.parametrize(
    "value", ["0", "-1", "101", "True", "3.0", "None", '"3"', "(3,)", "50 + 51"]
)
def test_retry(tmp_path: Path, value: str) -> None:
    text = f"@jobs.job(retry={value}, timeout=1_000)\ndef work() -> None: ...\n"
    assert in_job(tmp_path, text) == ["DEV301"]


@pytest.mark.req("R1.4")
@pytest.mark.parametrize("value", ["0", "-5", "3_600_001", "False", "1e3", "None"])
def test_timeout(tmp_path: Path, value: str) -> None:
    text = f"@jobs.job(retry=1, timeout={value})\ndef work() -> None: ...\n"
    assert in_job(tmp_path, text) == ["DEV302"]


@pytest.mark.req("R1.4")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("retry=1", ["DEV302"]),
        ("timeout=1", ["DEV301"]),
        ("", ["DEV301", "DEV302"]),
        ("3, timeout=1", ["DEV310"]),
        ("retry=1, timeout=1", []),
        ("retry=100, timeout=60 * 60 * 1000", []),
        ("retry=RETRY, timeout=LONG", ["DEV302"]),
        ("**settings", []),
        ("retry=unknown(), timeout=1", []),
    ],
)
def test_settings(tmp_path: Path, settings: str, expected: list[str]) -> None:
    text = "RETRY = 3\nLONG = 10**3 if True else 4\nLONG = 4_000_000\nsettings = {}\n"
    text = text.replace("LONG = 10**3 if True else 4\n", "")
    text += f"@jobs.job({settings})\ndef work() -> None: ...\n"
    assert in_job(tmp_path, text) == expected


@pytest.mark.req("R1.4")
def test_a_decorator_without_settings(tmp_path: Path) -> None:
    assert in_job(tmp_path, "@jobs.job\ndef work() -> None: ...\n") == ["DEV310"]


@pytest.mark.req("R1.3")
@pytest.mark.parametrize(
    "text",
    [
        "work = jobs.job(retry=1, timeout=1)(app.close_day)\n",
        "def outer():\n    @jobs.job(retry=1, timeout=1)\n    def work() -> None: ...\n",
        "class A:\n    @jobs.job(retry=1, timeout=1)\n    def work() -> None: ...\n",
        "make = jobs.job\nwork = make(retry=1, timeout=1)(app.close_day)\n",
    ],
)
def test_a_declaration_that_is_not_static(tmp_path: Path, text: str) -> None:
    assert in_job(tmp_path, text) == ["DEV310"]


@pytest.mark.req("R1.3", "R6.3")
def test_one_declaration_per_function(tmp_path: Path) -> None:
    cron = '@jobs.cron("0 3 * * *", retry=1, timeout=1)\n'
    assert in_job(tmp_path, f"{cron}{cron}def work() -> None: ...\n") == ["DEV310"]


@pytest.mark.req("R1.3")
@pytest.mark.parametrize(
    ("way", "decorator"),
    [
        ("", "@jobs.job(retry=0, timeout=1)"),
        ("declare = jobs.job\n", "@declare(retry=0, timeout=1)"),
        ("line = jobs\n", "@line.job(retry=0, timeout=1)"),
        ("", "@trace\n@jobs.job(retry=0, timeout=1)\n@trace"),
    ],
)
def test_a_declaration_is_seen_behind_other_names(tmp_path: Path, way: str, decorator: str) -> None:
    text = f"def trace(f):\n    return f\n{way}{decorator}\nasync def work() -> None: ...\n"
    assert in_job(tmp_path, text) == ["DEV301"]


@pytest.mark.req("R1.3")
@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("()", []),
        ("(receipt: app.Receipt)", []),
        ('(receipt: "app.Receipt")', []),
        ("(receipt: app.Receipt, /)", []),
        ("(receipt)", ["DEV303"]),
        ("(a: app.Receipt, b: app.Receipt)", ["DEV303"]),
        ("(*receipts: app.Receipt)", ["DEV303"]),
        ("(**receipts: app.Receipt)", ["DEV303"]),
        ("(*, receipt: app.Receipt)", ["DEV303"]),
        ("(receipt: app.Receipt = None)", ["DEV303"]),
        ("(receipt: int)", ["DEV305"]),
        ("(receipt: dict[str, int])", ["DEV305"]),
        ("(receipt: app.Receipt | None)", ["DEV305"]),
        ("(receipt: list[app.Receipt])", ["DEV305"]),
        ("(receipt: app.place)", ["DEV305"]),
        ("(receipt: Nothing)", ["DEV313"]),
    ],
)
def test_signature(tmp_path: Path, signature: str, expected: list[str]) -> None:
    text = f"@jobs.job(retry=1, timeout=1)\ndef work{signature} -> None: ...\n"
    assert in_job(tmp_path, text) == expected


@pytest.mark.req("R1.3")
@pytest.mark.parametrize(
    ("result", "body", "expected"),
    [
        ("None", "...", []),
        ("'None'", "return", []),
        ("None", "return None", []),
        ("int", "...", ["DEV304"]),
        ("bool | None", "...", ["DEV304"]),
        ("None", "return 3", ["DEV304"]),
        ("None", "yield", ["DEV304"]),
        ("None", "def inner(): return 3", []),
    ],
)
def test_result(tmp_path: Path, result: str, body: str, expected: list[str]) -> None:
    text = f"@jobs.job(retry=1, timeout=1)\ndef work() -> {result}:\n    {body}\n"
    assert in_job(tmp_path, text) == expected


@pytest.mark.req("R1.3")
@pytest.mark.parametrize(
    "way",
    [
        "from shop.user.app import Visit\n",
        "from shop.user import app as other\nVisit = other.Visit\n",
        "from .shown import Visit\n",
        "from shop.user.app import *\n",
        "from .records import Visit\n",
    ],
)
def test_a_record_of_somebody_else(tmp_path: Path, way: str) -> None:
    record = "from dever_sql import record\n\n\n@record\nclass Visit:\n    day: int\n"
    text = f"{way}@jobs.job(retry=1, timeout=1)\ndef work(visit: Visit) -> None: ...\n"
    files = {
        "shop/user/app.py": record + SHOP["shop/user/app.py"],
        "shop/order/shown.py": "from shop.user.app import Visit\n",
        "shop/order/records.py": record,
        "shop/order/job.py": JOB + SEND + text,
    }
    assert "DEV305 shop/order/job.py" in codes(tmp_path, files)


@pytest.mark.req("R1.3")
@pytest.mark.parametrize("way", ["from .app import Receipt", "from shop.order.app import Receipt"])
def test_the_own_record_by_another_way(tmp_path: Path, way: str) -> None:
    text = f"{way}\n@jobs.job(retry=1, timeout=1)\ndef work(receipt: Receipt) -> None: ...\n"
    assert in_job(tmp_path, text) == []


@pytest.mark.req("R1.3")
def test_a_payload_for_the_type_checker_only(tmp_path: Path) -> None:
    text = (JOB + SEND).replace(
        "from . import app\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import app\n",
    )
    assert "DEV313" in only(tmp_path, "shop/order/job.py", text)


@pytest.mark.req("R1.3")
def test_annotations_are_left_unevaluated(tmp_path: Path) -> None:
    text = (JOB + SEND).replace(FUTURE, "")
    assert only(tmp_path, "shop/order/job.py", text) == ["DEV311"]


@pytest.mark.req("R1.3")
@pytest.mark.parametrize("name", ['""', '" "', '"a:b"', '"__dever_x"', "3", "'x' * 256", '"é" * 2'])
def test_target(tmp_path: Path, name: str) -> None:
    text = f"@jobs.job(retry=1, timeout=1, name={name})\ndef work() -> None: ...\n"
    expected = [] if "*" in name else ["DEV309"]  # computed text is looked at when it runs
    assert in_job(tmp_path, text) == expected


@pytest.mark.req("R1.3")
def test_two_jobs_with_one_target(tmp_path: Path) -> None:
    text = '@jobs.job(retry=1, timeout=1, name="shop.order.job.send_receipt")\n'
    assert in_job(tmp_path, text + "def work() -> None: ...\n") == ["DEV309"]


# --- cron -------------------------------------------------------------------------------------


@pytest.mark.req("R6.1", "R6.2", "R6.3")
@pytest.mark.parametrize(
    ("cron", "signature", "expected"),
    [
        ('"0 3 * * *", ', "()", []),
        ('spec="0 3 * * *", ', "()", []),
        ("DAILY, ", "()", []),
        ('"@daily", ', "()", ["DEV307"]),
        ('"@every 1h", ', "()", ["DEV307"]),
        ('"0 0 30 2 *", ', "()", ["DEV307"]),
        ('"* * * * * *", ', "()", ["DEV307"]),
        ("3, ", "()", ["DEV307"]),
        ("", "()", ["DEV307"]),
        ('"0 3 * * *", ', "(receipt: app.Receipt)", ["DEV308"]),
        ('"0 3 * * *", missed="all", ', "()", ["DEV312"]),
        ('"0 3 * * *", missed="skip", ', "()", []),
    ],
)
def test_cron(tmp_path: Path, cron: str, signature: str, expected: list[str]) -> None:
    text = 'DAILY = "0 3 * * *"\n'
    text += f"@jobs.cron({cron}retry=1, timeout=1)\ndef work{signature} -> None: ...\n"
    assert in_job(tmp_path, text) == expected


# --- payload types ----------------------------------------------------------------------------

APP = FUTURE + (
    "import datetime as dt\nimport enum\nimport typing\nimport uuid\n"
    "from collections.abc import Callable, Mapping\n"
    "from datetime import date, datetime, time, timedelta\nfrom decimal import Decimal\n"
    "from typing import Any, Dict, List, Optional, Union\nfrom uuid import UUID\n"
    "from dever_sql import Json, ModelId, Secret, record\nfrom .model import Order\n"
    "from elsewhere import Strange\n"
    "class Colour(enum.Enum):\n    RED = 'red'\n"
    "class Mixed(enum.Enum):\n    A = 1\n    B = 'b'\n"
    "class Bits(enum.Flag):\n    A = 1\n"
    "class Plain:\n    x: int\n"
    "Names = list[str]\n"
    "@record\nclass Line:\n    name: str\n"
    "@record\nclass Bad:\n    raw: bytes\n"
    "async def send_receipt(receipt): ...\ndef close_day(): ...\n"
    "@record\nclass Receipt:\n    field: {type}\n"
)


@pytest.mark.req("R2.1")
@pytest.mark.parametrize(
    "type",
    [
        *[
            "bool",
            "int",
            "float",
            "Decimal",
            "str",
            "UUID",
            "datetime",
            "date",
            "time",
            "timedelta",
            "Json",
            "Colour",
            "Line",
        ],
        *("dt.datetime", "uuid.UUID", "ModelId[Order]", "ModelId['Order']", "list[Line]"),
        *("int | None", "None | int", "Optional[int]", "Union[int, None]", "List[int]"),
        *("list[list[int]]", "list[Line | None]", "'int'", "Names", "Strange", "typing.List[int]"),
    ],
)
def test_wire_safe(tmp_path: Path, type: str) -> None:
    files = {"shop/order/app.py": APP.format(type=type), "shop/order/job.py": JOB + SEND}
    assert codes(tmp_path, files) == []


@pytest.mark.req("R2.1")
@pytest.mark.parametrize(
    ("type", "path", "why"),
    [
        ("Any", "Receipt.field", "Any says nothing"),
        ("object", "Receipt.field", "object says nothing"),
        ("bytes", "Receipt.field", "not JSON"),
        ("Secret", "Receipt.field", "secret"),
        ("dict", "Receipt.field", "open map"),
        ("dict[str, int]", "Receipt.field", "open map"),
        ("Dict[str, int]", "Receipt.field", "open map"),
        ("Mapping[str, int]", "Receipt.field", "open map"),
        ("set[int]", "Receipt.field", "no order"),
        ("tuple[int, ...]", "Receipt.field", "list[T]"),
        ("list", "Receipt.field", "list[T]"),
        ("int | str", "Receipt.field", "union"),
        ("Line | Bad", "Receipt.field", "union"),
        ("Callable[[], None]", "Receipt.field", "function"),
        ("ModelId", "Receipt.field", "ModelId[M]"),
        ("ModelId[int]", "Receipt.field", "ModelId[Order]"),
        ("Order", "Receipt.field", "ModelId[Order]"),
        ("Plain", "Receipt.field", "@record"),
        ("Mixed", "Receipt.field", "all text or all integers"),
        ("Bits", "Receipt.field", "all text or all integers"),
        ("None", "Receipt.field", "always None"),
        ("list[dict[str, int]]", "Receipt.field[]", "open map"),
        ("list[bytes | None]", "Receipt.field[]", "not JSON"),
        ("list[Bad]", "Receipt.field[].raw", "not JSON"),
        ("Receipt", "Receipt.field", "contain itself"),
        ("Unknown", "Receipt.field", "not defined"),
    ],
)
def test_not_wire_safe(tmp_path: Path, type: str, path: str, why: str) -> None:
    files = {"shop/order/app.py": APP.format(type=type), "shop/order/job.py": JOB + SEND}
    (found,) = check(write(tmp_path, files), use_cache=False)
    assert found.code == "DEV306"
    assert found.message.startswith(f"{path}: ")
    assert why in found.message
    assert found.path == "shop/order/app.py"


@pytest.mark.req("R2.1")
def test_a_field_for_the_type_checker_only(tmp_path: Path) -> None:
    text = APP.format(type="ModelId[Order]").replace(
        "from .model import Order\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .model import Order\n",
    )
    assert only(tmp_path, "shop/order/app.py", text) == ["DEV313"]


@pytest.mark.req("R2.1")
def test_what_a_record_inherits_is_looked_at(tmp_path: Path) -> None:
    text = APP.format(type="int").replace("class Receipt:", "class Receipt(Bad):")
    assert only(tmp_path, "shop/order/app.py", text) == ["DEV306"]


@pytest.mark.req("R1.3")
def test_a_script_has_no_layout(tmp_path: Path) -> None:
    script = FUTURE + (
        "from dever_sql import Jobs, record\njobs = Jobs()\n"
        "@record\nclass Photo:\n    number: int\n"
        "@jobs.job(retry=1, timeout=1)\ndef shrink(photo: Photo) -> None: ...\n"
        "shrink.enqueue(Photo(1), key='1')\n"
        "for each in [shrink]:\n    each.enqueue(Photo(2), key='2')\n"
    )
    (tmp_path / "tasks.py").write_text(script)
    assert check(tmp_path / "tasks.py", use_cache=False) == []
    (tmp_path / "tasks.py").write_text(script.replace("retry=1", "retry=0"))
    assert [each.code for each in check(tmp_path / "tasks.py", use_cache=False)] == ["DEV301"]
