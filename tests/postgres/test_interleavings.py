"""Every pair of verbs on one row, in two open sessions: the end is that of some order of the two.

The first session calls its verb and stays in its transaction; the second one calls its own, and
either answers at once or waits (seen in pg_stat_activity); the first commits or rolls back. What is
then in the tables, and what the second was told, must be what the same calls give one after the
other, or the second did nothing and said so ("busy", an empty claim).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from engines import START, PostgresClock
from sessions import Blocked, Session

LEASE = timedelta(seconds=60)


@dataclass(frozen=True)
class Row:
    """A message, and the claim on it that the verbs use."""

    queue: str
    id: int
    token: int


Verb = Callable[[Session, Row], Any]


def _rows(session: Session, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return session.execute(statement, values).fetchall()


def _on_claim(statement: str) -> Verb:
    """A worker's verb: its verdict on the row."""

    def verb(session: Session, row: Row) -> Any:
        ((verdict,),) = _rows(
            session, statement, {"ids": [row.id], "tokens": [row.token], "lease": LEASE}
        )
        return "busy" if verdict is None else verdict

    return verb


def _on_ids(statement: str) -> Verb:
    def verb(session: Session, row: Row) -> Any:
        return _rows(session, statement, {"ids": [row.id]})[0][0]

    return verb


def _claim(session: Session, row: Row) -> Any:
    # Tokens and ids differ from try to try, so only what was claimed is compared.
    return _rows(
        session,
        "select attempt from dever.claim(%(queue)s, 'w2', 10, %(lease)s)",
        {"queue": row.queue, "lease": LEASE},
    )


def _send(session: Session, row: Row) -> Any:
    ((id,),) = _rows(session, "select dever.send(%(queue)s, '2', 'k')", {"queue": row.queue})
    return "the same" if id == row.id else "another"


def _sweep(session: Session, row: Row) -> Any:
    return sorted(_rows(session, "select what, rows from dever.sweep(1000)", {}))


VERBS: dict[str, Verb] = {
    "claim": _claim,
    "renew": _on_claim("select ok from dever.renew(%(ids)s, %(tokens)s, %(lease)s)"),
    "complete": _on_claim("select ok from dever.complete(%(ids)s, %(tokens)s)"),
    "retry": _on_claim("select outcome from dever.retry(%(ids)s, %(tokens)s, array['failed'])"),
    "bury": _on_claim("select ok from dever.bury(%(ids)s, %(tokens)s, array['no hope'])"),
    "block": _on_claim("select ok from dever.block(%(ids)s, %(tokens)s, array['invalid_payload'])"),
    "release": _on_claim("select ok from dever.release(%(ids)s, %(tokens)s)"),
    "cancel": _on_ids("select outcome from dever.cancel(%(ids)s)"),
    "redrive": _on_ids("select outcome from dever.redrive(%(ids)s)"),
    "drop": _on_ids("select outcome from dever.drop_jobs(%(ids)s)"),
    "send": _send,
    "sweep": _sweep,
}

# Where nobody holds a claim, one of the six verbs that need one speaks for all of them.
WITHOUT_CLAIM = ["claim", "complete", "cancel", "redrive", "drop", "send", "sweep"]
STARTS = {
    "running": list(VERBS),
    "lapsed": list(VERBS),
    "exhausted": list(VERBS),
    "blocked": WITHOUT_CLAIM,
    "dead": WITHOUT_CLAIM,
    "ready": WITHOUT_CLAIM,
}


class Bench:
    """One database, its clock, two sessions for the verbs and one to prepare and to look."""

    def __init__(self, url: str) -> None:
        self.observer = psycopg.connect(url, autocommit=True, application_name="observer")
        self.first = psycopg.connect(url, application_name="first")
        self.second = psycopg.connect(url, autocommit=True, application_name="second")
        self.clock = PostgresClock(self.observer)
        self._numbers = count(1)

    def close(self) -> None:
        for session in (self.first, self.second, self.observer):
            session.close()

    def prepare(self, start: str) -> Row:
        self.observer.execute("delete from dever.job")
        self.observer.execute("delete from dever.finished")
        self.observer.execute(
            "update dever.sweep_cursor set queue_id = 0, run_at = '-infinity', job_id = 0"
        )
        self.clock.set(START)
        queue = f"q{next(self._numbers)}"
        values: dict[str, Any] = {"queue": queue, "lease": LEASE}
        attempts = 1 if start == "exhausted" else 3
        ((id,),) = _rows(
            self.observer,
            f"select dever.send(%(queue)s, '1', 'k', max_attempts => {attempts})",
            values,
        )
        if start == "ready":
            return Row(queue, id, 0)
        claim = "select token from dever.claim(%(queue)s, 'w', 1, %(lease)s)"
        ((token,),) = _rows(self.observer, claim, values)
        row = Row(queue, id, token)
        if start in ("lapsed", "exhausted"):
            self.clock.advance(LEASE)
        elif start == "blocked":
            VERBS["block"](self.observer, row)
        elif start == "dead":
            VERBS["bury"](self.observer, row)
        return row

    def end(self, row: Row) -> list[tuple[Any, ...]]:
        """What is in the tables of the row's queue, in words that are the same in every try."""
        return _rows(
            self.observer,
            """
            select state, attempt, reason, run_at, lease_until, expires_at, finished_at, worker,
                id = %(id)s as same, token = %(token)s as same_token
            from dever.jobs where queue = %(queue)s order by id
            """,
            {"queue": row.queue, "id": row.id, "token": row.token},
        )

    def in_turn(self, start: str, *verbs: str) -> tuple[list[Any], list[tuple[Any, ...]]]:
        row = self.prepare(start)
        told = [VERBS[verb](self.observer, row) for verb in verbs]
        return told, self.end(row)

    def together(
        self, start: str, one: str, two: str, commit: bool
    ) -> tuple[Any, list[tuple[Any, ...]], bool]:
        row = self.prepare(start)
        VERBS[one](self.first, row)
        other = Blocked(self.second, self.observer, lambda session: VERBS[two](session, row))
        waited = other.is_waiting()
        self.first.commit() if commit else self.first.rollback()
        return other.result(), self.end(row), waited


