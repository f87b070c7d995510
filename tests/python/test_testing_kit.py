"""The testing kit as an application's tests use it (R8.6)."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dever_sql import database, job
from dever_sql.declare import Jobs
from dever_sql.errors import CrossDatabaseError, DeverError, InvalidArgument
from dever_sql.record import record
from dever_sql.testing import Kit, kit

pytestmark = pytest.mark.req("R8.6")

jobs = Jobs()
audits = Jobs(database="audit")
seen: list[object] = []
colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@record
class Parcel:
    number: int


@jobs.job(retry=3, timeout=10_000)
def pack(parcel: Parcel) -> None:
    seen.append(parcel.number)


@jobs.job(retry=2, timeout=10_000)
async def ship(parcel: Parcel) -> None:
    await asyncio.sleep(0)
    seen.append((parcel.number, colour.get()))


@jobs.job(retry=2, timeout=10_000)
def break_it(parcel: Parcel) -> None:
    raise ValueError(f"parcel {parcel.number} fell")


@jobs.job(retry=2, timeout=10_000)
def ask_again(parcel: Parcel) -> None:
    if job.current().attempt == 1:
        raise job.Retry(delay=timedelta(minutes=5))
    seen.append(parcel.number)


@jobs.job(retry=2, timeout=10_000)
def give_up() -> None:
    raise job.Dead("nobody home")


@jobs.job(retry=2, timeout=10_000)
def follow(parcel: Parcel) -> None:
    pack.enqueue(parcel, key=f"follow:{parcel.number}")


@jobs.cron("0 3 * * *", retry=2, timeout=10_000)
def nightly() -> None:
    seen.append("nightly")


@audits.job(retry=1, timeout=10_000)
def audit(parcel: Parcel) -> None:
    seen.append(f"audit {parcel.number}")


@pytest.fixture
def dever_jobs():
    """The jobs of this file only: other test files declare theirs in the same process."""
    here = [pack, ship, break_it, ask_again, give_up, follow, nightly, audit]
    return lambda: here


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def test_jobs_run_in_order_when_the_test_says_so(dever: Kit) -> None:
    for number in (3, 1, 2):
        pack.enqueue(Parcel(number), key=str(number))
    assert [each.payload for each in dever.enqueued()] == [Parcel(3), Parcel(1), Parcel(2)]
    assert seen == []
    ran = dever.drain()
    assert seen == [3, 1, 2]
    assert [(each.key, each.state, each.attempt) for each in ran] == [
        ("3", "succeeded", 1),
        ("1", "succeeded", 1),
        ("2", "succeeded", 1),
    ]
    assert dever.enqueued() == []
    assert dever.drain() == []


def test_a_limit(dever: Kit) -> None:
    pack.enqueue_many([(Parcel(number), str(number)) for number in range(4)])
    assert len(dever.drain(limit=3)) == 3
    assert [each.key for each in dever.enqueued(pack)] == ["3"]
    assert dever.drain(limit=0) == []


def test_what_a_job_enqueues_runs_too(dever: Kit) -> None:
    follow.enqueue(Parcel(5), key="a")
    assert [each.target.rpartition(".")[2] for each in dever.drain()] == ["follow", "pack"]


def test_the_clock_moves_forward_only(dever: Kit) -> None:
    before = dever.now
    pack.enqueue_at(Parcel(1), key="later", run_at=before + timedelta(hours=1))
    assert dever.drain() == []
    dever.advance(timedelta(hours=1) - timedelta(microseconds=1))
    assert dever.drain() == []
    assert dever.advance(timedelta(microseconds=1)) == before + timedelta(hours=1)
    assert len(dever.drain()) == 1
    with pytest.raises(InvalidArgument, match="forward"):
        dever.advance(-1)
    with pytest.raises(InvalidArgument, match="time zone"):
        dever.advance_to(datetime(2090, 1, 1))


def test_cron_fires_at_each_window_on_the_way(dever: Kit) -> None:
    dever.advance_to((dever.now + timedelta(days=1)).replace(hour=4))
    assert len(dever.drain()) in (1, 2)
    seen.clear()
    dever.advance(timedelta(days=100))
    assert len(dever.drain()) == 100
    assert set(seen) == {"nightly"}


def test_a_failure_comes_back_with_its_traceback(dever: Kit) -> None:
    break_it.enqueue(Parcel(9), key="a")
    with pytest.raises(ValueError, match="parcel 9 fell") as caught:
        dever.drain()
    assert any(entry.name == "break_it" for entry in caught.traceback)
    assert "key 'a', attempt 1" in caught.value.__notes__[0]
    (waiting,) = dever.enqueued()
    assert waiting.state == "scheduled"
    dever.advance(timedelta(minutes=10))
    (ran,) = dever.drain(raises=False)
    assert ran.state == "dead"
    assert isinstance(ran.error, ValueError)


def test_several_failures_come_together(dever: Kit) -> None:
    for key in "ab":
        break_it.enqueue(Parcel(1), key=key)
    with pytest.raises(ExceptionGroup) as caught:
        dever.drain()
    assert len(caught.value.exceptions) == 2


def test_retry_and_dead_are_no_failures(dever: Kit) -> None:
    ask_again.enqueue(Parcel(1), key="a")
    give_up.enqueue(key="b")
    assert [each.state for each in dever.drain()] == ["scheduled", "dead"]
    dever.advance(timedelta(minutes=5))
    assert [(each.attempt, each.state) for each in dever.drain()] == [(2, "succeeded")]


def test_a_job_that_is_blocked_is_told(dever: Kit) -> None:
    pack.enqueue(Parcel(1), key="a")
    (waiting,) = dever.enqueued()
    with sqlite3.connect(dever.engine().path) as connection:
        connection.execute("update dever_job set payload = '{}'")
    with pytest.raises(DeverError, match="invalid_payload"):
        dever.drain()
    assert dever.enqueued()[0].id == waiting.id


def test_each_logical_database_is_one_of_its_own(dever: Kit) -> None:
    pack.enqueue(Parcel(1), key="a")
    audit.enqueue(Parcel(1), key="a")
    assert sorted(map(str, [each.payload.number for each in dever.enqueued()])) == ["1", "1"]
    with pytest.raises(CrossDatabaseError), database.transaction("audit"):
        pack.enqueue(Parcel(2), key="b")
    dever.drain()
    assert seen == [1, "audit 1"]


def test_a_transaction_and_its_jobs_commit_together(dever: Kit) -> None:
    with database.transaction("default") as tx:
        tx.execute("create table parcel (number integer)")
        pack.enqueue(Parcel(1), key="a")
        with pytest.raises(InvalidArgument, match="after the transaction"):
            dever.drain()

    def fail() -> None:
        with database.transaction("default"):
            pack.enqueue(Parcel(2), key="b")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [each.key for each in dever.enqueued()] == ["a"]


def test_handlers_see_the_context_of_the_test(dever: Kit) -> None:
    token = colour.set("blue")
    ship.enqueue(Parcel(1), key="a")
    dever.drain()
    colour.reset(token)
    assert seen == [(1, "blue")]


def test_nothing_is_left_of_another_test(dever: Kit) -> None:
    assert dever.enqueued() == []
    assert not any(engine_path(dever).parent.glob("*.db"))
    pack.enqueue(Parcel(1), key="a")
    assert dever.engine().get_job(1) is not None


def engine_path(dever: Kit) -> Path:
    return Path(dever._directory) / "0.db"


def test_no_settings_are_read_and_no_server_is_asked(
    dever: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/setting.json").write_text("{ this is no JSON")
    monkeypatch.chdir(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    pack.enqueue(Parcel(1), key="a")
    dever.advance(timedelta(days=2))
    assert len(dever.drain()) == 3


@pytest.mark.asyncio
async def test_with_pytest_asyncio(dever: Kit) -> None:
    await ship.aenqueue(Parcel(1), key="a")
    (ran,) = await dever.adrain()
    assert ran.state == "succeeded"
    assert seen == [(1, "none")]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_with_anyio(dever: Kit) -> None:
    await ship.aenqueue(Parcel(1), key="a")
    (ran,) = await dever.adrain()
    assert ran.state == "succeeded"
    assert seen == [(1, "none")]


class Mail:
    """A Port, as a domain declares it."""

    def send(self, text: str) -> None:
        raise AssertionError("a test reached the real Port")


class Post(Mail): ...


mail = Mail()


@jobs.job(retry=1, timeout=10_000)
def notify(parcel: Parcel) -> None:
    mail.send(f"parcel {parcel.number}")


class FakeMail(Mail):
    def send(self, text: str) -> None:
        seen.append(text)


@pytest.mark.parametrize("where", ["module", "object", "class", "path"])
def test_a_port_has_a_fake_until_the_test_ends(where: str) -> None:
    here = sys.modules[__name__]
    with kit(lambda: [notify]) as dever:
        if where == "module":
            fake: object = dever.fake(here, "mail", FakeMail())
            assert mail is fake
        elif where == "object":
            dever.fake(mail, "send", seen.append)
        elif where == "class":
            dever.fake(Mail, "send", lambda self, text: seen.append(text))
        else:
            dever.fake(f"{__name__}.mail.send", seen.append)
        notify.enqueue(Parcel(1), key="a")
        dever.drain()
    assert seen == ["parcel 1"]
    with pytest.raises(AssertionError, match="real Port"):
        mail.send("text")
    assert vars(mail) == {}


def test_fakes_are_undone_in_turn_and_after_a_failure() -> None:
    here = sys.modules[__name__]
    real = mail

    def fail(dever: Kit) -> None:
        dever.fake(here, "mail", FakeMail())
        dever.fake(here, "mail", FakeMail())
        dever.fake(Post, "send", seen.append)  # inherited
        raise RuntimeError

    with pytest.raises(RuntimeError), kit(list) as dever:
        fail(dever)
    assert mail is real
    assert "send" not in vars(Post)


@pytest.mark.parametrize(
    "target",
    [
        (mail, "sent"),
        (Mail, "sent"),
        (f"{__name__}.nobody",),
        (f"{__name__}.mail.sent",),
        (f"{__name__}.nobody.send",),
        ("nowhere.mail",),
        ("mail",),
        ("",),
    ],
)
def test_what_is_not_there_has_no_fake(dever: Kit, target: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgument, match="to replace"):
        dever.fake(*target, FakeMail())


@pytest.mark.parametrize("number", range(40))
def test_many(dever: Kit, number: int) -> None:
    pack.enqueue(Parcel(number), key="a")
    assert len(dever.drain()) == 1
    assert dever.now <= datetime.now(UTC)


def test_on_a_postgresql_database_that_the_caller_names(pg_empty_url: str) -> None:
    for _ in range(2):  # the second time finds nothing of the first
        with kit(lambda: [pack, nightly, audit], {"default": pg_empty_url}) as dever:
            pack.enqueue(Parcel(1), key="a")
            pack.enqueue_at(Parcel(2), key="b", run_at=dever.now + timedelta(days=3))
            audit.enqueue(Parcel(3), key="a")
            assert [each.payload for each in dever.drain()] == [Parcel(1), Parcel(3)]
            dever.advance(timedelta(days=3))
            assert len(dever.drain()) == 4
            assert dever.engine().kind == "postgresql"
            assert dever.engine("audit").kind == "sqlite"


def test_a_postgresql_database_with_jobs_is_not_emptied(pg_url: str) -> None:
    with psycopg.connect(pg_url) as connection:
        connection.execute("select dever.send('mail', 'null')")
    with (
        kit(lambda: [pack], {"default": pg_url}),
        pytest.raises(InvalidArgument, match="holds jobs"),
    ):
        pack.enqueue(Parcel(1), key="a")
    with psycopg.connect(pg_url) as connection:
        assert connection.execute("select count(*) from dever.jobs").fetchone() == (1,)
