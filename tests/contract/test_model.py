"""PostgreSQL = SQLite = the model, over random sequences of all core verbs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from engines import MICROSECOND, START, Clock, PostgresClock, SqliteClock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from model import BLOCK_AFTER, DAY, SECOND, Model, ModelJob, as_duration
from samples import NULL_SCHEMA, RECEIPT, RECEIPT_SCHEMA, declaration, fingerprint

from dever_sql.engine import Claimed, Engine, JobRow
from dever_sql.postgres import PostgresEngine
from dever_sql.sqlite import SQLiteEngine

SEQUENCES = int(os.environ.get("DEVER_MODEL_SEQUENCES", "100"))
STEPS = int(os.environ.get("DEVER_MODEL_STEPS", "30"))
FOREVER = timedelta(days=30_000)

# Sequences share the databases, each with names of its own: no truncation, plans stay cached.
_sequence = count(1)


@dataclass
class Subject:
    """One engine and what its ids and tokens are called in the model."""

    engine: Engine
    clock: Clock
    ids: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        self.ids.clear()
        self.tokens = {0: 0}

    def claim_again_from_the_start(self) -> None:
        """Forget PostgreSQL's head hints: they may hide rows for a moment, the model may not."""
        if isinstance(self.engine, PostgresEngine):
            self.engine._call(
                "select set_config('dever.head_' || id, '', false) from dever.queue", {}
            )


