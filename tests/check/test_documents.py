"""The pages about roles and testing say what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dever_sql.check import layout, roles
from dever_sql.check.configuration import find_configuration

DOCS = Path(__file__).parents[2] / "docs"


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.req("R1.6", "R1.8")
def test_the_matrix() -> None:
    heading, *matrix = rows((DOCS / "roles.md").read_text(encoding="utf-8"))
    others = [name.lower() for name in heading[1:8]]
    assert sorted(others) == sorted(layout.ROLES)
    said = {
        row[0].lower(): {name for name, cell in zip(others, row[1:8], strict=True) if cell}
        for row in matrix
    }
    held = {role: set(own) for role, own in roles._OWN.items()}
    held["job"].discard("job")  # files of one job source share their binding, never a job
    assert said == held
    assert [row[0] for row in matrix if row[8]] == ["App"]


def test_the_settings_of_the_page_are_accepted(tmp_path: Path) -> None:
    text = (DOCS / "roles.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "src").mkdir()
    (tmp_path / "pyproject.toml").write_text(toml)
    found = find_configuration(tmp_path)
    assert (found.source, found.exclude) == ((tmp_path / "src",), ("old",))


@pytest.mark.req("R8.6")
def test_the_tests_of_the_page_run(tmp_path: Path) -> None:
    text = (DOCS / "testing.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
