"""What the documents show works: programs run, SQL runs, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from dever_sql.cli import _parser
from dever_sql.settings import parse_settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The Python programs of the README, each in the file that its first line names."""
    for block in blocks(ROOT / "README.md", "python"):
        name = block.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    return tmp_path


def run(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_programs_of_the_readme_run(programs: Path):
    run(programs, "tasks.py")
    run(programs, "order.py")
    for program, said in (
        ("tasks.py", "receipt for order 7"),
        ("order.py", "order 8 is confirmed"),
    ):
        done = run(programs, "-m", "dever_sql", "worker", program, "--until-idle")
        assert said in done


def test_the_messages_of_the_readme_are_sent_and_taken(programs: Path):
    assert run(programs, "messages.py") == "ada@example.org\n"


def sql_of_readme(first_line: str) -> str:
    (block,) = (b for b in blocks(ROOT / "README.md", "sql") if b.startswith(first_line))
    return block


def test_the_sqlite_statements_of_the_readme_run(programs: Path):
    url = f"sqlite:///{programs}/tasks.db"
    run(programs, "-m", "dever_sql", "sql", "contracts", "tasks.py", url)
    connection = sqlite3.connect(programs / "tasks.db", isolation_level=None)
    insert, select = sql_of_readme("-- sqlite3").split(";")[:2]
    connection.execute(insert)
    rows = connection.execute(select).fetchall()
    connection.close()
    assert [row[1:] for row in rows] == [("ready", None)]
    done = run(programs, "-m", "dever_sql", "worker", "tasks.py", "--until-idle")
    assert "receipt for order 9" in done


def test_the_postgresql_statements_of_the_readme_run(programs: Path, pg_url: str):
    run(programs, "-m", "dever_sql", "sql", "contracts", "tasks.py", pg_url)
    enqueue, select = sql_of_readme("-- psql").split(";")[:2]
    with psycopg.connect(pg_url) as connection:
        assert connection.execute(enqueue).fetchone() is not None
        rows = connection.execute(select).fetchall()
    assert [row[1:] for row in rows] == [("ready", None)]


def commands(document: Path) -> list[str]:
    text = document.read_text()
    inline = re.findall(r"`(dever [^`]+)`", text)
    indented = re.findall(r"^    (dever .+?)(?:  .*)?$", text, re.MULTILINE)
    return [command.split(";")[0].split(" | ")[0] for command in inline + indented]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_of_a_document_exist(document: Path):
    parser = _parser()
    for command in commands(document):
        arguments = [word for word in shlex.split(command)[1:] if word != "..."]
        arguments = ["1" if word in ("ID",) else word for word in arguments]
        try:
            parser.parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{document.name}: {command}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_settings_of_a_document_are_valid(document: Path):
    for block in blocks(document, "json"):
        if '"runtime"' in block:
            parse_settings(block.encode(), document.name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path):
    for link in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link
