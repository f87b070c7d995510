"""config/setting.json: every rule of R8.3, each fault named by its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dever_sql.credentials import hide_credentials
from dever_sql.errors import SettingsError
from dever_sql.settings import (
    find_settings,
    load_settings,
    parse_settings,
    project_directory,
    script_settings,
)

pytestmark = pytest.mark.req("R8.3")

REMOVE = object()


def valid() -> dict[str, Any]:
    return {
        "runtime": {"mode": "all", "shutdown_ms": 30_000},
        "job": {
            "workers": 4,
            "poll_ms": 250,
            "lease_ms": 60_000,
            "retry_base_ms": 1_000,
            "retry_max_ms": 300_000,
        },
        "api": {"host": "127.0.0.1", "port": 8000},
        "database": {"default": {"sqlite": "app.db"}},
    }


def changed(path: str, value: Any) -> bytes:
    content = valid()
    *parents, last = path.split(".")
    place: Any = content
    for name in parents:
        place = place[name]
    if value is REMOVE:
        del place[last]
    else:
        place[last] = value
    return json.dumps(content).encode()


def fault(content: bytes) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_settings(content)
    return str(caught.value)


def test_valid_settings_are_read_with_their_defaults():
    settings = parse_settings(json.dumps(valid()).encode())
    assert settings.runtime.mode == "all"
    assert settings.job is not None
    assert settings.job.lease_ms == 60_000
    assert settings.job.retry_jitter == 0
    assert settings.job.error_detail == "type"
    assert settings.job.queues is None


@pytest.mark.parametrize(
    ("path", "least", "most"),
    [
        ("runtime.shutdown_ms", 1, 300_000),
        ("job.workers", 1, 256),
        ("job.poll_ms", 1, 60_000),
        ("job.lease_ms", 100, 7_200_000),
        ("job.retry_jitter", 0, 1),
        ("api.port", 0, 65_535),
    ],
)
def test_ranges_include_their_ends_and_nothing_beyond(path: str, least: int, most: int):
    for value in (least, most):
        parse_settings(changed(path, value))
    assert f"{path}: {least - 1} is below {least}" in fault(changed(path, least - 1))
    assert f"{path}: {most + 1} is above {most}" in fault(changed(path, most + 1))


def test_the_message_of_the_specification():
    assert fault(changed("job.lease_ms", 99)).startswith("job.lease_ms: 99 is below 100")


def test_retry_base_is_within_retry_max():
    assert "job.retry_base_ms: 300001 is above job.retry_max_ms 300000" in fault(
        changed("job.retry_base_ms", 300_001)
    )
    assert "job.retry_max_ms: 86400001 is above 86400000" in fault(
        changed("job.retry_max_ms", 86_400_001)
    )
    parse_settings(changed("job.retry_base_ms", 300_000))


@pytest.mark.parametrize(
    "path",
    [
        "runtime",
        "runtime.mode",
        "runtime.shutdown_ms",
        "job.workers",
        "job.poll_ms",
        "job.lease_ms",
        "job.retry_base_ms",
        "job.retry_max_ms",
        "api.host",
        "api.port",
        "database",
    ],
)
def test_required_fields_are_missed_and_null_is_no_value(path: str):
    assert f"{path}: missing" in fault(changed(path, REMOVE))
    assert f"{path}: null is not a value" in fault(changed(path, None))


@pytest.mark.parametrize("path", ["job.retry_jitter", "job.queues", "job", "api"])
def test_optional_fields_refuse_null_too(path: str):
    assert f"{path}: null is not a value" in fault(changed(path, None))


@pytest.mark.parametrize(
    ("path", "value", "got"),
    [
        ("job.workers", True, "an integer, got true"),
        ("job.workers", 4.0, "an integer, got 4.0"),
        ("job.workers", "4", "an integer, got text"),
        ("job.retry_jitter", False, "a number, got false"),
        ("job.retry_jitter", "0", "a number, got text"),
        ("job.queues", "mail", "a list, got text"),
        ("job.queues", [7], "text, got a number"),
        ("job", [], "an object, got a list"),
        ("runtime", "api", "an object, got text"),
        ("api.host", 7, "text, got a number"),
        ("database.default", "app.db", "an object, got text"),
    ],
)
def test_wrong_kinds_are_refused(path: str, value: Any, got: str):
    message = fault(changed(path, value))
    assert message.startswith(path)
    assert f"must be {got}" in message


def test_unknown_fields_get_a_suggestion():
    message = fault(changed("job.leese_ms", 1))
    assert "job.leese_ms: unknown field; did you mean" in message
    content = valid()
    content["job"]["leese_ms"] = content["job"].pop("lease_ms")
    message = fault(json.dumps(content).encode())
    assert "job.leese_ms: unknown field; did you mean job.lease_ms?" in message
    assert "job.lease_ms: missing" in message
    assert "jobs: unknown field" in fault(changed("jobs", {}))
    # Nothing like it: both databases are named, not the one whose path happens to look alike.
    message = fault(changed("database.default", {"url": "postgresql://h/d"}))
    assert "database.default.url: unknown field; known: sqlite, postgres" in message


@pytest.mark.parametrize("word", ["wroker", "", "API", 7, True, []])
def test_mode_is_one_of_three_words(word: Any):
    assert 'is not one of "all", "api", "worker"' in fault(changed("runtime.mode", word))


def test_duplicate_members_are_refused_at_every_depth():
    text = json.dumps(valid())
    assert "job.workers: appears more than once" in fault(
        text.replace('"workers": 4', '"workers": 4, "workers": 4').encode()
    )
    assert "api: appears more than once" in fault((text[:-1] + ', "api": {}}').encode())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"a": 1,}', "is not JSON"),
        (b"\xff{}", "is not UTF-8"),
        (b"[]", "the settings: must be an object, got a list"),
        (b"null", "the settings: null is not a value"),
        (b'{"job": NaN}', "not one of JSON's"),
        (b'{"job": ' + b"9" * 5000 + b"}", "not one of JSON's"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_settings_file_is_refused(content: bytes, expected: str):
    assert expected in fault(content)


@pytest.mark.parametrize(
    ("mode", "section"), [("worker", "job"), ("all", "job"), ("api", "api"), ("all", "api")]
)
@pytest.mark.req("R8.2")
def test_a_mode_needs_its_section(mode: str, section: str):
    content = valid()
    content["runtime"]["mode"] = mode
    del content[section]
    assert fault(json.dumps(content).encode()).startswith(f"{section}: missing")


def test_queues_are_names():
    assert "job.queues[0]: names that start with __dever_" in fault(
        changed("job.queues", ["__dever_x"])
    )
    assert "job.queues[1]: named twice" in fault(changed("job.queues", ["a", "a"]))
    assert "job.queues[0]: longer than 255 bytes" in fault(changed("job.queues", ["é" * 128]))
    assert "job.queues[0]: must not be empty" in fault(changed("job.queues", [" "]))
    assert "job.queues[0]: must not contain U+0000" in fault(changed("job.queues", ["a\0"]))
    assert "job.queues[0]: must not contain U+0000 or half" in fault(
        changed("job.queues", ["\ud800"])
    )
    assert "job.queues: must not be empty" in fault(changed("job.queues", []))


def test_a_database_is_one_of_two_kinds():
    for wrong in ({}, {"sqlite": "a.db", "postgres": "postgresql://h/d"}):
        assert "database.default: needs either" in fault(changed("database.default", wrong))
    assert "database.default.sqlite: must be the path" in fault(
        changed("database.default", {"sqlite": ":memory:"})
    )
    assert "database.default.postgres: must be a URL" in fault(
        changed("database.default", {"postgres": "host=x"})
    )
    assert "database.default.connections: belongs to postgres" in fault(
        changed("database.default", {"sqlite": "a.db", "connections": 9})
    )
    assert "database: names no database" in fault(changed("database", {}))


@pytest.mark.req("R8.3")
def test_a_malformed_url_is_refused_without_its_password() -> None:
    said = fault(changed("database.default", {"postgres": "postgresql://shop:50%hunter2@h/d"}))
    assert "database.default.postgres: the URL of the database is malformed" in said
    assert "percent-encoded" in said
    assert "hunter2" not in said


def test_a_pool_is_larger_than_what_the_worker_needs():
    database = {"postgres": "postgresql://h/d", "connections": 6}
    assert "database.default.connections: 6 is below 7" in fault(
        changed("database.default", database)
    )
    parse_settings(changed("database.default", {**database, "connections": 7}))


def test_passwords_stay_out_of_messages_and_reprs():
    url = "postgresql://shop:hunter2@db/shop?password=hunter2"
    settings = parse_settings(changed("database.default", {"postgres": url}))
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr(settings.database["default"])
    assert settings.database_url("default", Path("/")) == url
    for path in ("database.default.postgress", "database.default", "runtime.shutdown_ms"):
        assert "hunter2" not in fault(changed(path, url))
    assert "hunter2" not in fault(changed(f"database.{url.replace('.', '')}", {}))


def test_hiding_credentials_leaves_the_rest():
    assert hide_credentials("postgresql://a:b@h:5/d?x=1") == "postgresql://a:***@h:5/d?x=1"
    assert hide_credentials("host=h password='a b' user=u") == "host=h password=*** user=u"
    assert hide_credentials("sqlite:///a.db") == "sqlite:///a.db"
    assert hide_credentials("postgresql://a@h:5/d, then x@y") == "postgresql://a@h:5/d, then x@y"


@pytest.mark.req("R5.5")
@pytest.mark.parametrize("password", ["a/b", "a?b", "a#b", "a@b", "a:b@/c"])
def test_hiding_goes_to_the_last_at_sign(password: str):
    assert hide_credentials(f"postgresql://u:{password}@h:5/d") == "postgresql://u:***@h:5/d"


def test_relative_paths_start_at_the_project(tmp_path: Path):
    file = tmp_path / "config" / "setting.json"
    file.parent.mkdir()
    file.write_bytes(changed("database.default", {"sqlite": "data/app?.db"}))
    assert find_settings(tmp_path) == file
    assert find_settings(file.parent) is None
    assert project_directory(file) == tmp_path
    url = load_settings(file).database_url("default", tmp_path)
    assert url == f"sqlite:///{tmp_path}/data/app%3F.db"
    with pytest.raises(SettingsError, match=r'database\.other: missing; .*"default"'):
        load_settings(file).database_url("other", tmp_path)


def test_an_unreadable_file_says_what_to_do(tmp_path: Path):
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        load_settings(tmp_path / "none.json")


def test_a_script_has_documented_defaults(tmp_path: Path):
    settings = script_settings(tmp_path / "tasks.py")
    assert settings.database_url("default", tmp_path) == f"sqlite:///{tmp_path}/tasks.db"
    assert settings.job is not None
    job = settings.job
    assert (job.workers, job.poll_ms, job.lease_ms) == (4, 250, 60_000)
    assert (job.retry_base_ms, job.retry_max_ms) == (1_000, 300_000)


def test_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    for name in ("JOB_LEASE_MS", "DEVER_JOB_LEASE_MS", "DEVER_LEASE_MS"):
        monkeypatch.setenv(name, "5000")
    job = parse_settings(json.dumps(valid()).encode()).job
    assert job is not None
    assert job.lease_ms == 60_000
