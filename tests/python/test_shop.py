"""examples/shop: one program in three modes, on both databases (R8.2)."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from worker_tasks import until

from dever_sql.engine import Engine

pytest.importorskip("uvicorn")

SHOP = Path(__file__).parents[2] / "examples" / "shop"
LINE = '"default": {"sqlite": "shop.db"}'


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def shop(live: Engine, port: int, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the example on the database of `live`, with a settings file for each mode."""
    shutil.copytree(SHOP, tmp_path / "copy", ignore=shutil.ignore_patterns("*.db*", "mail"))
    text = (SHOP / "config" / "setting.json").read_text()
    assert LINE in text
    if live.kind == "sqlite":
        line = LINE.replace("shop.db", str(tmp_path / "live.db"))
    else:
        line = f'"default": {{"postgres": "{request.getfixturevalue("pg_url")}"}}'
    text = text.replace(LINE, line).replace('"port": 8000', f'"port": {port}')
    for mode in ("api", "worker", "all"):
        file = tmp_path / "copy" / "config" / f"{mode}.json"
        file.write_text(text.replace('"mode": "all"', f'"mode": "{mode}"'))
    (tmp_path / "copy" / "config" / "setting.json").write_text(text)
    return tmp_path / "copy"


def ask(port: int, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if content is None else json.dumps(content).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=20) as answer:
        return json.load(answer)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.req("R1.6", "R1.8")
def test_the_example_keeps_to_its_roles(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dever_sql", "check", "--no-cache"]
    done = subprocess.run(command, cwd=SHOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.req("R8.2", "R3.4")
@pytest.mark.parametrize("modes", [["all"], ["api", "worker"]])
def test_an_order_and_its_receipt(live: Engine, shop: Path, port: int, modes: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "shop", "prepare"], cwd=shop, check=True)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "dever_sql", "run", "shop.main", "--settings", file], cwd=shop
        )
        for file in (f"config/{mode}.json" for mode in modes)
    ]
    try:
        until(lambda: is_open(port), 20)
        order = {"id": "7", "email": "ada@example.org", "item": "tea", "quantity": 2}
        assert ask(port, "/orders", order) == {"id": "7", "created": True}
        assert ask(port, "/orders", order) == {"id": "7", "created": False}
        until(lambda: ask(port, "/orders/7")["receipt_sent"], 20)
        [mail] = (shop / "mail").iterdir()
        assert mail.read_text() == "To: ada@example.org\n\n2 x tea: 9.00\n"
        [row] = live.jobs()
        assert (row.target, row.key, row.state) == (
            "shop.order.job.send_receipt",
            "receipt:7",
            "succeeded",
        )
        assert [row.target for row in live.schedules()] == ["shop.order.job.close_days"]
        close = "import asyncio; from shop.order import app; asyncio.run(app.close_days())"
        for _ in range(2):  # what the cron job does at night
            subprocess.run([sys.executable, "-c", close], cwd=shop, check=True)
        for process in processes:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
