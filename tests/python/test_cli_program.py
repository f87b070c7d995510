"""What `dever worker` loads: scripts, packages, several databases; and durations."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from dever_sql.cli.durations import duration, show_duration
from dever_sql.database import open_engine

JOB = """
from __future__ import annotations

from dever_sql import Jobs

jobs = Jobs({arguments})


@jobs.job(retry=1, timeout=10_000)
def {name}() -> None:
    print("{name} ran\\n", end="", flush=True)
"""

SETTINGS = {
    "runtime": {"mode": "worker", "shutdown_ms": 5_000},
    "job": {
        "workers": 2,
        "poll_ms": 100,
        "lease_ms": 10_000,
        "retry_base_ms": 100,
        "retry_max_ms": 1_000,
    },
    "database": {"default": {"sqlite": "one.db"}, "other": {"sqlite": "two.db"}},
}


def write(path: Path, content: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package with a job.py, a flat job directory and a second database."""
    write(tmp_path / "config" / "setting.json", json.dumps(SETTINGS))
    write(tmp_path / "shop" / "__init__.py")
    write(tmp_path / "shop" / "order" / "__init__.py")
    write(tmp_path / "shop" / "order" / "job.py", JOB.format(name="bill", arguments=""))
    write(tmp_path / "shop" / "stock" / "__init__.py")
    write(tmp_path / "shop" / "stock" / "job" / "__init__.py")
    other = JOB.format(name="count", arguments='database="other", queue="slow"')
    write(tmp_path / "shop" / "stock" / "job" / "nightly.py", other)
    write(tmp_path / "shop" / "report.py", "raise SystemExit('not a job source')")
    return tmp_path


