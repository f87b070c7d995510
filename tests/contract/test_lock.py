"""Named locks with fencing tokens (R7.7)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from engines import Clock

from dever_sql.engine import Engine
from dever_sql.errors import InvalidArgument, InvalidName, ReservedName
from dever_sql.lock import Lease, Lock

TTL = timedelta(seconds=10)


@pytest.mark.req("R7.7")
def test_a_lock_is_held_by_one_the_same_owner_included(engine: Engine) -> None:
    lock = Lock(engine, "report")
    lease = lock.acquire(TTL, owner="me")
    assert lease is not None
    assert lock.acquire(TTL, owner="me") is None
    assert lock.acquire(TTL, owner="you") is None
    (row,) = engine.locks()
    assert (row.name, row.owner, row.token) == ("report", "me", lease.token)
    assert lease.release() is True
    assert lease.release() is False
    assert engine.locks() == []
    again = lock.acquire(TTL)
    assert again is not None
    assert again.token > lease.token


@pytest.mark.req("R7.7")
def test_a_lock_runs_out_and_its_old_holder_can_do_nothing(engine: Engine, clock: Clock) -> None:
    lock = Lock(engine, "report")
    old = lock.acquire(TTL)
    assert old is not None
    clock.advance(TTL - timedelta(microseconds=1))
    assert lock.acquire(TTL) is None
    clock.advance(timedelta(microseconds=1))
    assert old.renew() is False
    assert old.release() is False
    new = lock.acquire(TTL)
    assert new is not None
    assert new.token > old.token
    assert old.renew() is False
    assert old.release() is False
    (row,) = engine.locks()
    assert (row.token, row.expires_at) == (new.token, clock.now + TTL)


@pytest.mark.req("R7.7")
def test_renewing_gives_a_full_new_window(engine: Engine, clock: Clock) -> None:
    lease = Lock(engine, "report").acquire(TTL)
    assert lease is not None
    clock.advance(7)
    assert lease.renew() is True
    assert engine.locks()[0].expires_at == clock.now + TTL
    assert lease.renew(ttl=timedelta(seconds=3)) is True
    assert engine.locks()[0].expires_at == clock.now + timedelta(seconds=3)


@pytest.mark.req("R7.7")
def test_neither_another_token_nor_another_owner_holds_it(engine: Engine) -> None:
    lease = Lock(engine, "report").acquire(TTL, owner="me")
    assert lease is not None
    assert engine.lock_renew("report", "me", lease.token + 1, TTL) is False
    assert engine.lock_renew("report", "you", lease.token, TTL) is False
    assert engine.lock_release("report", "you", lease.token) is False
    assert engine.lock_release("report", "me", lease.token + 1) is False
    assert engine.lock_release("other", "me", lease.token) is False
    assert lease.renew() is True


@pytest.mark.req("R7.7")
def test_locks_of_other_names_are_independent(engine: Engine) -> None:
    # Equal hashtext on PostgreSQL 15: names are compared, never hashed.
    first = Lock(engine, "lock-8327").acquire(TTL)
    second = Lock(engine, "lock-68168").acquire(TTL)
    assert first is not None
    assert second is not None
    assert first.token != second.token


@pytest.mark.req("R7.7")
def test_of_many_who_want_it_at_once_one_gets_it(engine: Engine, clock: Clock) -> None:
    lock = Lock(engine, "report")
    tokens: list[int] = []
    for _ in range(20):
        got: list[Lease] = []
        barrier = threading.Barrier(6)

        def take(barrier: threading.Barrier = barrier, got: list[Lease] = got) -> None:
            barrier.wait()
            lease = lock.acquire(TTL)
            if lease is not None:
                got.append(lease)

        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (lease,) = got
        tokens.append(lease.token)
        clock.advance(TTL)
    assert tokens == sorted(set(tokens))


@pytest.mark.req("R7.7", "R7.1")
def test_wrong_arguments_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidArgument):
        engine.lock_acquire("report", "me", timedelta(0))
    with pytest.raises(InvalidArgument):
        engine.lock_acquire("report", " ", TTL)
    with pytest.raises(InvalidArgument):
        engine.lock_renew("report", "me", 1, timedelta(seconds=-1))
    with pytest.raises(InvalidName):
        engine.lock_acquire("", "me", TTL)
    with pytest.raises(ReservedName):
        engine.lock_acquire("__dever_scheduler", "me", TTL)
    assert engine.locks() == []


@pytest.mark.req("R7.5")
def test_the_scheduler_s_lock_is_a_lock_like_others(engine: Engine, clock: Clock) -> None:
    token = engine.scheduler_acquire("me", TTL)
    assert token is not None
    assert engine.scheduler_acquire("you", TTL) is None
    assert engine.locks()[0].name == "__dever_scheduler"
    assert engine.lock_renew("__dever_scheduler", "me", token, TTL) is True
    clock.advance(TTL)
    assert engine.lock_renew("__dever_scheduler", "me", token, TTL) is False
    later = engine.scheduler_acquire("you", TTL)
    assert later is not None
    assert later > token
    assert engine.lock_release("__dever_scheduler", "me", token) is False
    assert engine.lock_release("__dever_scheduler", "you", later) is True


@pytest.mark.req("R7.7")
def test_the_owner_of_a_lock_has_at_most_1024_bytes(engine: Engine) -> None:
    assert engine.lock_acquire("report", "é" * 512, TTL) is not None
    with pytest.raises(InvalidArgument):
        engine.lock_acquire("other", "é" * 512 + "x", TTL)
    assert [row.name for row in engine.locks()] == ["report"]
