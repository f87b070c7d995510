"""`dever check` as a command: formats, exit codes, ignores, configuration, cache, speed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from check.projects import SHOP, write

from dever_sql import cli
from dever_sql.check import check
from dever_sql.check.cache import DIRECTORY
from dever_sql.check.catalogue import RULES

pytestmark = pytest.mark.req("R1.6")

WRONG = "from . import app\nfrom .domain import price\n"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(write(tmp_path, {}))
    return tmp_path


def test_nothing_found(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check"]) == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_text(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(shop, {"shop/order/api.py": WRONG})
    assert cli.main(["check"]) == 1
    first, hint, last = capsys.readouterr().out.splitlines()
    assert first == (
        "shop/order/api.py:2:21: DEV202 An API may not reach shop.order.domain, which is a Domain."
    )
    assert hint.strip() == "Call the App of this domain, and let it do the rest."
    assert last.startswith("1 finding;")


def test_columns_count_characters(shop: Path) -> None:
    write(shop, {"shop/order/api.py": "ü = 'äöü'; from .domain import price\n"})
    assert [each.column for each in check(shop, use_cache=False)] == [32]


def test_json(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(shop, {"shop/order/api.py": WRONG})
    assert cli.main(["check", "shop", "--format", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["code"] == "DEV202"
    assert (found["path"], found["line"], found["column"]) == ("shop/order/api.py", 2, 21)


def test_github(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(shop, {"shop/order/api.py": WRONG})
    assert cli.main(["check", "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith(
        "::error file=shop/order/api.py,line=2,col=21,title=DEV202::An API may not"
    )


@pytest.mark.parametrize("code", sorted(RULES))
def test_explain(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--explain", code.lower()]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{code} (R")
    assert "Wrong:" in shown
    assert "Right:" in shown


def test_wrong_use(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--explain", "DEV999"]) == 2
    assert cli.main(["check", "nowhere"]) == 2
    assert cli.main(["check", "--format", "xml"]) == 2


def test_one_file_is_checked_within_its_project(shop: Path) -> None:
    write(shop, {"shop/order/api.py": WRONG, "shop/user/api.py": "from . import domain\n"})
    found = check(shop / "shop/order/api.py", use_cache=False)
    assert [each.path for each in found] == ["shop/order/api.py"]


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("# dever: ignore[DEV202] until issue 7", []),
        ("# noqa  # dever: ignore[DEV202, DEV403] until issue 7", ["DEV003"]),
        ("# dever: ignore[DEV202]", ["DEV002", "DEV202"]),
        ("# dever: ignore until issue 7", ["DEV002", "DEV202"]),
        ("# dever: ignore[DEV999] why", ["DEV002", "DEV202"]),
        ("# dever: ignore[DEV201] why", ["DEV003", "DEV202"]),
    ],
)
def test_ignore(shop: Path, comment: str, codes: list[str]) -> None:
    write(shop, {"shop/order/api.py": f"from .domain import price  {comment}\n"})
    assert sorted({each.code for each in check(shop, use_cache=False)}) == codes


def test_configuration(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(shop, {"shop/order/api.py": WRONG, "old/order/app.py": "", "old/order/job.py": ""})
    (shop / "pyproject.toml").write_text('[tool.dever]\nexclude = ["old"]\nignore = ["DEV202"]\n')
    assert check(shop, use_cache=False) == []
    (shop / "pyproject.toml").write_text('[tool.dever]\nexlude = ["old"]\n')
    assert cli.main(["check"]) == 2
    (shop / "pyproject.toml").write_text('[tool.dever]\nignore = ["X"]\n')
    assert cli.main(["check"]) == 2


def test_source_in_another_directory(tmp_path: Path) -> None:
    for name, text in SHOP.items():
        path = tmp_path / (name if name == "pyproject.toml" else f"src/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "src/shop/order/api.py").write_text("import shop.order.domain\n")
    (tmp_path / "run.py").write_text("from shop.order import job\njob.nightly.enqueue(key='a')\n")
    found = check(tmp_path, use_cache=False)
    assert [each.code for each in found] == ["DEV403", "DEV202"]


def test_files_that_are_not_python(shop: Path) -> None:
    (shop / "shop/a.py").write_text("def f(:\n")
    (shop / "shop/b.py").write_bytes(b"x = '\xff'\n")
    (shop / "shop/c.py").write_bytes(b"x = '\x00'\n")
    (shop / "shop/d.py").write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    found = check(shop, use_cache=False)
    assert [(each.code, each.path) for each in found] == [
        ("DEV001", f"shop/{name}.py") for name in "abc"
    ]


def test_modules_that_import_each_other_in_circles(shop: Path) -> None:
    write(
        shop,
        {
            "shop/a.py": "from .b import *\nfrom .c import *\nfrom .b import x\ny = x\nx = y\n",
            "shop/b.py": "from .a import *\nfrom .c import *\nfrom .a import x\n",
            "shop/c.py": "from .a import *\nfrom .b import *\nx()\nz.enqueue()\n",
        },
    )
    assert check(shop, use_cache=False) == []


def test_the_cache_knows_a_change(shop: Path) -> None:
    assert check(shop) == []
    assert (shop / DIRECTORY / "check.json").is_file()
    write(shop, {"shop/order/api.py": WRONG})
    assert len(check(shop)) == 1
    assert len(check(shop)) == 1
    (shop / "shop/order/api.py").unlink()
    assert check(shop) == []
    (shop / DIRECTORY / "check.json").write_text("{")
    assert check(shop) == []


def test_the_cache_knows_what_lies_outside_the_checked_directory(shop: Path) -> None:
    write(
        shop,
        {"shop/order/api.py": "from shop.shown import price\n", "shop/shown.py": "price = 1\n"},
    )
    assert check(shop / "shop/order") == []
    write(
        shop,
        {
            "shop/order/api.py": "from shop.shown import price\n",
            "shop/shown.py": "from shop.order.domain import price\n",
        },
    )
    assert len(check(shop / "shop/order")) == 1


def test_an_application_of_300_modules(tmp_path: Path) -> None:
    files = {name: text for name, text in SHOP.items() if "order" not in name}
    order = {name: text for name, text in SHOP.items() if name.startswith("shop/order/")}
    more = "\n\n".join(
        f"def step_{n}(value):\n    total = value + {n}\n    return [total for _ in range(3)]\n"
        for n in range(15)
    )
    for number in range(38):
        for name, text in order.items():
            changed = text.replace("shop.order", f"shop.order{number}")
            files[name.replace("/order/", f"/order{number}/")] = changed + more
    files["shop/main.py"] = "from shop.order1 import api\n"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert sum(name.endswith(".py") for name in files) >= 300
    began = time.process_time()
    assert check(tmp_path) == []
    assert time.process_time() - began < 2.0
    began = time.process_time()
    assert check(tmp_path) == []
    assert time.process_time() - began < 0.3


def test_the_examples_are_right() -> None:
    examples = Path(__file__).parents[2] / "examples"
    assert check(examples, use_cache=False) == []


def test_a_read_only_project_is_checked_too(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert check(shop) == []


def test_names_that_lead_in_circles_cost_nothing(shop: Path) -> None:
    names = "abcdefghijklmnop"
    steps = "\n".join(f"    {x} = {y}\n    {y} = {x}" for x in names for y in names if x < y)
    top = steps.replace("    ", "")
    write(
        shop, {"shop/a.py": f"from .b import *\n\ndef f(job):\n{steps}\n    a.enqueue()\n{top}\n"}
    )
    write(shop, {"shop/b.py": f"from .a import *\n{top}\na.enqueue()\n"})
    began = time.process_time()
    assert check(shop, use_cache=False) == []
    assert time.process_time() - began < 2.0
