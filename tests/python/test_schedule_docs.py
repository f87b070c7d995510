"""The program in docs/schedules.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "schedules.md"


def test_the_program_of_the_document_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    (tmp_path / "messages.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "messages.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "mail to ada@example.org"
    assert lines[1].endswith("03:00:00+00:00")
    assert lines[2] == "active"
    assert lines[3].startswith("token ")
    assert lines[4] == "deliver order:7"
