"""The checker itself: it is silent about a good history and names each kind of broken one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from chaos.effect_log import Event
from chaos.history import check, in_transaction

from dever_sql.engine import JobRow

LEASE = 2.0


def row(**columns: Any) -> JobRow:
    instant = datetime.fromtimestamp(0, UTC)
    given: dict[str, Any] = {
        "id": 1,
        "queue": "default",
        "target": "t",
        "key": "k",
        "state": "succeeded",
        "attempt": 2,
        "max_attempts": 3,
        "run_at": instant,
        "created_at": instant,
        "lease_until": None,
        "worker": "w",
        "token": 20,
        "fingerprint": "f",
        "expires_at": None,
        "finished_at": instant,
        "reason": None,
        "error": None,
        "payload": None,
    }
    return JobRow(**(given | columns))


def claimed(at: float, token: int, attempt: int) -> Event:
    fields = {"id": 1, "token": token, "attempt": attempt, "lease_until": at + LEASE}
    return Event("claimed", at, fields)


def started(at: float, token: int, attempt: int, **more: Any) -> Event:
    fields = {"id": 1, "key": "k", "token": token, "attempt": attempt}
    return Event("started", at, fields | {"max_attempts": 3, "run_at": 0.0} | more)


def verdict(at: float, verb: str, token: int, accepted: bool = True) -> Event:
    fields = {"verb": verb, "id": 1, "token": token, "asked_at": at, "accepted": accepted}
    return Event("verdict", at, fields)


ENQUEUED = Event("enqueued", 0.0, {"id": 1, "key": "k", "created": True})
# Claimed, frozen past its lease, claimed by another, completed; the first one's result was refused.
GOOD = [
    ENQUEUED,
    claimed(1.0, 10, 1),
    started(1.1, 10, 1),
    claimed(3.5, 20, 2),
    started(3.6, 20, 2),
    verdict(3.7, "complete", 10, accepted=False),
    verdict(3.8, "complete", 20),
]


def test_a_good_history_is_accepted():
    assert check(GOOD, [row()], LEASE) == []


@pytest.mark.parametrize(
    ("events", "rows", "word"),
    [
        pytest.param(GOOD, [], "R3.4", id="lost"),
        pytest.param(GOOD[:1], [row(state="ready")], "R4.5", id="never ended"),
        pytest.param(
            [Event("rolled back", 0.0, {"key": "k"})], [row()], "R3.4", id="rolled back, and there"
        ),
        pytest.param(
            [ENQUEUED, claimed(1.0, 10, 1), claimed(2.0, 20, 2)], [row()], "R4.5", id="two leases"
        ),
        pytest.param([*GOOD, started(3.9, 20, 2)], [row()], "R4.4", id="two starts, one token"),
        pytest.param(
            [ENQUEUED, started(1.0, 10, 2), started(4.0, 20, 1)], [row()], "R4.3", id="fewer"
        ),
        pytest.param(
            [ENQUEUED, started(1.0, 10, 4)], [row(token=10)], "R4.6", id="one attempt too many"
        ),
        pytest.param(
            [ENQUEUED, started(1.0, 20, 1, run_at=1.5)], [row()], "R3.3", id="before its time"
        ),
        pytest.param(
            [*GOOD[:5], verdict(3.7, "retry", 10)], [row()], "R4.4", id="stale token accepted"
        ),
        pytest.param(
            [*GOOD[:3], verdict(3.4, "complete", 10)],
            [row(token=10, attempt=1)],
            "R4.4",
            id="accepted after the lease",
        ),
        pytest.param([*GOOD, verdict(3.9, "bury", 20)], [row()], "R4.2", id="buried and succeeded"),
        pytest.param(GOOD, [row(token=10)], "R4.4", id="an older token in the row"),
        pytest.param(
            [ENQUEUED],
            [row(state="dead", reason="attempts_exhausted", attempt=2)],
            "R4.6",
            id="exhausted too early",
        ),
    ],
)
def test_a_broken_history_is_noticed(events: list[Event], rows: list[JobRow], word: str):
    faults = check(events, rows, LEASE)
    assert any(word in fault for fault in faults), faults


@pytest.mark.parametrize("tokens", [[], [10], [10, 20], [20, 20]])
def test_an_effect_that_is_not_one_commit_with_its_completion_is_noticed(tokens: list[int]):
    assert in_transaction([row()], {1: tokens})
    assert not in_transaction([row()], {1: [20]})
    assert in_transaction([row(state="dead")], {1: [20]})
