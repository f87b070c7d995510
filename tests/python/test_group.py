"""Services of one process: the first failure stops the rest, nothing outlives it (R8.2, R8.4)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from worker_tasks import enqueue, task

from dever_sql import database
from dever_sql.engine import Engine
from dever_sql.errors import DatabaseUnavailable, DeverError, InvalidArgument, SettingsError
from dever_sql.group import Group
from dever_sql.service import ApiService, SchedulerService, WorkerService
from dever_sql.settings import parse_settings
from dever_sql.worker import Worker, WorkerOptions


class Plain:
    """A service that runs until it is stopped, or does what it is told. Notes what it was asked."""

    def __init__(self, act: Any = None, clean: bool = True, at: str = "wait") -> None:
        self._act = act
        self._clean = clean
        self._at = at
        self.began = threading.Event()
        self.calls: list[str] = []

    def _note(self, call: str) -> None:
        if call not in self.calls:
            self.calls.append(call)
        if call == self._at and self._act is not None:
            self._act()

    async def start(self) -> None:
        self._note("start")

    async def wait(self) -> None:
        self.began.set()
        self._note("wait")
        await asyncio.Event().wait()

    def stop_accepting(self) -> None:
        self._note("stop_accepting")

    async def drain(self, seconds: float) -> bool:
        self._note("drain")
        return self._clean

    def close(self) -> None:
        self._note("close")


ALL_STEPS = ["start", "wait", "stop_accepting", "drain", "close"]


def raiser(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


def a_group(**services: Any) -> Group:
    group = Group(shutdown_ms=5_000)
    for name, service in services.items():
        group.add(name, service)
    return group


@pytest.mark.req("R8.2")
@pytest.mark.parametrize("at", ["start", "wait", "drain"])
@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(0), KeyboardInterrupt(), DeverError("no")]
)
def test_the_first_failure_stops_the_rest(error: BaseException, at: str) -> None:
    other = Plain()
    failing = Plain(raiser(error), at=at)
    group = a_group(other=other, failing=failing)
    if at == "drain":
        threading.Thread(target=lambda: (other.began.wait(10), group.stop())).start()
    assert group.run() == 1
    assert group.failure is error
    assert [step for step in other.calls if step != "wait"] == [
        "start",
        "stop_accepting",
        "drain",
        "close",
    ]


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("clean", [True, False])
def test_a_stop_goes_through_all_steps_in_order_and_tells_the_truth(clean: bool) -> None:
    one, two = Plain(clean=clean), Plain()
    group = a_group(one=one, two=two)
    threading.Thread(target=lambda: (two.began.wait(10), group.stop())).start()
    assert group.run() == (0 if clean else 1)
    assert one.calls == ALL_STEPS
    assert two.calls == ALL_STEPS


@pytest.mark.req("R8.4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_group_and_handlers_are_put_back(number: signal.Signals) -> None:
    service = Plain()
    group = a_group(one=service)
    pid = os.getpid()
    threading.Thread(target=lambda: (service.began.wait(10), os.kill(pid, number))).start()
    before = signal.getsignal(number)
    assert group.run() == 0
    assert signal.getsignal(number) is before
    assert service.calls == ALL_STEPS


@pytest.mark.req("R8.2")
def test_a_stop_before_the_run_starts_nothing_that_goes_on() -> None:
    service = Plain()
    group = a_group(one=service)
    group.stop()
    assert group.run() == 0
    assert service.calls[-1] == "close"


@pytest.mark.req("R8.2")
def test_a_coroutine_may_end_by_itself() -> None:
    seen: list[str] = []

    async def one() -> None:
        seen.append("one")

    async def two() -> None:
        await asyncio.sleep(0.05)
        seen.append("two")

    assert a_group(one=one, two=two).run() == 0
    assert seen == ["one", "two"]


@pytest.mark.req("R8.2")
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(0), asyncio.CancelledError()])
def test_a_coroutine_that_fails_stops_the_group(error: BaseException) -> None:
    ended: list[bool] = []

    async def failing() -> None:
        raise error

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    assert a_group(other=other, failing=failing).run() == 1
    assert ended == [True]


@pytest.mark.req("R8.4")
def test_a_coroutine_that_swallows_its_cancellation_is_cut_off() -> None:
    began = threading.Event()

    async def stubborn() -> None:
        began.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    group = Group(shutdown_ms=100)
    group.add("stubborn", stubborn)
    threading.Thread(target=lambda: (began.wait(10), group.stop())).start()
    before = time.monotonic()
    assert group.run() == 1
    assert time.monotonic() - before < 8


def test_a_group_without_services_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no service"):
        Group(shutdown_ms=1).run()
    with pytest.raises(InvalidArgument, match="has a service 'one' already"):
        a_group(one=Plain()).add("one", Plain())


@pytest.mark.req("R8.2")
def test_a_worker_shares_the_groups_loop(live: Engine) -> None:
    loops: list[Any] = []
    group = Group(shutdown_ms=10_000)

    async def handler() -> None:
        loops.append(asyncio.get_running_loop())
        group.stop()

    async def look() -> None:
        loops.append(asyncio.get_running_loop())

    each = task(handler)
    enqueue(live, each)
    group.add("worker", WorkerService([Worker(live, [each], WorkerOptions(poll_ms=50))]))
    group.add("look", look)
    assert group.run() == 0
    assert len(loops) == 2
    assert loops[0] is loops[1]
    assert [row.state for row in live.jobs()] == ["succeeded"]


@pytest.mark.req("R8.4")
def test_a_group_with_less_patience_than_its_worker_cuts_off(live: Engine) -> None:
    group = Group(shutdown_ms=100)
    ended: list[bool] = []

    async def handler() -> None:
        group.stop()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    each = task(handler)
    enqueue(live, each)
    group.add("worker", WorkerService([Worker(live, [each], WorkerOptions(poll_ms=50))]))
    assert group.run() == 1
    assert ended == [True]
    assert [(row.state, row.attempt) for row in live.jobs()] == [("ready", 1)]


class SlowToStop(Plain):
    """Its `stop_accepting` returns when `ended` has happened and the loop has seen it."""

    def __init__(self, ended: threading.Event) -> None:
        super().__init__()
        self._other_ended = ended
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    def stop_accepting(self) -> None:
        if "stop_accepting" not in self.calls and self.loop is not None:
            assert self._other_ended.wait(10)
            for _ in range(20):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(10)
        super().stop_accepting()


@pytest.mark.req("R8.4")
def test_a_coroutine_that_ends_before_all_are_told_to_stop_is_no_failure() -> None:
    ended = threading.Event()
    slow = SlowToStop(ended)

    async def until_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    group = a_group(mail=until_cancelled, slow=slow)
    threading.Thread(target=lambda: (slow.began.wait(10), group.stop())).start()
    assert (group.run(), group.failure) == (0, None)


@pytest.mark.req("R8.4")
def test_a_scheduler_that_ends_before_all_are_told_to_stop_is_no_failure(
    live: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dever_sql.service._POLL", 0)
    scheduler = SchedulerService(live)
    slow = SlowToStop(scheduler._ended)
    group = a_group(scheduler=scheduler, slow=slow)
    threading.Thread(target=lambda: (slow.began.wait(10), group.stop())).start()
    assert (group.run(), group.failure) == (0, None)


@pytest.mark.req("R8.2")
def test_a_worker_that_cannot_start_fails_the_group(tmp_path: Path) -> None:
    from dever_sql.sqlite import SQLiteEngine

    async def handler() -> None:
        pass

    engine = SQLiteEngine(tmp_path / "empty.db")  # nothing is installed in it
    other = Plain()
    group = a_group(other=other, worker=WorkerService([Worker(engine, [task(handler)])]))
    try:
        assert group.run() == 1
    finally:
        engine.close()
    assert isinstance(group.failure, DeverError)
    assert other.calls[-1] == "close"


@pytest.mark.req("R8.2", "R7.5")
def test_of_two_schedulers_the_other_goes_on_when_one_ends(live: Engine) -> None:
    live.schedule("beat", "@every 1s", "beats", "null")

    async def fired(count: int) -> None:
        while len(live.jobs(queue="beats")) < count:
            await asyncio.sleep(0.02)

    async def run() -> None:
        first, second = SchedulerService(live), SchedulerService(live)
        await first.start()
        await second.start()
        await fired(2)
        assert len(live.locks()) == 1
        first.stop_accepting()
        assert await first.drain(10)
        await fired(len(live.jobs(queue="beats")) + 2)
        second.stop_accepting()
        assert await second.drain(10)

    asyncio.run(run())
    (row,) = live.schedules()
    assert (row.fired, row.skipped) == (len(live.jobs(queue="beats")), 0)
    assert live.locks() == []


@pytest.mark.req("R8.2", "R7.5")
def test_a_scheduler_ends_clean_and_another_one_takes_over(live: Engine) -> None:
    live.schedule("beat", "@every 1s", "beats", "null")

    def run_until(count: int) -> int:
        group = a_group(scheduler=SchedulerService(live))

        async def watch() -> None:
            while len(live.jobs(queue="beats")) < count:
                await asyncio.sleep(0.02)
            group.stop()

        group.add("watch", watch)
        return group.run()

    assert run_until(1) == 0
    assert live.locks() == []
    assert run_until(2) == 0
    (row,) = live.schedules()
    assert row.fired == len(live.jobs(queue="beats"))


@pytest.mark.req("R8.5", "R7.5")
def test_a_scheduler_lives_through_an_outage(live: Engine, monkeypatch: Any) -> None:
    live.schedule("beat", "@every 1s", "beats", "null")
    group = a_group(scheduler=SchedulerService(live))
    tick = live.tick
    failures = [DatabaseUnavailable("gone"), DatabaseUnavailable("gone")]

    def tick_or_fail(n: int = 100) -> Any:
        if failures:
            raise failures.pop()
        return tick(n)

    monkeypatch.setattr(live, "tick", tick_or_fail)

    async def watch() -> None:
        while not live.jobs(queue="beats"):
            await asyncio.sleep(0.02)
        group.stop()

    group.add("watch", watch)
    assert group.run() == 0
    assert failures == []


@pytest.mark.req("R8.2")
def test_a_scheduler_without_an_installation_fails_the_group(tmp_path: Path) -> None:
    from dever_sql.sqlite import SQLiteEngine

    engine = SQLiteEngine(tmp_path / "empty.db")
    group = a_group(scheduler=SchedulerService(engine))
    try:
        assert group.run() == 1
    finally:
        engine.close()
    assert isinstance(group.failure, DeverError)


@pytest.mark.req("R8.2")
def test_a_group_has_the_scheduler_of_a_database_by_its_name(live: Engine) -> None:
    database.close_all()
    database.use_engine("other", live)
    live.schedule("beat", "@every 1s", "beats", "null")
    group = Group(shutdown_ms=5_000)
    group.add_scheduler("other")

    async def watch() -> None:
        while not live.jobs(queue="beats"):
            await asyncio.sleep(0.02)
        group.stop()

    group.add("watch", watch)
    try:
        assert group.run() == 0
    finally:
        database.close_all()


@pytest.mark.req("R8.4")
def test_a_port_that_is_taken_is_found_out_at_once() -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeverError, match=f"cannot listen on 127.0.0.1:{port}"):
            ApiService(None, "127.0.0.1", port)
    first = ApiService(None, "127.0.0.1", 0)
    try:
        with pytest.raises(DeverError, match="cannot listen"):  # before it serves anything
            ApiService(None, "127.0.0.1", first.port)
    finally:
        first.close()


@pytest.mark.req("R8.2")
@pytest.mark.parametrize("mode", ["api", "worker"])
def test_a_mode_leaves_the_other_services_out(tmp_path: Path, mode: str) -> None:
    sections = '"api": {"host": "127.0.0.1", "port": 0}, "job": {"workers": 1, "poll_ms": 50,'
    sections += ' "lease_ms": 60000, "retry_base_ms": 1000, "retry_max_ms": 2000},'
    settings = f'{{"runtime": {{"mode": "{mode}", "shutdown_ms": 1000}}, {sections}'
    settings += ' "database": {"default": {"sqlite": "app.db"}}}'
    database.configure(parse_settings(settings.encode()), tmp_path)
    try:
        group = Group()
        if mode == "api":
            group.add_jobs()
        else:
            group.add_api(None)
        with pytest.raises(SettingsError, match=f'runtime.mode is "{mode}"'):
            group.run()
        assert list(tmp_path.iterdir()) == []
    finally:
        database.close_all()
