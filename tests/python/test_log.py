"""The log of services: one event a line, JSON unless somebody watches."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from dever_sql.cli.log import JsonLines, log_to_standard_error
from dever_sql.events import log_event, logger


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    before = logger.level
    yield
    logger.setLevel(before)


def new_process(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The root logger as a new process has it; in the test itself, after pytest's own handlers."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    return root


def test_an_event_is_a_json_object_on_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    log_to_standard_error(logging.INFO)
    log_event("info", "job released", id=7, target="shop.job", logger="x", reason=None)
    log_event("debug", "unseen")
    logging.getLogger("uvicorn.error").error("a\nb")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "info",
        "logger": "dever",
        "event": "job released",
        "id": 7,
        "target": "shop.job",
    }
    assert (second["logger"], second["event"]) == ("uvicorn.error", "a\nb")


def test_an_exception_stays_on_its_line() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        record = logging.LogRecord("app", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: x")


def test_a_terminal_gets_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    log_to_standard_error(logging.INFO)
    log_event("info", "worker started", worker="w")
    assert capsys.readouterr().err.endswith("INFO worker started worker=w\n")


def test_a_program_keeps_the_logging_it_has_set_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = new_process(monkeypatch)
    own = logging.NullHandler()
    root.addHandler(own)
    log_to_standard_error(logging.INFO)
    assert root.handlers == [own]
    log_event("info", "worker started")
    assert capsys.readouterr().err == ""
