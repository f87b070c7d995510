"""What the checker says about a declaration, the program says when it runs, under the same code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dever_sql import declare
from dever_sql.check import check
from dever_sql.errors import DeclarationError, InvalidSpec

pytestmark = pytest.mark.req("R1.3", "R1.4", "R1.5", "R2.1")

HEAD = """\
from __future__ import annotations
from typing import TYPE_CHECKING, Any
from dever_sql import Jobs, record
if TYPE_CHECKING:
    from decimal import Decimal
jobs = Jobs()
@record
class Receipt:
    order: int
@record
class Bad:
    lines: list[dict[str, int]]
@record
class Missing:
    total: Decimal
class Plain: ...
"""

JOB = "@jobs.job(retry=1, timeout=1)\ndef work"
BROKEN = {
    "retry": ("@jobs.job(retry=0, timeout=1)\ndef work() -> None: ...", "DEV301"),
    "no retry": ("@jobs.job(timeout=1)\ndef work() -> None: ...", "DEV301"),
    "bool": ("@jobs.job(retry=True, timeout=1)\ndef work() -> None: ...", "DEV301"),
    "timeout": ("@jobs.job(retry=1, timeout=4_000_000)\ndef work() -> None: ...", "DEV302"),
    "float": ("@jobs.job(retry=1, timeout=1.5)\ndef work() -> None: ...", "DEV302"),
    "two parameters": (f"{JOB}(a: Receipt, b: Receipt) -> None: ...", "DEV303"),
    "default": (f"{JOB}(a: Receipt = None) -> None: ...", "DEV303"),
    "keyword": (f"{JOB}(*, a: Receipt) -> None: ...", "DEV303"),
    "any number": (f"{JOB}(*a: Receipt) -> None: ...", "DEV303"),
    "no type": (f"{JOB}(a) -> None: ...", "DEV303"),
    "result": (f"{JOB}() -> int: ...", "DEV304"),
    "generator": (f"{JOB}() -> None:\n    yield", "DEV304"),
    "no record": (f"{JOB}(a: Plain) -> None: ...", "DEV305"),
    "scalar": (f"{JOB}(a: int) -> None: ...", "DEV305"),
    "field": (f"{JOB}(a: Bad) -> None: ...", "DEV306"),
    "spec": ("@jobs.cron(3, retry=1, timeout=1)\ndef work() -> None: ...", "DEV307"),
    "cron text": (
        "@jobs.cron('@daily', retry=1, timeout=1)\ndef work() -> None: ...",
        "DEV307",
    ),
    "cron never": (
        "@jobs.cron('0 0 30 2 *', retry=1, timeout=1)\ndef work() -> None: ...",
        "DEV307",
    ),
    "cron input": (
        "@jobs.cron('0 3 * * *', retry=1, timeout=1)\ndef work(a: Receipt) -> None: ...",
        "DEV308",
    ),
    "name": ("@jobs.job(retry=1, timeout=1, name='a:b')\ndef work() -> None: ...", "DEV309"),
    "bare": ("@jobs.job\ndef work() -> None: ...", "DEV310"),
    "missed": (
        "@jobs.cron('0 3 * * *', retry=1, timeout=1, missed='all')\ndef work() -> None: ...",
        "DEV312",
    ),
    "type checking": (f"{JOB}(a: Missing) -> None: ...", "DEV313"),
    "undefined": (f"{JOB}(a: Nothing) -> None: ...", "DEV313"),
    "call": (f"{JOB}() -> None: ...\nwork()", "DEV401"),
}


@pytest.fixture
def _declared_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(declare._declared)
    yield
    declare._declared.clear()
    declare._declared.update(before)
    for name in [name for name in sys.modules if name.startswith("broken_")]:
        del sys.modules[name]


def load_and_use(name: str) -> object:
    return importlib.import_module(name).work.codec


@pytest.mark.usefixtures("_declared_here")
@pytest.mark.parametrize("case", BROKEN)
def test_one_verdict(tmp_path: Path, case: str) -> None:
    text, code = BROKEN[case]
    name = f"broken_{case.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(f"{HEAD}{text}\n")

    with pytest.raises((DeclarationError, InvalidSpec)) as caught:
        load_and_use(name)
    assert caught.value.code == code
    assert f"({code})" in str(caught.value)

    found = check(tmp_path / f"{name}.py", use_cache=False)
    assert [each.code for each in found] == [code]