class Machine(RuleBasedStateMachine):
    subjects: ClassVar[list[Subject]]
    # The model's clock goes on from sequence to sequence, as the engines' do.
    now: ClassVar[int] = 0

    claims = Bundle("claims")
    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        name = f"s{next(_sequence)}"
        self.queue = f"{name}.queue"
        self.workers = {"fixed": f"{name}.fixed", "other": f"{name}.other"}
        # A: always run. B, C: run by the other worker when it is there; of C a live worker has
        # another schema all the time.
        self.targets = {contract: f"{name}.job.{contract}" for contract in "ABC"}
        self.model = Model(now=type(self).now, created=type(self).now)
        self.model.other_schema_live = frozenset("C")
        self.contract_ids: dict[str, dict[str, int]] = {}
        # Before the contracts are made: when that was decides when their jobs may be blocked.
        self._move_to(self.model.now)
        for subject in self.subjects:
            subject.begin()
            self.contract_ids[subject.engine.kind] = self._register(subject.engine)
        self.model.live_until["A"] = self.model.now + FOREVER // MICROSECOND

    def _declarations(self, *contracts: str) -> list[dict[str, Any]]:
        return [
            declaration(
                self.targets[contract],
                RECEIPT_SCHEMA if contract == "C" else NULL_SCHEMA,
                queue=self.queue,
                backoff_base_ms=1_000,
                backoff_max_ms=3_000,
            )
            for contract in contracts
        ]

    def _register(self, engine: Engine) -> dict[str, int]:
        other_c = declaration(self.targets["C"], NULL_SCHEMA, queue=self.queue)
        engine.register(self.workers["fixed"], [*self._declarations("A"), other_c], FOREVER)
        rows = engine.register(None, self._declarations(*"ABC"), FOREVER)
        names = {target: contract for contract, target in self.targets.items()}
        return {names[row.target]: row.contract_id for row in rows}

    def teardown(self) -> None:
        for subject in self.subjects:
            subject.engine.cancel(list(subject.ids.values()))
            subject.engine.leave(self.workers["fixed"])
            subject.engine.leave(self.workers["other"])
        type(self).now = self.model.now + 1

    # Clients

    @rule(
        target=jobs,
        contract=st.sampled_from("ABC"),
        key=st.sampled_from(["k", "l", "m"]),
        delay=st.sampled_from([0, 0, 10 * SECOND, -10 * SECOND]),
    )
    def enqueue(self, contract: str, key: str, delay: int) -> int:
        job, created = self.model.insert(contract, key, delay)
        for subject in self.subjects:
            (done,) = subject.engine.enqueue_as(
                self.targets[contract],
                fingerprint(RECEIPT_SCHEMA if contract == "C" else NULL_SCHEMA),
                [key],
                [RECEIPT if contract == "C" else "null"],
                [self.instant(self.model.now + delay)],
            )
            assert done.created is created
            assert subject.ids.setdefault(job.n, done.id) == done.id
        return job.n

    @rule(
        target=jobs,
        key=st.sampled_from([None, None, "m"]),
        delay=st.sampled_from([None, 0, 10 * SECOND]),
        expires=st.sampled_from([None, 30 * SECOND, 300 * SECOND]),
        max_attempts=st.sampled_from([1, 2, 3]),
    )
    def send(
        self, key: str | None, delay: int | None, expires: int | None, max_attempts: int
    ) -> int:
        job, _ = self.model.insert(
            None, key, delay or 0, max_attempts=max_attempts, expires=expires
        )
        for subject in self.subjects:
            id = subject.engine.send(
                self.queue,
                "null",
                key,
                as_duration(delay),
                None,
                as_duration(expires),
                max_attempts,
            )
            assert subject.ids.setdefault(job.n, id) == id
        return job.n

    # Workers

    @rule(
        target=claims,
        n=st.sampled_from([0, 1, 2, 5]),
        lease=st.sampled_from([10 * SECOND, 60 * SECOND]),
        contracts=st.sampled_from(["A", "AB", "ABC"]),
    )
    def claim_jobs(self, n: int, lease: int, contracts: str) -> Any:
        return self._claim(n, lease, list(contracts))

    @rule(
        target=claims,
        n=st.sampled_from([1, 2, 5]),
        lease=st.sampled_from([None, 10 * SECOND]),
    )
    def claim_messages(self, n: int, lease: int | None) -> Any:
        return self._claim(n, lease, None)

    def _claim(self, n: int, lease: int | None, contracts: list[str] | None) -> Any:
        expected = self.model.claim("w", n, lease, contracts)
        for subject in self.subjects:
            subject.claim_again_from_the_start()
            ids = self.contract_ids[subject.engine.kind]
            got: list[Claimed] = subject.engine.claim(
                self.queue,
                "w",
                n,
                as_duration(lease),
                None if contracts is None else [ids[contract] for contract in contracts],
            )
            assert [job.id for job in got] == [subject.ids[job.n] for job in expected]
            for job, model in zip(got, expected, strict=True):
                assert job.token > max(subject.tokens.values())
                assert job.attempt == model.attempt
                assert job.key == model.key
            for job, model in zip(got, expected, strict=True):
                subject.tokens[model.token] = job.token
        return multiple(*expected)

    @rule(claim=claims, lease=st.sampled_from([10 * SECOND, 60 * SECOND]))
    def renew(self, claim: ModelJob, lease: int) -> None:
        expected = self.model.renew(claim, lease)
        duration = timedelta(microseconds=lease)
        for subject in self.subjects:
            id, token = subject.ids[claim.n], subject.tokens[claim.token]
            assert subject.engine.renew([id], [token], duration)[0].ok is expected

    @rule(batch=st.lists(claims, min_size=1, max_size=4))
    def complete(self, batch: list[ModelJob]) -> None:
        expected: dict[int, bool] = {}
        for claim in batch:
            # One verdict an id: the claim in force decides.
            expected[claim.n] = self.model.complete(claim) or expected.get(claim.n, False)
        for subject in self.subjects:
            verdicts = subject.engine.complete(
                [subject.ids[claim.n] for claim in batch],
                [subject.tokens[claim.token] for claim in batch],
            )
            assert {one.id: one.ok for one in verdicts} == {
                subject.ids[n]: ok for n, ok in expected.items()
            }

    @rule(
        claim=claims,
        error=st.sampled_from([None, "E at x.py:1"]),
        delay=st.sampled_from([None, None, 0, -5 * SECOND, 30 * SECOND]),
    )
    def retry(self, claim: ModelJob, error: str | None, delay: int | None) -> None:
        expected = self.model.retry(claim, "handler_failed", error, delay)
        for subject in self.subjects:
            verdicts = subject.engine.retry(
                [subject.ids[claim.n]],
                [subject.tokens[claim.token]],
                ["handler_failed"],
                [error],
                [as_duration(delay)],
            )
            assert [one.outcome for one in verdicts] == [expected]

    @rule(claim=claims, error=st.sampled_from([None, "E"]))
    def bury(self, claim: ModelJob, error: str | None) -> None:
        expected = self.model.bury(claim, "no hope", error)
        for subject in self.subjects:
            id, token = subject.ids[claim.n], subject.tokens[claim.token]
            verdicts = subject.engine.bury([id], [token], ["no hope"], [error])
            assert [one.ok for one in verdicts] == [expected]

    @rule(
        claim=claims,
        reason=st.sampled_from(["unknown_target", "schema_mismatch", "invalid_payload"]),
        error=st.sampled_from([None, "E"]),
    )
    def block(self, claim: ModelJob, reason: str, error: str | None) -> None:
        expected = self.model.block(claim, reason, error)
        for subject in self.subjects:
            id, token = subject.ids[claim.n], subject.tokens[claim.token]
            verdicts = subject.engine.block([id], [token], [reason], [error])
            assert [one.ok for one in verdicts] == [expected]

    @rule(claim=claims)
    def release(self, claim: ModelJob) -> None:
        expected = self.model.release(claim)
        for subject in self.subjects:
            id, token = subject.ids[claim.n], subject.tokens[claim.token]
            assert [one.ok for one in subject.engine.release([id], [token])] == [expected]

    @rule(alive=st.sampled_from([60 * SECOND, BLOCK_AFTER, DAY // 2]))
    def other_worker_registers(self, alive: int) -> None:
        for contract in "BC":
            self.model.live_until[contract] = self.model.now + alive
        for subject in self.subjects:
            subject.engine.register(
                self.workers["other"], self._declarations(*"BC"), timedelta(microseconds=alive)
            )

    @rule()
    def other_worker_leaves(self) -> None:
        for contract in "BC":
            if contract in self.model.live_until:
                until = min(self.model.live_until[contract], self.model.now)
                self.model.live_until[contract] = until
        for subject in self.subjects:
            subject.engine.leave(self.workers["other"])

    @rule()
    def sweep(self) -> None:
        self.model.sweep()
        for subject in self.subjects:
            idle = 0
            for _ in range(50):
                moved = subject.engine.sweep()
                idle = 0 if moved else idle + 1
                if idle == 2:
                    break
            else:
                raise AssertionError(f"sweep never comes to an end: {moved}")

    # Operators

    @rule(ns=st.lists(jobs, min_size=1, max_size=3, unique=True))
    def cancel(self, ns: list[int]) -> None:
        self._operate("cancel", ns, [self.model.cancel(n) for n in ns])

    @rule(n=jobs)
    def redrive(self, n: int) -> None:
        self._operate("redrive", [n], [self.model.redrive(n)])

    @rule(n=jobs)
    def drop(self, n: int) -> None:
        self._operate("drop_jobs", [n], [self.model.drop(n)])

    def _operate(self, verb: str, ns: list[int], expected: list[str]) -> None:
        for subject in self.subjects:
            outcomes = getattr(subject.engine, verb)([subject.ids[n] for n in ns])
            assert {one.id: one.outcome for one in outcomes} == {
                subject.ids[n]: outcome for n, outcome in zip(ns, expected, strict=True)
            }

    # Time

    @rule(duration=st.sampled_from([1, SECOND, 5 * SECOND, 60 * SECOND, 3600 * SECOND, DAY]))
    def advance(self, duration: int) -> None:
        self._move_to(self.model.now + duration)

    @rule(which=st.integers(0, 3), offset=st.sampled_from([-1, 0, 0, 1]))
    def advance_to_a_boundary(self, which: int, offset: int) -> None:
        ahead = self.model.boundaries()
        if which < len(ahead):
            self._move_to(ahead[which] + offset)

    def _move_to(self, now: int) -> None:
        self.model.now = now
        for subject in self.subjects:
            subject.clock.set(self.instant(now))

    def instant(self, microseconds: int) -> Any:
        return START + timedelta(microseconds=microseconds)

    @invariant()
    def rows_are_equal(self) -> None:
        expected = {job.n: self.expected_row(job) for job in self.model.jobs}
        for subject in self.subjects:
            names = {id: n for n, id in subject.ids.items()}
            rows = subject.engine.jobs(queue=self.queue, limit=1000)
            got = {names[row.id]: self.actual_row(row) for row in rows}
            assert got == self.with_tokens(expected, subject), subject.engine.kind

    def with_tokens(
        self, rows: dict[int, dict[str, Any]], subject: Subject
    ) -> dict[int, dict[str, Any]]:
        return {n: {**row, "token": subject.tokens[row["token"]]} for n, row in rows.items()}

    def expected_row(self, job: ModelJob) -> dict[str, Any]:
        return {
            "state": job.state(self.model.now),
            "target": None if job.contract is None else self.targets[job.contract],
            "run_at": self.instant(job.run_at),
            "created_at": self.instant(job.created_at),
            **{
                name: None if (at := getattr(job, name)) is None else self.instant(at)
                for name in ("lease_until", "expires_at", "finished_at")
            },
            **{
                name: getattr(job, name)
                for name in ("key", "attempt", "max_attempts", "worker", "reason", "error", "token")
            },
        }

    def actual_row(self, row: JobRow) -> dict[str, Any]:
        return {
            name: getattr(row, name)
            for name in (
                *("state", "target", "run_at", "created_at", "lease_until", "expires_at"),
                *("finished_at", "key", "attempt", "max_attempts", "worker", "reason", "error"),
                "token",
            )
        }


@pytest.fixture
def subjects(_pg_module_url: str, tmp_path: Path) -> Iterator[list[Subject]]:
    import sqlite3

    path = tmp_path / "jobs.db"
    sqlite_engine = SQLiteEngine(path, synchronous="normal")
    sqlite_engine.install()
    # One session, so that the hints it keeps can be forgotten.
    postgres_engine = PostgresEngine(_pg_module_url, connections=1)
    with psycopg.connect(_pg_module_url, autocommit=True) as connection:
        sqlite_connection = sqlite3.connect(path, isolation_level=None)
        sqlite_connection.execute("pragma synchronous = off")
        yield [
            Subject(postgres_engine, PostgresClock(connection)),
            Subject(sqlite_engine, SqliteClock(sqlite_connection)),
        ]
        sqlite_connection.close()
    postgres_engine.close()
    sqlite_engine.close()


@pytest.mark.req("R3.1", "R4.3", "R4.4", "R4.5", "R4.6", "R4.7", "R5.1", "R5.4", "R5.6", "R5.7")
@pytest.mark.timeout(1800)
def test_engines_do_what_the_model_does(subjects: list[Subject]) -> None:
    Machine.subjects = subjects
    Machine.now = 0
    for subject in subjects:
        subject.clock.set(START)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
