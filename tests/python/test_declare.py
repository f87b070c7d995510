"""Declaring jobs: what is refused, when, and what a declared job offers."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from dever_sql import database, declare
from dever_sql.declare import Job, Jobs, all_jobs
from dever_sql.engine import Engine
from dever_sql.errors import (
    CrossDatabaseError,
    DeclarationError,
    InvalidArgument,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    InvalidSpec,
    ReservedName,
)
from dever_sql.record import record


class NotARecord: ...


@record
class Receipt:
    order: int


jobs = Jobs()


@jobs.job(retry=5, timeout=30_000)
async def send_receipt(receipt: Receipt) -> None: ...


@jobs.job(retry=1, timeout=1, name="shop.clean")
def clean() -> None: ...


@jobs.cron("0 3 * * *", retry=3, timeout=60_000)
async def nightly() -> None: ...


MODULE = __name__


# --- settings of a declaration ---


@pytest.mark.req("R1.4")
@pytest.mark.parametrize("setting", ["retry", "timeout"])
@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, "1", None, 10**9])
def test_retry_and_timeout_are_integers_within_their_range(setting: str, value: Any) -> None:
    def handler() -> None: ...

    settings: dict[str, Any] = {"retry": 1, "timeout": 1, setting: value}
    for decorator in (jobs.job(**settings), jobs.cron("* * * * *", **settings)):
        with pytest.raises(DeclarationError, match=setting):
            decorator(handler)


@pytest.mark.req("R1.4")
@pytest.mark.parametrize(("retry", "timeout"), [(1, 1), (100, 3_600_000)])
def test_the_ends_of_the_ranges_are_fine(retry: int, timeout: int) -> None:
    @Jobs().job(retry=retry, timeout=timeout)
    def handler() -> None: ...

    assert (handler.retry, handler.timeout_ms) == (retry, timeout)


@pytest.mark.req("R1.4")
@pytest.mark.parametrize(("retry", "timeout"), [(101, 1), (1, 3_600_001)])
def test_beyond_the_ranges_is_refused(retry: int, timeout: int) -> None:
    with pytest.raises(DeclarationError):
        jobs.job(retry=retry, timeout=timeout)(lambda: None)

    def handler() -> None: ...

    with pytest.raises(DeclarationError, match="is 1 to"):
        jobs.job(retry=retry, timeout=timeout)(handler)


@pytest.mark.req("R1.4")
@pytest.mark.parametrize("missing", ["retry", "timeout"])
def test_neither_may_be_left_out(missing: str) -> None:
    def handler() -> None: ...

    settings: dict[str, Any] = {"retry": 1, "timeout": 1}
    del settings[missing]
    with pytest.raises(DeclarationError, match=f"has no {missing}"):
        jobs.job(**settings)(handler)


@pytest.mark.req("R1.4")
def test_a_decorator_without_its_settings_is_refused() -> None:
    def handler() -> None: ...

    with pytest.raises(DeclarationError, match="without its settings"):
        jobs.job(handler)  # type: ignore[call-arg]
    with pytest.raises(DeclarationError, match="without its settings"):
        jobs.cron(handler)  # type: ignore[call-arg]


@pytest.mark.req("R7.1")
@pytest.mark.parametrize(
    ("queue", "error"),
    [
        ("", InvalidName),
        (" \t\n", InvalidName),
        ("a\0b", InvalidName),
        ("\ud800", InvalidName),
        ("q" * 256, InvalidName),
        ("é" * 128, InvalidName),
        (5, InvalidName),
        ("__dever_outbox:x", ReservedName),
    ],
)
def test_a_queue_name_follows_the_rule_of_names(queue: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Jobs(queue=queue)


@pytest.mark.req("R7.1")
@pytest.mark.parametrize("queue", ["q", "q" * 255, "\u00a0", "Grüße 1", "__Dever_"])
def test_unicode_and_spaces_are_names(queue: str) -> None:
    assert Jobs(queue=queue).queue == queue


@pytest.mark.req("R1.3")
@pytest.mark.parametrize("name", ["", " ", "a:b", "a\0", "\udfff", "n" * 256, "__dever_x", 5, True])
def test_a_target_that_is_no_name_is_refused(name: Any) -> None:
    def handler() -> None: ...

    with pytest.raises(DeclarationError, match="target"):
        jobs.job(retry=1, timeout=1, name=name)(handler)


# --- handlers ---


def two(a: Receipt, b: Receipt) -> None: ...
def any_number(*receipts: Receipt) -> None: ...
def any_keyword(**receipts: Receipt) -> None: ...
def by_keyword(*, receipt: Receipt) -> None: ...
def with_default(receipt: Receipt = Receipt(1)) -> None: ...  # noqa: B008
def generator() -> Any:
    yield


async def async_generator() -> Any:
    yield


@functools.wraps(send_receipt.handler)
def wrapped(*args: Any, **kwargs: Any) -> None: ...


class Callable_:
    def __call__(self) -> None: ...


@pytest.mark.req("R1.3", "R1.5")
@pytest.mark.parametrize(
    "handler",
    [
        two,
        any_number,
        any_keyword,
        by_keyword,
        with_default,
        generator,
        async_generator,
        wrapped,
        lambda: None,
        Callable_,
        Callable_(),
        Callable_().__call__,
        functools.partial(two, None),
        staticmethod(two),
        print,
        send_receipt,
        clean,
        None,
    ],
)
def test_what_cannot_be_a_handler_is_refused_at_once(handler: Any) -> None:
    before = len(all_jobs())
    with pytest.raises(DeclarationError):
        jobs.job(retry=1, timeout=1)(handler)
    assert len(all_jobs()) == before


def no_type(receipt) -> None: ...  # type: ignore[no-untyped-def]
def plain_type(receipt: int) -> None: ...
def plain_class(receipt: NotARecord) -> None: ...
def optional(receipt: Receipt | None) -> None: ...
def many(receipt: list[Receipt]) -> None: ...
def anything(receipt: Any) -> None: ...
def missing(receipt: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def returns(receipt: Receipt) -> int: ...  # type: ignore[empty-body]
async def async_returns() -> str: ...  # type: ignore[empty-body]
def returns_missing() -> Missing: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.req("R1.3")
@pytest.mark.parametrize(
    "handler",
    [
        no_type,
        plain_type,
        plain_class,
        optional,
        many,
        anything,
        missing,
        returns,
        async_returns,
        returns_missing,
    ],
)
def test_what_needs_annotations_is_refused_at_first_use(handler: Any) -> None:
    job: Job[Any] = Jobs().job(retry=1, timeout=1)(handler)
    with pytest.raises(DeclarationError, match=handler.__name__):
        job.contract()
    with pytest.raises(DeclarationError):
        job.enqueue(Receipt(1), key="k")


@pytest.mark.req("R1.3")
def test_a_handler_may_leave_out_its_return_type() -> None:
    @Jobs().job(retry=1, timeout=1)
    def handler(receipt: Receipt): ...  # type: ignore[no-untyped-def]

    assert handler.contract()["schema"]["name"] == "Receipt"


# --- cron ---


@pytest.mark.req("R6.1", "R6.3")
@pytest.mark.parametrize(
    "spec", ["", "@daily", "@every 5m", "* * * *", "* * * * * *", "0 0 30 2 *"]
)
def test_a_spec_that_is_no_cron_is_refused_at_once(spec: str) -> None:
    with pytest.raises(InvalidSpec):
        jobs.cron(spec, retry=1, timeout=1)


@pytest.mark.req("R6.3")
def test_a_cron_job_takes_no_input() -> None:
    with pytest.raises(DeclarationError, match="takes no input"):
        jobs.cron("* * * * *", retry=1, timeout=1)(plain_type)  # type: ignore[arg-type]


@pytest.mark.req("R6.6")
def test_missed_is_one_of_three_policies() -> None:
    with pytest.raises(DeclarationError, match="catch_up, latest, skip"):
        jobs.cron("* * * * *", retry=1, timeout=1, missed="all")  # type: ignore[arg-type]


# --- what a job is ---


@pytest.mark.req("R2.6", "R3.6")
def test_the_contract_of_a_job() -> None:
    contract = send_receipt.contract(retry_base_ms=10, retry_max_ms=20, retry_jitter=0.5)
    fingerprint = contract.pop("fingerprint")
    assert contract == {
        "target": f"{MODULE}.send_receipt",
        "queue": "default",
        "schema": {
            "kind": "record",
            "name": "Receipt",
            "fields": [{"name": "order", "type": {"kind": "int"}}],
        },
        "retry": 5,
        "timeout_ms": 30_000,
        "backoff_base_ms": 10,
        "backoff_max_ms": 20,
        "backoff_jitter": 0.5,
        "schedule": None,
    }
    assert len(fingerprint) == 64
    assert json.loads(json.dumps(contract)) == contract


def test_name_pins_the_target_and_cron_its_schedule() -> None:
    assert clean.contract()["target"] == "shop.clean"
    assert clean.contract()["schema"] == {"kind": "null"}
    assert nightly.contract()["schedule"] == {"spec": "0 3 * * *", "missed": "catch_up"}


def test_arguments_are_what_the_handler_takes() -> None:
    assert send_receipt.arguments('{"order": 7}') == (Receipt(7),)
    assert clean.arguments("null") == ()
    assert (send_receipt.is_async, clean.is_async) == (True, False)
    with pytest.raises(InvalidPayload):
        clean.arguments("{}")


@pytest.mark.req("R1.5")
def test_calling_a_job_names_the_enqueue_call() -> None:
    call: Any = send_receipt
    with pytest.raises(DeclarationError, match=r"send_receipt\.enqueue\(payload, key=\.\.\.\)"):
        call(Receipt(7))
    call = clean
    with pytest.raises(DeclarationError, match=r"clean\.enqueue\(key=\.\.\.\)"):
        call()
    with pytest.raises(DeclarationError):
        list(map(call, [1]))


# --- one program ---


@pytest.mark.req("R1.2")
def test_one_target_twice_in_a_program_is_refused() -> None:
    mine = Jobs()

    def handler() -> None: ...

    first = mine.job(retry=1, timeout=1, name="shop.twice")(handler)

    def other() -> None: ...

    with pytest.raises(DeclarationError, match=r"shop\.twice is declared already, at .*py:\d+"):
        Jobs().job(retry=1, timeout=1, name="shop.twice")(other)
    assert first in all_jobs()


def test_the_same_name_twice_in_a_module_is_refused() -> None:
    mine = Jobs()

    def declare_one() -> Job[None]:
        def same() -> None: ...

        return mine.job(retry=1, timeout=1, name="shop.same")(same)

    def declare_another() -> Job[None]:
        def same() -> None: ...

        same.__qualname__ = one.handler.__qualname__
        return mine.job(retry=1, timeout=1, name="shop.same")(same)

    one = declare_one()
    declare_one()  # the same function again
    with pytest.raises(DeclarationError, match="declared already"):
        declare_another()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    declared = dict(declare._declared)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    declare._declared.clear()
    declare._declared.update(declared)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


def test_a_module_that_is_loaded_again_declares_its_jobs_again(project: Path) -> None:
    write(
        project / "reloaded.py",
        """
        from dever_sql import Jobs
        jobs = Jobs()
        @jobs.job(retry=1, timeout=1)
        def work() -> None: ...
        """,
    )
    module = importlib.import_module("reloaded")
    write(project / "reloaded.py", "# moved\n" + (project / "reloaded.py").read_text())
    again = importlib.reload(module)
    assert [job for job in all_jobs() if job.target == "reloaded.work"] == [again.work]


@pytest.mark.req("R1.3")
def test_app_and_job_may_import_each_other(project: Path) -> None:
    write(project / "shop/__init__.py", "")
    write(project / "shop/order/__init__.py", "")
    write(
        project / "shop/order/app.py",
        """
        from __future__ import annotations
        from dever_sql import record
        from . import job
        @record
        class Receipt:
            order: int
        """,
    )
    write(
        project / "shop/order/job.py",
        """
        from __future__ import annotations
        from dever_sql import Jobs
        from . import app
        jobs = Jobs()
        @jobs.job(retry=5, timeout=30_000)
        async def send(receipt: app.Receipt) -> None: ...
        """,
    )
    for first in ("shop.order.app", "shop.order.job"):
        module = importlib.import_module(first)
        job = getattr(module, "send", None) or module.job.send
        assert job.contract()["target"] == "shop.order.job.send"


@pytest.mark.req("R1.3")
@pytest.mark.parametrize("source", ["job.py", "job/receipt.py"])
@pytest.mark.parametrize(
    ("owner", "accepted"),
    [
        ("shop.order.app", True),
        ("shop.order.app.receipt", True),
        ("shop.user.app", False),
        ("shop.order.job", False),
        ("shop.order.domain", False),
        ("shop.order.application", False),
    ],
)
def test_in_a_domain_the_record_belongs_to_its_app(
    project: Path, source: str, owner: str, accepted: bool
) -> None:
    domain = f"shop_{source.startswith('job/')}_{accepted}_{owner.count('.')}"
    owner = owner.replace("shop.", f"{domain}.", 1)
    write(project / domain / "order" / source, "")
    namespace: dict[str, Any] = {
        "Receipt": record(type("Receipt", (), {"__annotations__": {"x": int}, "__module__": owner}))
    }
    exec(
        "def send(receipt: Receipt) -> None: ...",
        namespace,
    )
    handler = namespace["send"]
    handler.__module__ = f"{domain}.order.{source.removesuffix('.py').replace('/', '.')}"
    job: Job[Any] = Jobs().job(retry=1, timeout=1, name=f"{owner}.{source}")(handler)
    if accepted:
        assert job.contract()
    else:
        with pytest.raises(DeclarationError, match=r"order\.app"):
            job.contract()


def test_a_script_and_its_worker_have_one_target(project: Path) -> None:
    write(
        project / "tasks.py",
        """
        from dever_sql import Jobs
        jobs = Jobs()
        @jobs.job(retry=1, timeout=1)
        def work() -> None: ...
        print(work.target)
        """,
    )
    for arguments in (["tasks.py"], ["-c", "import tasks"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=project, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "tasks.work"


# --- enqueue ---


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    """The logical databases `default` and `other`, each an SQLite file of this test alone."""
    engines = [database.open_engine(f"sqlite:///{tmp_path}/{name}.db") for name in "ab"]
    for name, engine in zip(("default", "other"), engines, strict=True):
        engine.install()
        database.use_engine(name, engine)
    yield engines[0]
    database.close_all()


@pytest.mark.req("R3.1", "R3.3")
def test_enqueue_stores_the_payload_under_its_key(sqlite: Engine) -> None:
    first = send_receipt.enqueue(Receipt(7), key="receipt:7")
    again = send_receipt.enqueue(Receipt(8), key="receipt:7")
    assert (first.created, again.created, again.id) == (True, False, first.id)
    row = sqlite.get_job(first.id)
    assert row is not None
    assert (row.target, row.key, row.payload) == (
        f"{MODULE}.send_receipt",
        "receipt:7",
        '{"order":7}',
    )
    assert row.fingerprint == send_receipt.codec.fingerprint


@pytest.mark.req("R3.3")
def test_enqueue_at_takes_an_aware_instant(sqlite: Engine) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=5, minutes=30)))
    done = send_receipt.enqueue_at(Receipt(7), key="k", run_at=at)
    row = sqlite.get_job(done.id)
    assert row is not None
    assert row.run_at == at
    refused: list[Any] = [
        datetime(2030, 1, 1),
        "2030-01-01T00:00:00Z",
        None,
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-1))),
    ]
    for run_at in refused:
        with pytest.raises(InvalidArgument, match="run_at"):
            clean.enqueue_at(key="k", run_at=run_at)


@pytest.mark.req("R2.4")
def test_a_job_without_input_stores_null_and_takes_no_payload(sqlite: Engine) -> None:
    row = sqlite.get_job(clean.enqueue(key="k").id)
    assert row is not None
    assert row.payload == "null"
    call: Any = clean
    for payload in (None, Receipt(1), {}):
        with pytest.raises(InvalidPayload, match="takes no payload"):
            call.enqueue(payload, key="other")
    call = send_receipt
    with pytest.raises(InvalidPayload, match="takes a payload"):
        call.enqueue(key="other")
    assert len(sqlite.jobs()) == 1


@pytest.mark.req("R3.7")
def test_enqueue_many_answers_entry_by_entry(sqlite: Engine) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    results = send_receipt.enqueue_many(
        [(Receipt(1), "a"), (Receipt(2), "b", at), (Receipt(3), "a"), (Receipt(4), "c", None)]
    )
    assert [result.created for result in results] == [True, True, False, True]
    assert results[0].id == results[2].id
    row = sqlite.get_job(results[1].id)
    assert row is not None
    assert row.run_at == at
    assert send_receipt.enqueue_many([]) == []
    assert send_receipt.enqueue_many((Receipt(n), f"n:{n}") for n in range(3))[2].created


@pytest.mark.req("R3.7")
def test_enqueue_many_of_a_job_without_input(sqlite: Engine) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert len(clean.enqueue_many(["a", ("b",), ("c", at)])) == 3
    call: Any = clean
    assert len(call.enqueue_many([(None, "d"), (None, "e", at)])) == 2
    assert {row.payload for row in sqlite.jobs()} == {"null"}


@pytest.mark.req("R3.7", "R2.2")
def test_one_bad_entry_refuses_the_whole_batch_and_is_named(sqlite: Engine) -> None:
    bad: list[tuple[Any, type[Exception], str]] = [
        ((Receipt(2**63), "b"), InvalidPayload, r"\(item 2\).*payload\.order"),
        ((Receipt(1),), InvalidArgument, "entry 2"),
        ("b", InvalidArgument, "entry 2"),
        ((Receipt(1), "b", None, None), InvalidArgument, "entry 2"),
        ((Receipt(1), 5), InvalidKey, "int"),
        ((Receipt(1), "b", datetime(2030, 1, 1)), InvalidArgument, "time zone"),
    ]
    for entry, error, text in bad:
        with pytest.raises(error, match=text):
            send_receipt.enqueue_many([(Receipt(1), "a"), entry])
    assert sqlite.jobs() == []


@pytest.mark.req("R3.1", "R2.2")
@pytest.mark.parametrize("key", ["", " \t", "a\0", "\ud800", "k" * 1025, None, 7, b"k"])
def test_a_key_that_is_none_is_refused(sqlite: Engine, key: Any) -> None:
    with pytest.raises(InvalidKey):
        clean.enqueue(key=key)
    assert sqlite.jobs() == []


@pytest.mark.req("R3.3", "R3.7")
@pytest.mark.asyncio
async def test_the_async_forms(sqlite: Engine) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert (await send_receipt.aenqueue(Receipt(1), key="a")).created
    assert (await clean.aenqueue_at(key="b", run_at=at)).created
    assert [r.created for r in await send_receipt.aenqueue_many([(Receipt(1), "a")])] == [False]
    assert len(sqlite.jobs()) == 2


@pytest.mark.req("R3.4")
def test_an_enqueue_joins_the_open_transaction(sqlite: Engine) -> None:
    @Jobs().job(retry=1, timeout=1)
    def never_seen() -> None: ...

    def fail() -> None:
        with database.transaction():
            assert never_seen.enqueue(key="a").created
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert sqlite.jobs() == []
    with database.transaction() as tx:
        never_seen.enqueue(key="a", connection=tx.connection)
        assert sqlite.jobs() == []
    assert len(sqlite.jobs()) == 1


@pytest.mark.req("R3.5")
def test_a_job_of_another_database_is_refused_before_anything_is_written(sqlite: Engine) -> None:
    @Jobs(database="other").job(retry=1, timeout=1)
    def elsewhere() -> None: ...

    with database.transaction("default") as tx:
        with pytest.raises(CrossDatabaseError):
            elsewhere.enqueue(key="a")
        with pytest.raises(CrossDatabaseError):
            elsewhere.enqueue(key="a", connection=tx.connection)
    assert sqlite.jobs() == database.engine_for("other").jobs() == []


@pytest.mark.req("R3.6")
def test_a_database_that_was_made_anew_learns_the_job_again(tmp_path: Path) -> None:
    with database_at(tmp_path / "a.db"):
        assert clean.enqueue(key="a").created
    with database_at(tmp_path / "b.db"):
        assert clean.enqueue(key="a").created


class database_at:
    def __init__(self, path: Path) -> None:
        self._engine = database.open_engine(f"sqlite:///{path}")

    def __enter__(self) -> None:
        self._engine.install()
        database.use_engine("default", self._engine)

    def __exit__(self, *_: object) -> None:
        database.close_all()


# --- typing ---

TYPED = """
from datetime import UTC, datetime
from collections.abc import Callable
from dever_sql import Job, Jobs, ModelId, Json, record

