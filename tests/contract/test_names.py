"""One rule for every name, on every path (R7.1)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from engines import Raw
from samples import claim, claim_one, declaration

from dever_sql.engine import Engine
from dever_sql.errors import InvalidKey, InvalidName, ReservedName

MINUTE = timedelta(minutes=1)

PATHS: dict[str, Callable[[Engine, str], object]] = {
    "send": lambda engine, name: engine.send(name, "1"),
    "send_many": lambda engine, name: engine.send_many(name, ["1"]),
    "outbox_enqueue": lambda engine, name: engine.outbox_enqueue(name, "1"),
    "claim": lambda engine, name: engine.claim(name, "w", 1, MINUTE),
    "claim's worker": lambda engine, name: engine.claim("q", name, 1, MINUTE),
    "configure_queue": lambda engine, name: engine.configure_queue(name),
    "pause_queue": lambda engine, name: engine.pause_queue(name),
    "resume_queue": lambda engine, name: engine.resume_queue(name),
    "register's worker": lambda engine, name: engine.register(name, [declaration()], MINUTE),
    "declared target": lambda engine, name: engine.register("w", [declaration(name)], MINUTE),
    "declared queue": lambda engine, name: engine.register("w", [declaration(queue=name)], MINUTE),
    "schedule": lambda engine, name: engine.schedule(name, "@every 1m", "q"),
    "schedule's queue": lambda engine, name: engine.schedule("s", "@every 1m", name),
    "unschedule": lambda engine, name: engine.unschedule(name),
    "pause_schedule": lambda engine, name: engine.pause_schedule(name),
    "resume_schedule": lambda engine, name: engine.resume_schedule(name),
    "rewind_schedule": lambda engine, name: engine.rewind_schedule(name),
    "lock_acquire": lambda engine, name: engine.lock_acquire(name, "o", MINUTE),
    "lock_renew": lambda engine, name: engine.lock_renew(name, "o", 1, MINUTE),
    "lock_release": lambda engine, name: engine.lock_release(name, "o", 1),
}
# Reading and claiming from reserved queues is how schedules and outboxes work.
TAKES_RESERVED = {"claim"}

each_path = pytest.mark.parametrize("path", PATHS)


@pytest.mark.req("R7.1")
@each_path
@pytest.mark.parametrize(
    "name",
    ["", " ", "\t", "\n\x0b\x0c\r", "x" * 256, "é" * 128, "😀" * 64, "a\x00b", "\ud800"],
    ids=["empty", "space", "tab", "whitespace", "256", "256 of é", "256 of emoji", "nul", "lone"],
)
def test_bad_name_is_refused_before_anything_is_stored(
    engine: Engine, raw: Raw, path: str, name: str
) -> None:
    with pytest.raises(InvalidName):
        PATHS[path](engine, name)
    for table in ("job", "queue", "contract", "worker", "schedule", "lock"):
        assert raw.count(table) == 0, table


@pytest.mark.req("R7.1")
@pytest.mark.parametrize("path", sorted(PATHS.keys() - TAKES_RESERVED))
def test_reserved_name_is_refused(engine: Engine, raw: Raw, path: str) -> None:
    with pytest.raises(ReservedName):
        PATHS[path](engine, "__dever_x")
    assert raw.count("job") == 0


@pytest.mark.req("R7.1")
@each_path
@pytest.mark.parametrize(
    "name",
    ["x", "v", "x" * 63, "x" * 64, "x" * 255, "é" * 127, "😀" * 63, " a b ", "__Dever_", "'\"%\\"],
)
def test_legal_name_is_taken(engine: Engine, path: str, name: str) -> None:
    PATHS[path](engine, name)


@pytest.mark.req("R7.1")
def test_names_equal_in_their_first_63_bytes_are_two_queues(engine: Engine) -> None:
    """C24: no cross-talk."""
    one, two = "q" * 63 + "a", "q" * 63 + "b"
    engine.send(one, '"one"')
    engine.send(two, '"two"')
    assert claim_one(engine, None, queue=one).payload == '"one"'
    assert claim_one(engine, None, queue=two).payload == '"two"'
    assert claim(engine, None, queue="q" * 63) == []


@pytest.mark.req("R7.1")
def test_names_of_equal_hash_are_two_queues(engine: Engine) -> None:
    """C25: these two have the same hashtext on PostgreSQL 15."""
    engine.send("lock-8327", "1")
    assert claim(engine, None, queue="lock-68168") == []
    claim_one(engine, None, queue="lock-8327")


@pytest.mark.req("R7.1")
@pytest.mark.parametrize("pair", [("\u00e9", "e\u0301"), ("A", "a"), ("a", "a "), ("ß", "ss")])
def test_queue_names_are_compared_byte_for_byte(engine: Engine, pair: tuple[str, str]) -> None:
    engine.send(pair[0], "1")
    assert claim(engine, None, queue=pair[1]) == []


@pytest.mark.req("R7.1")
def test_name_comes_back_exactly(engine: Engine) -> None:
    for name in ("é", "e\u0301", " a b ", "😀" * 63):
        row = engine.get_job(engine.send(name, "1"))
        assert row is not None
        assert row.queue == name


@pytest.mark.req("R3.1", "R7.2")
@pytest.mark.parametrize("key", ["", " ", "\t\x0b", "x" * 1025, "a\x00b", "\udc00"])
def test_bad_message_key_is_refused(engine: Engine, raw: Raw, key: str) -> None:
    with pytest.raises(InvalidKey):
        engine.send("mail", "1", key)
    assert raw.count("job") == 0


@pytest.mark.req("R7.1")
def test_reserved_message_key_is_refused(engine: Engine, raw: Raw) -> None:
    with pytest.raises(ReservedName):
        engine.send("mail", "1", "__dever_x")
    assert raw.count("job") == 0


@pytest.mark.req("R7.2")
def test_message_without_a_key_is_never_deduplicated(engine: Engine) -> None:
    """C18."""
    assert engine.send("mail", "1") != engine.send("mail", "1")


@pytest.mark.req("R7.2")
def test_message_keys_are_compared_byte_for_byte(engine: Engine) -> None:
    """C18."""
    keys = ["\u00e9", "e\u0301", "A", "a", "a ", " a"]
    assert len({engine.send("mail", "1", key) for key in keys}) == len(keys)