def run(directory: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


ENQUEUE = """
from shop.order.job import bill
from shop.stock.job.nightly import count
print(bill.enqueue(key="k").created, count.enqueue(key="k").created)
"""


@pytest.mark.req("R1.1", "R1.2", "R8.1")
def test_a_package_is_worked_on_all_its_databases(project: Path):
    assert run(project, "-c", ENQUEUE).stdout == "True True\n"
    done = run(project, "-m", "dever_sql", "worker", "shop", "--until-idle")
    assert "bill ran" in done.stdout
    assert "count ran" in done.stdout
    for database, target in (("default", "shop.order.job.bill"), ("other", "shop.stock.job")):
        listed = run(project, "-m", "dever_sql", "jobs", "--database", database)
        assert "succeeded" in listed.stdout
        assert target in listed.stdout


@pytest.mark.req("R8.1")
def test_what_waits_or_dies_in_other_queues_is_not_counted(project: Path):
    run(project, "-c", ENQUEUE)
    with closing(open_engine(f"sqlite:///{project / 'one.db'}")) as engine:
        engine.send_many("elsewhere", ["1", "2"])
    done = run(project, "-m", "dever_sql", "worker", "shop", "--until-idle")
    assert done.stderr.splitlines()[0] == "2 ready, 0 running, 0 for later, 0 dead"
    assert done.stderr.splitlines()[-1] == "0 ready, 0 running, 0 for later, 0 dead"


@pytest.mark.req("R8.3")
def test_another_settings_file_is_taken_whole(project: Path):
    settings = json.dumps(SETTINGS).replace("one.db", "three.db")
    write(project / "deploy" / "config" / "blue.json", settings)
    path = "deploy/config/blue.json"
    run(project, "-m", "dever_sql", "worker", "shop", "--until-idle", "--settings", path)
    assert (project / "deploy" / "three.db").exists()
    assert not (project / "one.db").exists()


@pytest.mark.req("R8.3")
def test_wrong_settings_stop_it_before_anything_is_claimed(project: Path):
    wrong = json.dumps(SETTINGS).replace("10000", "99")
    write(project / "config" / "setting.json", wrong)
    done = run(project, "-m", "dever_sql", "worker", "shop", "--until-idle", code=2)
    assert "job.lease_ms: 99 is below 100" in done.stderr
    assert not (project / "one.db").exists()


@pytest.mark.req("R8.2")
@pytest.mark.parametrize("mode", ["api", "all"])
def test_a_mode_with_an_api_needs_an_application(project: Path, mode: str):
    settings = {**SETTINGS, "api": {"host": "127.0.0.1", "port": 0}}
    settings["runtime"] = {"mode": mode, "shutdown_ms": 1_000}
    write(project / "config" / "setting.json", json.dumps(settings))
    done = run(project, "-m", "dever_sql", "run", "shop", code=2)
    assert "the program has no API" in done.stderr


@pytest.mark.req("R8.2")
def test_in_mode_api_no_job_is_worked(project: Path):
    assert run(project, "-c", ENQUEUE).stdout == "True True\n"
    settings = {**SETTINGS, "api": {"host": "127.0.0.1", "port": 0}}
    settings["runtime"] = {"mode": "api", "shutdown_ms": 1_000}
    write(project / "config" / "setting.json", json.dumps(settings))
    done = run(project, "-m", "dever_sql", "worker", "shop", "--until-idle", code=2)
    assert 'runtime.mode is "api"' in done.stderr
    serve = "import shop.order.job; from dever_sql import job; job.serve(); print('went on')"
    assert run(project, "-c", serve).stdout == "went on\n"


@pytest.mark.req("R8.2", "R8.4")
def test_a_program_runs_in_mode_worker_until_a_signal(project: Path):
    run(project, "-c", ENQUEUE)
    process = subprocess.Popen(
        [sys.executable, "-m", "dever_sql", "run", "shop"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert sorted([output.readline(), output.readline()]) == ["bill ran\n", "count ran\n"]
        process.terminate()
        assert process.wait(30) == 0


def test_a_program_without_jobs_is_wrong_use(tmp_path: Path):
    write(tmp_path / "tasks.py", "")
    done = run(tmp_path, "-m", "dever_sql", "worker", "tasks.py", "--until-idle", code=2)
    assert "declares no job" in done.stderr


def test_an_error_in_the_program_is_shown_where_it_is(tmp_path: Path):
    write(tmp_path / "tasks.py", "import nothing_of_this_name\n")
    done = run(tmp_path, "-m", "dever_sql", "worker", "tasks.py", code=1)
    assert "tasks.py" in done.stderr
    assert "nothing_of_this_name" in done.stderr


@pytest.mark.parametrize("name", ["sched.py", "two words.py", "1.py"])
def test_a_script_that_cannot_be_imported_by_name_is_wrong_use(tmp_path: Path, name: str):
    write(tmp_path / name, JOB.format(name="bill", arguments=""))
    done = run(tmp_path, "-m", "dever_sql", "worker", name, code=2)
    assert "rename it" in done.stderr


@pytest.mark.req("R8.3")
def test_a_script_and_its_worker_use_the_same_database(tmp_path: Path):
    content = JOB.format(name="bill", arguments="")
    content += 'if __name__ == "__main__":\n    bill.enqueue(key="k")\n'
    write(tmp_path / "below" / "tasks.py", content)
    run(tmp_path, "below/tasks.py")
    assert (tmp_path / "below" / "tasks.db").exists()
    done = run(tmp_path, "-m", "dever_sql", "worker", "below/tasks.py", "--until-idle")
    assert "bill ran" in done.stdout


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", timedelta(0)),
        ("250ms", timedelta(milliseconds=250)),
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("30d", timedelta(days=30)),
        ("forever", timedelta(days=36_500)),
    ],
)
def test_durations_are_read_and_shown_alike(text: str, value: timedelta):
    assert duration(text) == value
    assert show_duration(value) == text


@pytest.mark.parametrize("text", ["", "1", "1.5h", "-1s", "1w", "1 s", "s", "36501d", "٣s", "1e3s"])
def test_other_durations_are_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)