class Order: ...
class User: ...

@record
class Receipt:
    order: ModelId[Order]
    data: Json = None

@record
class Other:
    x: int

jobs = Jobs()

@jobs.job(retry=5, timeout=30_000)
async def send(receipt: Receipt) -> None: ...

@jobs.job(retry=5, timeout=30_000)
def clean() -> None: ...

@jobs.cron("0 3 * * *", retry=3, timeout=60_000)
async def nightly() -> None: ...

def returns() -> int: return 1
def takes(a: Receipt, b: Receipt) -> None: ...
def by(handler: Callable[[Receipt], None]) -> None: ...

receipt = Receipt(order=ModelId(Order, 7))
at = datetime.now(UTC)
data: dict[str, list[int]] = {}
"""

ACCEPTED = """
send.enqueue(receipt, key="k")
send.enqueue_at(receipt, key="k", run_at=at, connection=object())
send.enqueue_many([(receipt, "k"), (receipt, "k", at)])
clean.enqueue(key="k")
clean.enqueue_at(key="k", run_at=at)
clean.enqueue_many(["a", ("b",), ("c", at)])
nightly.enqueue(key="k")
Receipt(ModelId(Order, "a"), {"a": [1, 2.5, None, {"b": True}]})
Receipt(ModelId(Order, "a"), data)
job: Job[Receipt] = send
"""

REFUSED = """
send(receipt)
clean()
send.enqueue(receipt)
send.enqueue(key="k")
send.enqueue(Other(1), key="k")
send.enqueue(receipt, "k")
send.enqueue(receipt, key=5)
send.enqueue_at(receipt, key="k")
send.enqueue_many([receipt])
clean.enqueue(receipt, key="k")
clean.enqueue()
jobs.job(retry=5)
jobs.job(timeout=5)
jobs.job(retry=1, timeout=1)(returns)
jobs.job(retry=1, timeout=1)(takes)
jobs.job(retry=1, timeout=1)(send)
jobs.cron("* * * * *", retry=1, timeout=1, missed="all")
by(send)
Receipt(ModelId(User, 7))
Receipt(ModelId(Order, 7.5))
Receipt(ModelId(Order, 7), object())
Receipt()
receipt.order = ModelId(Order, 8)
"""


@pytest.mark.req("R1.5", "R2.5", "R3.1")
def test_the_type_checker_takes_what_works_and_refuses_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED + ACCEPTED + REFUSED)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, file],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    found = {
        entry["range"]["start"]["line"]
        for entry in report["generalDiagnostics"]
        if entry["severity"] == "error"
    }
    lines = file.read_text().splitlines()
    first = len((TYPED + ACCEPTED).splitlines())
    wrong = [lines[number] for number in found if number < first]
    missed = [lines[n] for n in range(first, len(lines)) if lines[n] and n not in found]
    assert (wrong, missed) == ([], [])
