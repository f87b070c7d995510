"""The wheel in an environment of its own runs `examples/shop` in all three modes (R8.2)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from worker_tasks import until

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
LINE = '"default": {"sqlite": "shop.db"}'
# Nothing of this checkout may be found by accident.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
}


def run(command: Sequence[str | Path], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, what it asks for, and nothing else."""
    directory = tmp_path_factory.mktemp("clean")
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", directory, ROOT], directory)
    [wheel] = directory.glob("dever_sql-*.whl")
    venv.create(directory / "environment", with_pip=True)
    programs = directory / "environment" / "bin"
    run([programs / "python", *pip, "install", f"{wheel}[api]"], directory)
    return programs


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("*.db*", "mail", "__pycache__")
    return shutil.copytree(SHOP, tmp_path / "shop", ignore=ignored)


def configure(shop: Path, port: int, database: dict[str, str] | None) -> None:
    """A settings file for each mode; another database is one line of it."""
    text = (SHOP / "config" / "setting.json").read_text().replace("8000", str(port))
    assert LINE in text
    if database is not None:
        text = text.replace(LINE, f'"default": {json.dumps(database)}')
    (shop / "config" / "setting.json").write_text(text)
    for mode in ("api", "worker", "all"):
        file = shop / "config" / f"{mode}.json"
        file.write_text(text.replace('"mode": "all"', f'"mode": "{mode}"'))


@contextmanager
def started(clean: Path, shop: Path, mode: str) -> Iterator[None]:
    """The program in a mode; it must end well."""
    command = [clean / "dever", "run", "shop.main", "--settings", f"config/{mode}.json"]
    process = subprocess.Popen(command, cwd=shop, env=ENVIRONMENT)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def ask(port: int, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if content is None else json.dumps(content).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=20) as answer:
        return json.load(answer)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.req("R8.1")
def test_the_wheel_alone_is_imported(clean: Path, tmp_path: Path) -> None:
    where = run([clean / "python", "-c", "import dever_sql; print(dever_sql.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(clean.parent)


@pytest.mark.req("R8.2", "R3.4", "R9.1")
@pytest.mark.parametrize("modes", [["all"], ["api", "worker"]])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_shop_takes_an_order_and_sends_its_receipt(
    clean: Path,
    shop: Path,
    port: int,
    kind: str,
    modes: list[str],
    request: pytest.FixtureRequest,
) -> None:
    database = None
    if kind == "postgresql":
        database = {"postgres": request.getfixturevalue("pg_empty_url")}
        run([clean / "dever", "sql", "install", database["postgres"]], shop)
    configure(shop, port, database)
    run([clean / "python", "-m", "shop", "prepare"], shop)
    with ExitStack() as processes:
        for mode in modes:
            processes.enter_context(started(clean, shop, mode))
        until(lambda: is_open(port), 20)
        order = {"id": "7", "email": "ada@example.org", "item": "tea", "quantity": 2}
        assert ask(port, "/orders", order) == {"id": "7", "created": True}
        until(lambda: ask(port, "/orders/7")["receipt_sent"], 20)
    [mail] = (shop / "mail").iterdir()
    assert mail.read_text() == "To: ada@example.org\n\n2 x tea: 9.00\n"
