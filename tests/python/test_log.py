"""The log of services: one event a line, JSON unless somebody watches."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from worker_tasks import enqueue, task, work

from dever_sql.cli.log import JsonLines, log_to_standard_error
from dever_sql.engine import Engine
from dever_sql.errors import InvalidPayload
from dever_sql.events import log_event, logger
from dever_sql.finisher import Finisher
from dever_sql.job import Dead, Retry, current


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


@pytest.fixture
def ended(live: Engine, caplog: pytest.LogCaptureFixture) -> Callable[..., dict[str, Any]]:
    """Runs a job with this handler once; the fields of the event that says what it came to."""

    def ended(handler: Callable[[str], Any], level: int = logging.INFO, **options: Any) -> Any:
        job = task(handler, decode=lambda payload: [payload], **options)
        enqueue(live, job, keys=["k"], payload='"secret-payload"')
        with caplog.at_level(level, "dever"):
            work(live, job, name="w1")
        assert "secret-payload" not in caplog.text
        events = [record.dever for record in caplog.records if "outcome" in record.dever]  # type: ignore[attr-defined]
        assert len(events) <= 1
        return events[0] if events else None

    return ended


async def fine(_: str) -> None:
    await asyncio.sleep(0.03)


def fine_in_a_thread(_: str) -> None:
    time.sleep(0.03)


async def fails(payload: str) -> None:
    raise ValueError(payload)


async def gives_up(_: str) -> None:
    raise Dead("gave up")


async def asks(_: str) -> None:
    raise Retry(delay=timedelta(minutes=5))


def refuse(_: str) -> list[Any]:
    raise InvalidPayload("it does not fit")


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("handler", [fine, fine_in_a_thread])
def test_a_success_says_which_job_where_and_how_long(
    ended: Callable[..., Any], live: Engine, handler: Callable[[str], Any]
) -> None:
    event = ended(handler)
    [row] = live.jobs()
    assert 0.03 <= event.pop("duration") < 20
    assert {name: value for name, value in event.items() if value is not None} == {
        "event": "job succeeded",
        "id": row.id,
        "target": f"app.job.{handler.__name__}",
        "attempt": 1,
        "max_attempts": 3,
        "worker": "w1",
        "outcome": "succeeded",
    }


@pytest.mark.parametrize(
    ("handler", "options", "outcome"),
    [
        (fails, {}, "retried"),
        (asks, {}, "retried"),
        (fails, {"retry": 1}, "dead"),
        (gives_up, {}, "dead"),
    ],
)
def test_each_outcome_is_one_event(
    ended: Callable[..., Any], handler: Callable[[str], Any], options: Any, outcome: str
) -> None:
    event = ended(handler, **options)
    assert event["outcome"] == outcome
    assert event["duration"] >= 0
    assert event["worker"] == "w1"


def test_a_job_that_cannot_begin_has_no_duration(
    live: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    job = task(fine, decode=refuse)
    enqueue(live, job)
    with caplog.at_level(logging.INFO, "dever"):
        work(live, job)
    [event] = [record.dever for record in caplog.records if "outcome" in record.dever]  # type: ignore[attr-defined]
    assert (event["outcome"], event["duration"]) == ("blocked", None)


def test_nothing_is_formatted_for_a_success_that_nobody_logs(
    ended: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fields(*_: object) -> None:
        raise AssertionError("the hot path")

    monkeypatch.setattr(Finisher, "_fields", fields)
    assert ended(fine, logging.WARNING) is None


def test_what_a_handler_logs_names_its_job(live: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def speaks() -> None:
        current().log.warning("sent %d of %s", 2, "100%")

    [id] = enqueue(live, task(speaks))
    with caplog.at_level(logging.WARNING, "dever"):
        work(live, task(speaks))
    [record] = caplog.records
    assert record.getMessage() == f"sent 2 of 100% id={id} target=app.job.speaks attempt=1"
    line = json.loads(JsonLines().format(record))
    assert (line["event"], line["id"], line["target"], line["attempt"]) == (
        "sent 2 of 100%",
        id,
        "app.job.speaks",
        1,
    )


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
