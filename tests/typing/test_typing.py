"""What a type checker says about programs that use the package (R1.3, R1.5, R2.5)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None, reason="pyright is not installed"
)


@cache
def complaints() -> list[dict[str, Any]]:
    """Errors of one strict run over all the files."""
    files = [HERE / "accepted.py", HERE / "rejected.py", *sorted(EXAMPLES.rglob("*.py"))]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "--outputjson",
            "--pythonpath",
            sys.executable,
            "--project",
            str(HERE),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(files)
    return [each for each in report["generalDiagnostics"] if each["severity"] == "error"]


def of(directory: Path) -> list[str]:
    return [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in complaints()
        if Path(each["file"]).is_relative_to(directory)
    ]


@pytest.mark.req("R1.5", "R2.5")
def test_what_is_accepted() -> None:
    assert of(HERE / "accepted.py") == []


@pytest.mark.req("R1.5", "R2.5", "R3.1")
def test_what_is_refused() -> None:
    text = (HERE / "rejected.py").read_text(encoding="utf-8")
    wanted = {n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# refused")}
    refused = {int(each.split(":")[1]) for each in of(HERE / "rejected.py")}
    assert refused == wanted


@pytest.mark.req("R1.5")
def test_the_examples_are_accepted() -> None:
    assert of(EXAMPLES) == []
