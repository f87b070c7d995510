"""Versions of one program as real processes that share a database: workers and enqueuers.

Each version has a directory with its `tasks.py` and settings. The processes write what they did
beside these directories, whatever becomes of the database:

    effects        one JSON line for each run of a handler
    acknowledged   one JSON line for each enqueue that returned
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RELEASED = Path(__file__).parent / "released"

HEAD = '''
from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from dever_sql import Jobs, job, record

VERSION = Path(__file__).parent.name
jobs = Jobs()


def write(file, **content):
    """One line in one call, so that processes may write at the same time."""
    line = json.dumps({"version": VERSION, **content}).encode() + b"\\n"
    descriptor = os.open(f"../{file}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)


def ran(payload=None):
    write("effects", key=job.current().key, payload=payload)


def enqueue_until_stopped(name, pause, enqueue):
    """Call enqueue(key) again and again until SIGTERM; what returned is written down."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    number = 0
    while not stopped:
        number += 1
        for key, enqueued in enqueue(f"{VERSION}:{name}:{number}"):
            write("acknowledged", key=key, id=enqueued.id)
        time.sleep(pause)
'''
"""What every version of a program begins with."""


_COMMANDS = """
import contextlib, io, json, sys
from dever_sql.cli import main

printed = []
for command in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = main(command)
    assert code == 0, (command, code)
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


def lines(path: Path) -> list[dict[str, Any]]:
    """What the processes wrote into `effects` or `acknowledged`."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def unpack(wheel: str, directory: Path) -> Path:
    """A released package, to be put in front of the installed one."""
    with zipfile.ZipFile(RELEASED / wheel) as archive:
        archive.extractall(directory)
    return directory


def database_settings(url: str) -> dict[str, Any]:
    if url.startswith("sqlite:///"):
        return {"sqlite": url.removeprefix("sqlite:///"), "synchronous": "normal"}
    return {"postgres": url}


@dataclass
class Program:
    """One version of a program in `directory`, run by the package in `package` (None: ours)."""

    directory: Path
    source: str
    url: str
    package: Path | None = None
    job: Mapping[str, Any] = field(default_factory=dict[str, Any])
    started: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def __post_init__(self) -> None:
        (self.directory / "config").mkdir(parents=True)
        (self.directory / "tasks.py").write_text(HEAD + self.source)
        settings = {
            "runtime": {"mode": "worker", "shutdown_ms": 20_000},
            "job": {
                "workers": 4,
                "poll_ms": 50,
                "lease_ms": 10_000,
                "retry_base_ms": 100,
                "retry_max_ms": 1_000,
                **self.job,
            },
            "database": {"default": database_settings(self.url)},
        }
        (self.directory / "config" / "setting.json").write_text(json.dumps(settings))

    @property
    def environment(self) -> dict[str, str]:
        if self.package is None:
            return dict(os.environ)
        return {**os.environ, "PYTHONPATH": str(self.package)}

    def start(self, *command: str) -> subprocess.Popen[str]:
        """`python COMMAND` in the program's directory; ended by `stop_all` at the latest."""
        log = self.directory / f"{len(self.started)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.directory,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.started.append(process)
        return process

    def work(self) -> subprocess.Popen[str]:
        return self.start("-m", "dever_sql", "worker", "tasks.py")

    def enqueue(self, name: str, pause: float = 0.01) -> subprocess.Popen[str]:
        return self.start("tasks.py", name, str(pause))

    def run(self, *command: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """`python COMMAND` to its end."""
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.directory,
            env=self.environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def dever(self, *arguments: str) -> str:
        """What `dever ARGUMENTS` printed; fails when it failed."""
        done = self.run("-m", "dever_sql", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def dever_many(self, *commands: Sequence[str]) -> list[str]:
        """What each of the command lines printed, run one after another in one process."""
        done = self.run("-c", _COMMANDS, input=json.dumps(commands))
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("*.log")))


def stop(processes: Sequence[subprocess.Popen[str]]) -> list[int]:
    """Ask the processes to end; their exit codes, once all have."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    return [process.wait(60) for process in processes]


def kill_all(*programs: Program) -> None:
    """What is left of a test, however it ended."""
    for process in (process for program in programs for process in program.started):
        if process.poll() is None:
            process.kill()
            process.wait()
