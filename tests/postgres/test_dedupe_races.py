"""One key from two sessions: the loser waits, then finds or inserts, and never fails (R3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from postgres_server import Cluster
from psycopg.types.json import Jsonb
from samples import TARGET, declaration
from sessions import Blocked, Session

Connect = Callable[..., Session]


@pytest.fixture
def log_is_quiet(pg_cluster: Cluster) -> Any:
    """The server log must not have gained an ERROR line (C23)."""
    if pg_cluster.log is None:
        pytest.skip("the log of an outside server cannot be read")
    before = pg_cluster.log.stat().st_size
    yield
    with pg_cluster.log.open("rb") as log:
        log.seek(before)
        lines = [line for line in log.read().decode().splitlines() if "ERROR" in line]
    assert lines == []


@pytest.fixture
def observer(connect: Connect) -> Session:
    session = connect("observer")
    session.execute("select * from dever.register(null, %s, '1 minute')", [Jsonb([declaration()])])
    return session


def enqueue(session: Session, key: str = "k") -> tuple[int, bool]:
    row = session.execute("select id, created from dever.enqueue(%s, %s)", [TARGET, key]).fetchone()
    assert row is not None
    return row


def send(session: Session, key: str = "k") -> int:
    row = session.execute("select dever.send('mail', '1', %s)", [key]).fetchone()
    assert row is not None
    return int(row[0])


def unfinished(session: Session) -> int:
    row = session.execute("select count(*) from dever.job").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.req("R3.2")
@pytest.mark.usefixtures("log_is_quiet")
def test_winner_commits_and_the_loser_finds_its_job(connect: Connect, observer: Session) -> None:
    """C19."""
    winner, loser = connect("winner", autocommit=False), connect("loser")
    id, created = enqueue(winner)
    assert created
    second = Blocked(loser, observer, enqueue)
    assert second.is_waiting()
    winner.commit()
    assert second.result() == (id, False)
    assert unfinished(observer) == 1


@pytest.mark.req("R3.2")
@pytest.mark.usefixtures("log_is_quiet")
def test_winner_rolls_back_and_the_loser_inserts(connect: Connect, observer: Session) -> None:
    """C19."""
    winner, loser = connect("winner", autocommit=False), connect("loser")
    id, _ = enqueue(winner)
    second = Blocked(loser, observer, enqueue)
    assert second.is_waiting()
    winner.rollback()
    other, created = second.result()
    assert created
    assert other != id
    assert unfinished(observer) == 1


@pytest.mark.req("R3.2", "R7.2")
@pytest.mark.parametrize("commit", [True, False])
def test_messages_race_alike(connect: Connect, observer: Session, commit: bool) -> None:
    winner, loser = connect("winner", autocommit=False), connect("loser")
    # The queue exists, else its own row would be what the loser waits for.
    observer.execute("select dever.configure_queue('mail')")
    first = send(winner)
    second = Blocked(loser, observer, send)
    assert second.is_waiting()
    winner.commit() if commit else winner.rollback()
    assert (second.result() == first) is commit
    assert unfinished(observer) == 1


@pytest.mark.req("R3.2", "R7.2")
@pytest.mark.parametrize("commit", [True, False])
def test_first_sends_to_a_new_queue_race(connect: Connect, observer: Session, commit: bool) -> None:
    first, second = connect("first", autocommit=False), connect("second")
    send(first, "a")
    other = Blocked(second, observer, lambda session: send(session, "b"))
    other.is_waiting()
    first.commit() if commit else first.rollback()
    other.result()
    row = observer.execute("select count(*) from dever.queue where name = 'mail'").fetchone()
    assert row == (1,)
    assert unfinished(observer) == (2 if commit else 1)


@pytest.mark.req("R3.2", "R3.4")
@pytest.mark.usefixtures("log_is_quiet")
def test_callers_rows_survive_a_duplicate(connect: Connect, observer: Session) -> None:
    """C20: own row, the key twice, another own row, commit."""
    observer.execute("create table own (n integer)")
    session = connect("caller", autocommit=False)
    session.execute("insert into own values (1)")
    id, created = enqueue(session)
    assert created
    assert enqueue(session) == (id, False)
    session.execute("insert into own values (2)")
    session.commit()
    assert observer.execute("select n from own order by n").fetchall() == [(1,), (2,)]
    assert unfinished(observer) == 1


@pytest.mark.req("R3.2", "R3.4")
def test_savepoint_rolled_back_frees_the_key(connect: Connect, observer: Session) -> None:
    """C20."""
    session = connect("caller", autocommit=False)
    session.execute("savepoint before")
    first, created = enqueue(session)
    assert created
    session.execute("rollback to savepoint before")
    second, created = enqueue(session)
    assert created
    assert second != first
    session.commit()
    assert unfinished(observer) == 1


@pytest.mark.req("R3.2", "R3.4")
def test_duplicate_waits_for_a_savepoint_and_inserts(connect: Connect, observer: Session) -> None:
    winner, loser = connect("winner", autocommit=False), connect("loser")
    winner.execute("savepoint before")
    enqueue(winner)
    second = Blocked(loser, observer, enqueue)
    assert second.is_waiting()
    winner.execute("rollback to savepoint before")
    assert second.result()[1]
    winner.commit()
    assert unfinished(observer) == 1


@pytest.mark.req("R3.2", "R3.4")
def test_rolled_back_enqueue_leaves_nothing(connect: Connect, observer: Session) -> None:
    session = connect("caller", autocommit=False)
    enqueue(session)
    session.rollback()
    assert unfinished(observer) == 0
    assert enqueue(session)[1]


@pytest.mark.req("R3.2", "R3.1")
@pytest.mark.parametrize("verb", ["complete", "cancel", "bury"])
@pytest.mark.parametrize("commit", [True, False])
def test_enqueue_waits_for_the_transaction_that_finishes_the_key(
    connect: Connect, observer: Session, verb: str, commit: bool
) -> None:
    worker, client = connect("worker", autocommit=False), connect("client")
    contract = observer.execute("select id from dever.contract").fetchone()
    assert contract is not None
    id, _ = enqueue(observer)
    row = observer.execute(
        "select token from dever.claim('default', 'w', 1, '1 minute', %s)", [[contract[0]]]
    ).fetchone()
    assert row is not None
    values = {"ids": [id], "tokens": [row[0]]}
    call = {
        "complete": "select * from dever.complete(%(ids)s, %(tokens)s)",
        "cancel": "select * from dever.cancel(%(ids)s)",
        "bury": "select * from dever.bury(%(ids)s, %(tokens)s, array['x'])",
    }[verb]
    worker.execute(call, values)
    second = Blocked(client, observer, enqueue)
    assert second.is_waiting()
    worker.commit() if commit else worker.rollback()
    other, created = second.result()
    assert created is commit
    assert (other != id) is commit
    assert unfinished(observer) == 1


@pytest.mark.req("R3.2")
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_stricter_transactions_get_a_retryable_error(
    connect: Connect, observer: Session, level: str
) -> None:
    """C21: PostgreSQL itself answers with 40001; documented, and the second try succeeds."""
    session = connect("caller", autocommit=False)
    session.isolation_level = psycopg.IsolationLevel[level]
    session.execute("select 1 from dever.job")
    id, _ = enqueue(observer)
    with pytest.raises(psycopg.Error) as caught:
        enqueue(session)
    assert caught.value.sqlstate == "40001"
    session.rollback()
    assert enqueue(session) == (id, False)


@pytest.mark.req("R3.1", "R3.2")
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_key_that_was_freed_after_the_snapshot_is_inserted_beside_a_duplicate(
    connect: Connect, observer: Session, level: str
) -> None:
    """The snapshot still shows the finished job under the key, beside the one just inserted."""
    ids = [enqueue(observer, key)[0] for key in ("freed", "taken")]
    session = connect("caller", autocommit=False)
    session.isolation_level = psycopg.IsolationLevel[level]
    session.execute("select 1 from dever.job")
    observer.execute("select dever.cancel(%s)", [ids[:1]])
    found = session.execute(
        "select id, created from dever.enqueue_many(%s, array['freed', 'taken']) order by ordinal",
        [TARGET],
    ).fetchall()
    session.commit()
    assert [created for _, created in found] == [True, False]
    assert found[0][0] > ids[1]
    assert found[1][0] == ids[1]


@pytest.mark.req("R3.2", "R3.6")
def test_refused_enqueue_in_a_savepoint_keeps_the_callers_rows(
    connect: Connect, observer: Session
) -> None:
    observer.execute("create table own (n integer)")
    session = connect("caller", autocommit=False)
    session.execute("insert into own values (1)")
    with pytest.raises(psycopg.Error) as caught, session.transaction():
        session.execute("select * from dever.enqueue(%s, 'k', '{}')", [TARGET])
    assert caught.value.sqlstate == "DV005"
    session.commit()
    assert observer.execute("select n from own").fetchall() == [(1,)]
    assert unfinished(observer) == 0


@pytest.mark.req("R3.2", "R3.4")
def test_a_job_that_finishes_as_it_is_found_is_still_the_id_that_is_returned(
    connect: Connect, observer: Session
) -> None:
    """Every look finds the duplicate and lets it finish: a second look would find nothing, and an
    id that was never inserted would be acknowledged."""
    ids = [enqueue(observer, key)[0] for key in ("a", "b")]
    session = connect("caller", autocommit=False)
    session.execute(
        """
        create or replace function dever.unfinished_id(target text, queue_id bigint, key text)
        returns bigint language plpgsql volatile as $$
        #variable_conflict use_column
        declare v_id bigint;
        begin
            delete from dever.job as j
            where j.target = unfinished_id.target and j.key = unfinished_id.key
            returning j.id into v_id;
            return v_id;
        end
        $$
        """
    )
    found = session.execute(
        "select id, created from dever.enqueue_many(%s, array['a', 'b']) order by ordinal",
        [TARGET],
    ).fetchall()
    session.rollback()
    assert found == [(id, False) for id in ids]


def batch(session: Session, *keys: str) -> list[tuple[int, bool]]:
    return session.execute(
        "select id, created from dever.enqueue_many(%s, %s) order by ordinal", [TARGET, list(keys)]
    ).fetchall()


@pytest.mark.req("R3.2")
@pytest.mark.usefixtures("log_is_quiet")
def test_a_batch_whose_known_key_is_freed_and_taken_does_not_deadlock(
    connect: Connect, observer: Session
) -> None:
    """To insert `a` late would wait for who took it, while he waits for `b`, which is inserted."""
    known, _ = enqueue(observer, "a")
    holder = connect("holder", autocommit=False)
    enqueue(holder, "c")
    first = Blocked(connect("first"), observer, lambda session: batch(session, "a", "b", "c"))
    assert first.is_waiting(), "for c: a was known, b is inserted"
    observer.execute("select dever.cancel(%s)", [[known]])
    second = Blocked(connect("second"), observer, lambda session: batch(session, "a", "b"))
    assert second.is_waiting(), "for b: a is taken"
    holder.commit()
    found = dict(zip("abc", first.result(), strict=True))
    others = dict(zip("ab", second.result(), strict=True))
    assert [found[key][0] for key in "ab"] == [others[key][0] for key in "ab"]
    assert sorted(created for key in "ab" for _, created in (found[key], others[key])) == [
        False,
        False,
        True,
        True,
    ]
    assert not found["c"][1]
    assert unfinished(observer) == 3
