"""The command line: exit codes, helpful errors, stable JSON, no secrets."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dever_sql.cli import COMMANDS, _parser, main
from dever_sql.engine import JobRow, QueueRow, WorkerRow

TASKS = """
from __future__ import annotations

import sys

from dever_sql import Jobs, job, record

jobs = Jobs()


@record
class Greeting:
    name: str


@jobs.job(retry=1, timeout=10_000)
def greet(greeting: Greeting) -> None:
    if greeting.name == "nobody":
        raise job.Dead("nobody is there")
    print(f"hello {greeting.name}", flush=True)


if __name__ == "__main__":
    for result in greet.enqueue_many([(Greeting(name=name), name) for name in sys.argv[1:]]):
        print(result.id)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A one-file script in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tasks.py"
    path.write_text(TASKS)
    return path


def python(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def enqueue(script: Path, *names: str) -> list[int]:
    done = python(script, str(script), *names)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def work(script: Path) -> subprocess.CompletedProcess[str]:
    return python(script, "-m", "dever_sql", "worker", "tasks.py", "--until-idle")


def read_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main([*arguments, "--file", "tasks.py", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def fields(row: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(row)]


# Wrong use


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def test_every_help_has_examples():
    found = list(parsers(_parser()))
    assert len(found) > len(COMMANDS)
    for parser in found:
        assert parser.description
        assert "dever " in (parser.epilog or ""), parser.prog


@pytest.mark.parametrize("command", COMMANDS)
def test_help_exits_0(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "first steps" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["sql", "settings"])
def test_a_command_without_its_action_shows_the_actions(
    command: str, capsys: pytest.CaptureFixture[str]
):
    assert main([command]) == 2
    assert f"usage: dever {command}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["job"], "did you mean 'jobs'?"),
        (["jobs", "redrvie", "1"], "did you mean 'redrive'?"),
        (["jobs", "--state", "ded"], "did you mean 'dead'?"),
        (["jobs", "show"], "ID"),
        (["queues", "configure", "mail", "--keep-dead", "soon"], "not a duration"),
        (["top", "--interval", "soon"], "not a number of seconds"),
        (["jobs", "--limit", "many"], "not a whole number"),
        (["jobs"], "no database named"),
        (["jobs", "--file", "none.py"], "there is no file none.py"),
        (["jobs", "--settings", "none.json"], "cannot read the settings file"),
        (["jobs", "redrive", "--url", "mysql://h/d", "1"], "not the URL of a database"),
        (["worker", "none.py"], "there is no file none.py"),
        (["worker", "none"], "there is no module none"),
        (["worker", "a b"], "neither a Python file nor a module"),
    ],
)
def test_wrong_use_exits_2_and_says_what_to_do(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "hint: " in error
    assert "Traceback" not in error


def test_an_action_needs_ids_or_a_filter(script: Path, capsys: pytest.CaptureFixture[str]):
    enqueue(script, "Ada")
    assert main(["jobs", "cancel", "--file", "tasks.py"]) == 2
    assert "needs ids or a filter" in capsys.readouterr().err
    assert main(["jobs", "redrive", "--state", "succeeded", "--file", "tasks.py"]) == 2
    assert "does not act on succeeded jobs" in capsys.readouterr().err


# Not there


@pytest.mark.parametrize("command", [["jobs"], ["queues"], ["workers"], ["doctor"]])
def test_a_missing_database_exits_3_and_is_not_made(
    command: list[str], script: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*command, "--file", "tasks.py"]) == 3
    assert "dever sql install" in capsys.readouterr().err
    assert not (script.parent / "tasks.db").exists()


def test_a_database_of_somebody_else_exits_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect("other.db")
    connection.execute("create table mine (id integer)")
    connection.close()
    assert main(["jobs", "--file", "other.db"]) == 3
    assert "not installed" in capsys.readouterr().err


def test_an_unreachable_server_exits_3_without_the_password(
    capsys: pytest.CaptureFixture[str],
):
    url = "postgresql://shop:hunter2@127.0.0.1:1/shop?connect_timeout=1"
    for command in (["jobs", "--url", url], ["sql", "check", url], ["sql", "install", url]):
        assert main(command) == 3
        output = capsys.readouterr()
        assert "hunter2" not in output.out + output.err
        assert "Traceback" not in output.err


@pytest.mark.req("R5.5")
@pytest.mark.parametrize(
    ("password", "code"),
    [("hun%zter2", 2), ("hun ter2", 2), ("hun/ter2", 3), ("hun?ter2", 3), ("hun#t@er2", 3)],
)
def test_a_password_that_is_not_encoded_stays_hidden(
    password: str, code: int, capsys: pytest.CaptureFixture[str]
):
    url = f"postgresql://shop:{password}@127.0.0.1:1/shop?connect_timeout=1"
    assert main(["sql", "check", url]) == code
    said = capsys.readouterr().err
    assert "hun" not in said
    assert "ter2" not in said


@pytest.mark.req("R9.4")
def test_a_malformed_url_names_what_is_wrong(capsys: pytest.CaptureFixture[str]):
    assert main(["sql", "check", "postgresql://shop@127.0.0.1/shop?colour=blue"]) == 2
    said = capsys.readouterr().err
    assert 'invalid URI query parameter: "colour"' in said
    assert "hint:" in said


@pytest.mark.req("R5.5")
def test_a_url_where_none_belongs_is_refused_without_its_password(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["worker", "tasks.py", "--url", "postgresql://shop:hunter2@db/shop"]) == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments" in said
    assert "hunter2" not in said


# Install


def test_sql_install_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    url = f"sqlite:///{tmp_path}/app.db"
    assert main(["sql", "check", url]) == 3
    assert "dever sql install" in capsys.readouterr().err
    assert main(["sql", "install", url]) == 0
    assert main(["sql", "install", url]) == 0
    assert "already installed" in capsys.readouterr().out
    assert main(["sql", "check", url, "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked == {
        "installed": checked["expected"],
        "expected": checked["expected"],
        "ok": True,
    }


def test_sql_print_needs_no_server(capsys: pytest.CaptureFixture[str]):
    assert main(["sql", "print"]) == 0
    assert "create schema dever;" in capsys.readouterr().out
    assert main(["sql", "print", "--engine", "sqlite"]) == 0
    assert "create table" in capsys.readouterr().out


# Jobs and queues


@pytest.mark.req("R5.6")
def test_jobs_are_listed_shown_and_filtered(script: Path, capsys: pytest.CaptureFixture[str]):
    first, second = enqueue(script, "Ada", "Grace")
    rows = read_json(capsys, "jobs")
    assert [row["id"] for row in rows] == [second, first]
    assert list(rows[0]) == fields(JobRow)
    assert rows[1]["payload"] == {"name": "Ada"}
    assert rows[0]["run_at"].endswith("Z")
    assert [row["key"] for row in read_json(capsys, "jobs", "--key", "Ada")] == ["Ada"]
    assert read_json(capsys, "jobs", "--state", "dead") == []
    assert len(read_json(capsys, "jobs", "--limit", "1")) == 1
    assert read_json(capsys, "jobs", "show", str(first))["key"] == "Ada"
    assert main(["jobs", "--file", "tasks.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["ID", "STATE", "QUEUE", "JOB", "KEY"]
    assert "tasks.greet" in lines[1]
    assert main(["jobs", "show", "999", "--file", "tasks.py"]) == 1


@pytest.mark.req("R5.6")
def test_dead_jobs_are_redriven_and_dropped_by_filter(
    script: Path, capsys: pytest.CaptureFixture[str]
):
    (id,) = enqueue(script, "nobody")
    work(script)
    (dead,) = read_json(capsys, "jobs", "--state", "dead")
    assert (dead["id"], dead["reason"]) == (id, "nobody is there")
    dry = read_json(capsys, "jobs", "redrive", "--state", "dead", "--dry-run")
    assert [row["id"] for row in dry] == [id]
    redriven = read_json(capsys, "jobs", "redrive", "--target", "tasks.greet")
    assert redriven == [{"id": id, "outcome": "pending"}]
    work(script)
    assert read_json(capsys, "jobs", "drop", str(id)) == [{"id": id, "outcome": "dropped"}]
    again = read_json(capsys, "jobs", "drop", str(id), code=1)
    assert again == [{"id": id, "outcome": "not_found"}]


def test_more_jobs_than_a_page_are_cancelled(script: Path, capsys: pytest.CaptureFixture[str]):
    enqueue(script, *(f"n{number}" for number in range(1_100)))
    cancelled = read_json(capsys, "jobs", "cancel", "--queue", "default", "--limit", "1050")
    assert {row["outcome"] for row in cancelled} == {"cancelled"}
    assert len(cancelled) == 1_050
    assert len(read_json(capsys, "jobs", "--state", "ready", "--limit", "2000")) == 50


def test_queues_are_paused_resumed_and_configured(script: Path, capsys: pytest.CaptureFixture[str]):
    enqueue(script, "Ada")
    assert read_json(capsys, "queues", "pause", "default") == {"queue": "default", "paused": True}
    (queue,) = read_json(capsys, "queues")
    assert list(queue) == fields(QueueRow)
    assert (queue["paused"], queue["ready"]) == (True, 1)
    assert work(script).returncode == 0
    assert read_json(capsys, "queues")[0]["ready"] == 1
    assert main(["queues", "resume", "default", "--file", "tasks.py"]) == 0
    capsys.readouterr()
    configured = read_json(capsys, "queues", "configure", "default", "--keep-dead", "90d")
    assert configured["keep_dead"] == 90 * 86_400
    assert main(["queues", "pause", "none", "--file", "tasks.py"]) == 1
    assert "dever queues lists them" in capsys.readouterr().err


def test_workers_are_listed(script: Path, capsys: pytest.CaptureFixture[str]):
    enqueue(script, "Ada")
    assert read_json(capsys, "workers") == []
    assert len(fields(WorkerRow)) == 7


def test_top_is_printed_once_into_a_pipe(script: Path, capsys: pytest.CaptureFixture[str]):
    enqueue(script, "nobody")
    work(script)
    assert main(["top", "--file", "tasks.py"]) == 0
    assert "nobody" in capsys.readouterr().out
    assert main(["top", "--file", "tasks.py", "--interval", "0"]) == 2


def test_settings_are_checked_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["init", str(tmp_path / "shop")]) == 0
    file = tmp_path / "shop" / "config" / "setting.json"
    assert main(["settings", "check", str(file)]) == 0
    file.write_text(file.read_text().replace("60000", "99"))
    assert main(["settings", "check", str(file)]) == 2
    output = capsys.readouterr()
    assert "job.lease_ms: 99 is below 100" in output.err
    assert main(["settings", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["JobSettings"]["properties"]["lease_ms"]["minimum"] == 100


def test_control_characters_never_reach_the_terminal(
    script: Path, capsys: pytest.CaptureFixture[str]
):
    enqueue(script, "a\x1b[31mred")
    assert main(["jobs", "--file", "tasks.py"]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\\x1b[31mred" in output


def test_doctor_says_what_to_do(script: Path, capsys: pytest.CaptureFixture[str]):
    enqueue(script, "nobody")
    assert main(["doctor", "--file", "tasks.py"]) == 0
    work(script)
    capsys.readouterr()
    checks = {check["check"]: check for check in read_json(capsys, "doctor", code=1)}
    assert checks["version"]["ok"]
    assert not checks["dead jobs"]["ok"]
    assert "redrive" in checks["dead jobs"]["hint"]


def test_output_to_a_closed_pipe_is_no_error(script: Path):
    done = subprocess.run(
        f"{sys.executable} -m dever_sql sql print | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


# The worker


def test_a_script_is_worked_until_idle(script: Path, capsys: pytest.CaptureFixture[str]):
    enqueue(script, "Ada", "Grace")
    done = work(script)
    assert done.returncode == 0, done.stderr
    assert "hello Ada" in done.stdout
    assert {row["state"] for row in read_json(capsys, "jobs")} == {"succeeded"}


def test_a_worker_with_dead_jobs_exits_1(script: Path):
    enqueue(script, "nobody", "Ada")
    done = work(script)
    assert done.returncode == 1
    assert "1 dead" in done.stderr
    assert "Traceback" not in done.stderr


# A new project


def test_init_writes_a_project_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    project = tmp_path / "shop"
    assert main(["init", str(project)]) == 0
    assert "python -m greeting" in capsys.readouterr().out

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("dever_sql", "worker", "greeting", "--until-idle")
    assert "greet Ada" in run("greeting", "Ada")
    assert "Hello, Ada!" in run("dever_sql", "worker", "greeting", "--until-idle")
    assert "succeeded" in run("dever_sql", "jobs")
    run("pytest", "-q", "-p", "no:cacheprovider")


def test_init_refuses_a_directory_with_something_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "nothing was written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert main(["init", str(tmp_path / "mine.txt")]) == 2
    assert main(["init", str(tmp_path / "mine.txt" / "below")]) == 2
