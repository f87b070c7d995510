"""The project that `dever init` writes: one domain, one job, settings, a test."""

from __future__ import annotations

from typing import Final

_SETTINGS = """\
{
    "runtime": {"mode": "worker", "shutdown_ms": 30000},
    "job": {
        "workers": 4,
        "poll_ms": 250,
        "lease_ms": 60000,
        "retry_base_ms": 1000,
        "retry_max_ms": 300000
    },
    "database": {"default": {"sqlite": "app.db"}}
}
"""

_APP = '''\
"""What the domain does. Only an App enqueues, and only jobs of its own domain."""

from __future__ import annotations

from dever_sql import record

from . import job


@record
class Greeting:
    name: str


def request(name: str) -> int:
    """Ask for a greeting and return its job id. While it waits, asking again changes nothing."""
    return job.greet.enqueue(Greeting(name=name), key=f"greeting:{name}").id


def greet(greeting: Greeting) -> str:
    """Greet. A job may start more than once, so its work must bear a repetition."""
    line = f"Hello, {greeting.name}!"
    print(line, flush=True)
    return line
'''

_JOB = '''\
"""The domain's background work: durable, retried, at least once. A job calls its App."""

from __future__ import annotations

from dever_sql import Jobs

from . import app

jobs = Jobs(database="default")


@jobs.job(retry=3, timeout=10_000)
def greet(greeting: app.Greeting) -> None:
    app.greet(greeting)
'''

_MAIN = '''\
"""python -m greeting NAME...: ask for greetings."""

from __future__ import annotations

import sys

from . import app

for name in sys.argv[1:] or ["world"]:
    print(f"job {app.request(name)}: greet {name}")
'''

_TEST = """\
from __future__ import annotations

import pytest
from dever_sql.testing import Kit

from greeting import app


def test_a_requested_greeting_is_worked(dever: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    app.request("Ada")
    app.request("Ada")
    assert [job.key for job in dever.enqueued()] == ["greeting:Ada"]
    dever.drain()
    assert capsys.readouterr().out == "Hello, Ada!\\n"
"""

_CONFTEST = '''\
"""Lets the tests import the project's packages from this directory."""
'''

_README = """\
# A Dever SQL project

    python -m greeting Ada Grace             enqueue two jobs
    dever worker greeting --until-idle       work what is due, then end (without the flag: go on)
    dever jobs                               see what became of them
    python -m pytest                         run the tests

`greeting/app.py` is what the program does, `greeting/job.py` its background work, and
`config/setting.json` how it runs. For PostgreSQL, put
`{"postgres": "postgresql://user@host/name"}` in place of the sqlite entry.
"""

PROJECT_FILES: Final = {
    "README.md": _README,
    "config/setting.json": _SETTINGS,
    "conftest.py": _CONFTEST,
    "greeting/__init__.py": "",
    "greeting/__main__.py": _MAIN,
    "greeting/app.py": _APP,
    "greeting/job.py": _JOB,
    "tests/test_greeting.py": _TEST,
    ".gitignore": "*.db\n*.db-shm\n*.db-wal\n__pycache__/\n",
}
"""Content by path."""
