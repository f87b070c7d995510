"""`dever fmt` (R1.9): one canonical form, nothing lost, no quarrel with ruff format."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dever_sql import cli
from dever_sql.fmt import format_source

pytestmark = pytest.mark.req("R1.9")

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = "from __future__ import annotations\n\nfrom dever_sql import Jobs\n\njobs = Jobs()\n\n\n"


def form(text: str, tmp_path: Path) -> str:
    once = format_source(HEAD + text, tmp_path / "job.py")
    assert format_source(once, tmp_path / "job.py") == once
    assert once.startswith(HEAD)
    return once.removeprefix(HEAD)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("job(timeout=1, retry=2)", "job(retry=2, timeout=1)"),
        ("job(name='a', timeout=1, retry=2)", "job(retry=2, timeout=1, name='a')"),
        ("job(retry=2, timeout=1)", "job(retry=2, timeout=1)"),
        ("job( timeout = 1,retry=2 , )", "job( retry=2,timeout = 1 , )"),
        ("job(timeout=f(1, 2), retry=2)", "job(retry=2, timeout=f(1, 2))"),
        ("job(**settings, timeout=1)", "job(**settings, timeout=1)"),
        ("job(timeout=1, wrong=3, retry=2)", "job(retry=2, timeout=1, wrong=3)"),
        ("cron('0  3 * *   *', retry=2, timeout=1)", "cron('0 3 * * *', retry=2, timeout=1)"),
        ('cron(" 0 3 * * * ", retry=2, timeout=1)', 'cron("0 3 * * *", retry=2, timeout=1)'),
        ("cron(timeout=1, retry=2, spec='0  3 * * *')", "cron('0 3 * * *', retry=2, timeout=1)"),
        (
            "cron('0 3 * * *', name='a', missed='skip', timeout=1, retry=2)",
            "cron('0 3 * * *', retry=2, timeout=1, missed='skip', name='a')",
        ),
        ("cron(DAILY, timeout=1, retry=2)", "cron(DAILY, retry=2, timeout=1)"),
        ("cron('0  3' ' * * *', retry=2, timeout=1)", "cron('0  3' ' * * *', retry=2, timeout=1)"),
        ("cron('0\\t3 * * *', retry=2, timeout=1)", "cron('0\\t3 * * *', retry=2, timeout=1)"),
        ("cron('é  3 * * *', timeout=1, retry=2)", "cron('é 3 * * *', retry=2, timeout=1)"),
    ],
)
def test_arguments(tmp_path: Path, before: str, after: str) -> None:
    body = "\nasync def work() -> None: ...  # stays\n"
    assert form(f"@jobs.{before}{body}", tmp_path) == f"@jobs.{after}{body}"


def test_the_binding(tmp_path: Path) -> None:
    text = "from dever_sql import Jobs\njobs = Jobs(queue='a', database='b')\n"
    assert "Jobs(database='b', queue='a')" in format_source(text, tmp_path / "job.py")


def test_comments_go_with_their_argument(tmp_path: Path) -> None:
    before = """\
@jobs.cron(
    # the slow one
    timeout=60_000,  # a minute
    # three starts
    # are enough
    retry=3,  # at most
    spec="0  3 * * *",  # at night
    # the end
)
def nightly() -> None: ...
"""
    after = """\
