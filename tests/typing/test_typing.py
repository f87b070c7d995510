"""What pyright and mypy say, strictly, of programs that use the package (R1.3, R1.5, R2.5)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
ROOTS = [HERE, *(path for path in sorted(EXAMPLES.iterdir()) if path.is_dir())]

CHECKERS = ["pyright", "mypy"]


@cache
def complaints(checker: str) -> list[tuple[Path, int, str]]:
    """Errors of one strict run over all the files: file, line, message."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    files = [HERE / "accepted.py", HERE / "rejected.py", *sorted(EXAMPLES.rglob("*.py"))]
    return _pyright(files) if checker == "pyright" else _mypy(files)


def _pyright(files: list[Path]) -> list[tuple[Path, int, str]]:
    options = ["--outputjson", "--pythonpath", sys.executable, "--project", str(HERE)]
    done = subprocess.run(
        [sys.executable, "-m", "pyright", *options], capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(files)
    return [
        (Path(each["file"]), each["range"]["start"]["line"] + 1, each["message"])
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]


def _mypy(files: list[Path]) -> list[tuple[Path, int, str]]:
    with tempfile.TemporaryDirectory() as cache_directory:
        options = ["--strict", "--output", "json", "--explicit-package-bases"]
        options += ["--config-file", "", "--cache-dir", cache_directory]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *options, *map(str, files)],
            capture_output=True,
            text=True,
            check=False,
            cwd=cache_directory,
            env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, ROOTS))},
        )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        (Path(each["file"]).resolve(), each["line"], each["message"])
        for each in found
        if each["severity"] == "error"
    ]


def of(checker: str, directory: Path) -> list[str]:
    return [
        f"{path.name}:{line}: {message}"
        for path, line, message in complaints(checker)
        if path.is_relative_to(directory)
    ]


@pytest.mark.req("R1.5", "R2.5")
@pytest.mark.parametrize("checker", CHECKERS)
def test_what_is_accepted(checker: str) -> None:
    assert of(checker, HERE / "accepted.py") == []


@pytest.mark.req("R1.5", "R2.5", "R3.1")
@pytest.mark.parametrize("checker", CHECKERS)
def test_what_is_refused(checker: str) -> None:
    text = (HERE / "rejected.py").read_text(encoding="utf-8")
    wanted = {n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# refused")}
    refused = {int(each.split(":")[1]) for each in of(checker, HERE / "rejected.py")}
    assert refused == wanted


@pytest.mark.req("R1.5")
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_examples_are_accepted(checker: str) -> None:
    assert of(checker, EXAMPLES) == []
