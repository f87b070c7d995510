"""`dever cron` and `dever schedules`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from dever_sql.cli import main
from dever_sql.store import Store


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Store.open(url) as store:
        store.schedule("nightly", "0 3 * * *", "reports", missed="latest")
        store.schedule("beat", "@every 15m", "beats")
    return url


@pytest.mark.req("R6.1")
def test_cron_shows_the_next_instants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cron", "*/20 8 * * mon", "--after", "2027-01-01T00:00:00Z", "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NEXT", "(UTC)", "DAY", "FROM", "NOW"]
    assert lines[1].startswith("2027-01-04 08:00:00  Mon")
    assert lines[2].startswith("2027-01-04 08:20:00  Mon")
    assert (
        main(["cron", "@every 7h", "--after", "2027-01-01T00:00:00+02:00", "-n", "1", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == ["2027-01-01T05:00:00Z"]


@pytest.mark.req("R6.1")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("5/15 * * * *", "write 5-59/15"),
        ("0 0 30 2 *", "never comes"),
        ("@daily", '"0 0 * * *"'),
        ("0 0 1 * */2", "day of week field"),
        ("0 0 * * sat-sun", "write 6-7"),
    ],
)
def test_a_spec_that_is_refused_is_wrong_use_and_says_what_to_write(
    capsys: pytest.CaptureFixture[str], spec: str, said: str
) -> None:
    assert main(["cron", spec]) == 2
    assert said in capsys.readouterr().err


def test_an_instant_that_is_none_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cron", "* * * * *", "--after", "tomorrow"]) == 2
    assert "2027-01-31T08:30:00Z" in capsys.readouterr().err
    assert main(["cron", "* * * * *", "-n", "10001"]) == 2


@pytest.mark.req("R7.4")
def test_schedules_are_listed_with_relative_times(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["schedules"], ["schedules", "list"]):
        assert main([*arguments, "--url", url]) == 0
        shown = capsys.readouterr().out
        assert "nightly" in shown
        assert "in 14m" in shown or "in 15m" in shown
    assert main(["schedules", "--json", "--url", url]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["missed"]) for row in rows] == [
        ("beat", "catch_up"),
        ("nightly", "latest"),
    ]


@pytest.mark.req("R7.4", "R6.6")
def test_pause_resume_and_preview(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedules", "pause", "beat", "--url", url]) == 0
    assert main(["schedules", "--json", "--url", url]) == 0
    assert '"status": "paused"' in capsys.readouterr().out
    assert main(["schedules", "resume", "beat", "--url", url]) == 0
    assert "resumed" in capsys.readouterr().out
    assert main(["schedules", "preview", "nightly", "-n", "3", "--json", "--url", url]) == 0
    assert all("T03:00:00Z" in one for one in json.loads(capsys.readouterr().out))
    for action in ("pause", "resume", "rewind", "preview"):
        assert main(["schedules", action, "nobody", "--url", url]) == 1
        assert "there is no schedule 'nobody'" in capsys.readouterr().err


@pytest.mark.req("R6.4")
def test_a_cursor_ahead_is_reported_and_rewound(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute(
        "update dever_schedule set next_at = next_at + 40 * 86400000000 where name = 'nightly'"
    )
    connection.close()
    assert main(["schedules", "--url", url]) == 0
    shown = capsys.readouterr()
    assert "ahead" in shown.out
    assert "dever schedules rewind nightly" in shown.err
    assert main(["schedules", "rewind", "nightly", "--url", url]) == 0
    assert "rewound" in capsys.readouterr().out
    assert main(["schedules", "rewind", "nightly", "--url", url]) == 1
    assert "nothing to rewind" in capsys.readouterr().out