@jobs.cron(
    "0 3 * * *",  # at night
    # three starts
    # are enough
    retry=3,  # at most
    # the slow one
    timeout=60_000,  # a minute
    # the end
)
def nightly() -> None: ...
"""
    assert form(before, tmp_path) == after


def test_the_last_argument_gets_its_comma(tmp_path: Path) -> None:
    before = "@jobs.job(\n    timeout=1,  # a\n    retry=2  # b\n)\ndef work() -> None: ...\n"
    after = "@jobs.job(\n    retry=2,  # b\n    timeout=1,  # a\n)\ndef work() -> None: ...\n"
    assert form(before, tmp_path) == after


def test_comments_of_no_argument_are_left_alone(tmp_path: Path) -> None:
    text = "@jobs.job(timeout=1, retry=2  # which one?\n)\ndef work() -> None: ...\n"
    assert form(text, tmp_path) == text


ONE = "@jobs.job(retry=1, timeout=1)\ndef one() -> None: ...\n"
TWO = "# about two\n@jobs.job(retry=1, timeout=1)\ndef two() -> None:\n    helper()  # it helps\n"
HELPER = "def helper():\n    return 1\n"


def test_jobs_stand_together(tmp_path: Path) -> None:
    before = f"{ONE}\n\n# --- helpers\n\n\n{HELPER}\n\n{TWO}\n\nX = 1\n# the end\n"
    after = f"{ONE}\n\n{TWO}\n\n# --- helpers\n\n\n{HELPER}\n\nX = 1\n# the end\n"
    assert form(before, tmp_path) == after


@pytest.mark.parametrize(
    "between",
    [
        "def trace(f):\n    return f\n",
        "trace = 3\n",
        "install(trace)\n",
        "if True:\n    x = 1\n",
        "from somewhere import *\n",
        "two = 1\n",
    ],
)
def test_a_job_does_not_pass_what_it_may_need(tmp_path: Path, between: str) -> None:
    text = f"{ONE}\n\n{between}\n\n@trace\n{TWO.removeprefix('# about two' + chr(10))}"
    assert form(text, tmp_path) == text


def test_annotations_that_are_evaluated_are_needed(tmp_path: Path) -> None:
    head = "from dever_sql import Jobs\n\njobs = Jobs()\n\n\n"
    text = f"{head}{ONE}\n\nclass A: ...\n\n\n@jobs.job(retry=1, timeout=1)\ndef b(a: A): ...\n"
    assert format_source(text, tmp_path / "job.py") == text
    moved = format_source("from __future__ import annotations\n" + text, tmp_path / "job.py")
    assert moved.index("def b(") < moved.index("class A")


def test_line_ends_and_other_text_stay(tmp_path: Path) -> None:
    text = HEAD + ONE + "\n\n" + HELPER + "\n\n" + TWO + "text = 'ü'  # ü\f\n"
    windows = format_source(text.replace("\n", "\r\n"), tmp_path / "job.py")
    assert windows == format_source(text, tmp_path / "job.py").replace("\n", "\r\n")


def test_a_file_without_an_end_of_line(tmp_path: Path) -> None:
    text = (HEAD + ONE + "\n\n" + HELPER + "\n\n" + TWO).rstrip("\n")
    assert form(text.removeprefix(HEAD), tmp_path).endswith("return 1\n")


def test_aliases_are_declarations_too(tmp_path: Path) -> None:
    text = "line = jobs\n\n\n@line.job(timeout=1, retry=2)\ndef work() -> None: ...\n"
    assert "@line.job(retry=2, timeout=1)" in form(text, tmp_path)
    text = "@other.job(timeout=1, retry=2)\ndef work() -> None: ...\n"
    assert form(text, tmp_path) == text


def formatted_by(tool: str, source: str) -> str:
    """The source as ruff format or black leaves it."""
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    command = [sys.executable, "-m", tool, *(["format"] if tool == "ruff" else []), "-q", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("tool", ["ruff", "black"])
def test_no_quarrel_with_other_formatters(tmp_path: Path, tool: str) -> None:
    text = HEAD + (
        f"{ONE}\n{HELPER}\n{TWO}\nX = 1\n"
        "@jobs.cron(timeout=3_600_000, retry=100, missed='catch_up', name='shop.order.nightly_cleaning', spec='0  3 * * *')\n"  # noqa: E501
        "def nightly() -> None: ...\n"
        "@jobs.job(\n    timeout=1,  # short\n    # few\n    retry=2  # starts\n)\n"
        "async def last() -> None: ...\n"
    )
    both = formatted_by(tool, format_source(text, tmp_path / "job.py"))
    assert format_source(both, tmp_path / "job.py") == both
    assert formatted_by(tool, both) == both


@pytest.mark.parametrize("tool", ["ruff", "black"])
def test_what_another_formatter_left_stays_as_it_left_it(tmp_path: Path, tool: str) -> None:
    # Canonical and formatted once, a file is left alone by both, whoever comes first.
    for source in sorted(EXAMPLES.rglob("job.py")):
        left = formatted_by(tool, source.read_text(encoding="utf-8"))
        assert format_source(left, source) == left


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.py"
    file.write_bytes(
        b"\xef\xbb\xbf" + (HEAD + ONE).replace("retry=1, timeout=1", "timeout=1, retry=1").encode()
    )
    assert cli.main(["fmt", "--check"]) == 1
    assert capsys.readouterr().out == "job.py would change\n"
    assert cli.main(["fmt"]) == 0
    assert capsys.readouterr().out == "job.py changed\n"
    assert file.read_bytes() == b"\xef\xbb\xbf" + (HEAD + ONE).encode()
    assert cli.main(["fmt", "--check"]) == 0
    assert capsys.readouterr().out == "nothing to change\n"
    file.write_text("Jobs(:\n")
    assert cli.main(["fmt"]) == 1
    assert cli.main(["fmt", "nowhere"]) == 2


def test_the_examples_are_canonical() -> None:
    assert cli.main(["fmt", "--check", str(EXAMPLES)]) == 0