@pytest.fixture(scope="module")
def bench(_pg_module_url: str) -> Iterator[Bench]:
    bench = Bench(_pg_module_url)
    yield bench
    bench.close()


# The worker's verbs never wait: a handler's open transaction must not delay its neighbours.
NEVER_WAIT = {"claim", "renew", "complete", "retry", "bury", "block", "release", "sweep"}
NOTHING_DONE = ("busy", [])


@pytest.mark.req("R4.2", "R4.4", "R4.8", "R3.2", "R5.6")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("start", STARTS)
def test_two_verbs_end_as_in_some_order(bench: Bench, start: str, commit: bool) -> None:
    verbs = STARTS[start]
    alone = {verb: bench.in_turn(start, verb) for verb in verbs}
    untouched = bench.in_turn(start)[1]
    wrong: list[str] = []
    for one in verbs:
        for two in verbs:
            if commit:
                (_, after), both = bench.in_turn(start, one, two)
                only_first = alone[one][1]
            else:
                (after,), both = alone[two]
                only_first = untouched
            told, end, waited = bench.together(start, one, two, commit)
            # An empty claim or sweep beside the other session is legal, and did nothing.
            legal = (told == after and end == both) or (told in NOTHING_DONE and end == only_first)
            if not legal and commit and [told] == alone[two][0]:
                # It looked before the first committed: the other order.
                legal = end == bench.in_turn(start, two, one)[1]
            if not legal or (waited and two in NEVER_WAIT):
                wrong.append(
                    f"{one} | {two}: told {told!r}, waited {waited}, end {end};"
                    f" in turn: told {after!r}, end {both}"
                )
    assert not wrong, "\n".join(wrong)


@pytest.mark.req("R4.8")
@pytest.mark.parametrize("verb", ["renew", "complete", "retry", "bury", "block", "release"])
def test_row_that_another_transaction_holds_is_busy_and_its_neighbours_are_not(
    bench: Bench, verb: str
) -> None:
    held = bench.prepare("running")
    ((neighbour,),) = _rows(
        bench.observer, "select dever.send(%(queue)s, '1')", {"queue": held.queue}
    )
    ((token,),) = _rows(
        bench.observer,
        "select token from dever.claim(%(queue)s, 'w', 1, %(lease)s)",
        {"queue": held.queue, "lease": LEASE},
    )
    VERBS["complete"](bench.first, held)
    statement = {
        "renew": "select id, ok from dever.renew(%(ids)s, %(tokens)s, interval '1 minute')",
        "complete": "select id, ok from dever.complete(%(ids)s, %(tokens)s)",
        "retry": "select id, case outcome when 'busy' then null else outcome = 'retried' end"
        " from dever.retry(%(ids)s, %(tokens)s, array['x', 'x'])",
        "bury": "select id, ok from dever.bury(%(ids)s, %(tokens)s, array['x', 'x'])",
        "block": "select id, ok from dever.block(%(ids)s, %(tokens)s,"
        " array['invalid_payload', 'invalid_payload'])",
        "release": "select id, ok from dever.release(%(ids)s, %(tokens)s)",
    }[verb]
    verdicts = _rows(
        bench.second, statement, {"ids": [held.id, neighbour], "tokens": [held.token, token]}
    )
    assert dict(verdicts) == {held.id: None, neighbour: True}
    bench.first.rollback()


@pytest.mark.req("R4.6")
def test_only_one_sweep_runs_and_the_other_returns_at_once(bench: Bench) -> None:
    row = bench.prepare("exhausted")
    assert VERBS["sweep"](bench.first, row) == [("exhausted", 1)]
    other = Blocked(bench.second, bench.observer, lambda session: VERBS["sweep"](session, row))
    assert not other.is_waiting()
    assert other.result() == []
    bench.first.rollback()
    assert VERBS["sweep"](bench.second, row) == [("exhausted", 1)]
