"""Two and three sessions with one verb each on one job, in every order of their steps.

A step is the begin (with the snapshot, where the isolation level keeps one), the verb, the commit
or rollback; one more is a clock that moves by a lease. That a session waits is seen in
pg_stat_activity, and its next step comes when it waits no more. CI takes a sample whose seed is
printed; `DEVER_CHAOS_SEED` repeats it, `DEVER_CHAOS_SCALE` makes it larger, up to all orders.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import psycopg
import pytest
from one_job import LEASE, STARTS, VERBS, Call, Ended, Judge, Live, State
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.types.json import Jsonb
from samples import TARGET, declaration
from sessions import PATIENCE
from step_orders import Case, Cases

SCALE = float(os.environ.get("DEVER_CHAOS_SCALE", "1"))
NOON = 1_800_000_000_000_000

# The clock is a sequence: what a snapshot shows of a table does not move, as a real clock does.
DATABASE = """
    create sequence dever_test.instant;
    select setval('dever_test.instant', 1800000000000000);
    create or replace function dever.clock()
    returns timestamptz
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
    as $$
    begin
        return timestamptz 'epoch'
            + pg_catalog.pg_sequence_last_value('dever_test.instant') * interval '1 microsecond';
    end
    $$;
    create function dever_test.microseconds(instant timestamptz)
    returns bigint
    language plpgsql
    as $$
    begin
        return case
            when instant = 'infinity' then 9223372036854775807
            else (extract(epoch from instant) * 1000000)::bigint
        end;
    end
    $$;
    create function dever_test.prepare(
        start text, contract integer, out id bigint, out token bigint
    )
    language plpgsql
    as $$
    #variable_conflict use_column
    begin
        delete from dever.job;
        delete from dever.finished;
        update dever.sweep_cursor set queue_id = 0, run_at = '-infinity', job_id = 0;
        perform pg_catalog.setval('dever_test.instant', 1800000000000000);
        select e.id into id from dever.enqueue('shop.order.job.send_receipt', 'k') as e;
        token := 0;
        if start = 'exhausted' then
            update dever.job set max_attempts = 1;
        end if;
        if start <> 'ready' then
            select c.token into strict token
            from dever.claim('default', 'w1', 1, interval '60 s', array[contract]) as c;
        end if;
        if start in ('lapsed', 'exhausted') then
            perform pg_catalog.setval('dever_test.instant', 1800000000000000 + 60000000);
        elsif start = 'blocked' then
            perform dever.block(array[id], array[token], array['invalid_payload']);
        elsif start = 'dead' then
            perform dever.bury(array[id], array[token], array['no hope']);
        end if;
    end
    $$;
"""

LOOK = """
    select id, token, attempt, max_attempts, dever_test.microseconds(run_at),
        dever_test.microseconds(lease_until), null
    from dever.job
    union all
    select id, token, attempt, max_attempts, null, null, outcome from dever.finished
"""

STATEMENTS = {
    "claim": "select id, token, attempt, dever_test.microseconds(lease_until)"
    " from dever.claim('default', 'w2', 10, interval '60 s', array[{contract}])",
    "renew": "select ok from dever.renew(array[{id}], array[{token}], interval '60 s')",
    "complete": "select ok from dever.complete(array[{id}], array[{token}])",
    "retry": "select outcome from dever.retry(array[{id}], array[{token}], array['failed'])",
    "release": "select ok from dever.release(array[{id}], array[{token}])",
    "sweep": "select what, rows from dever.sweep(1000)",
    "cancel": "select outcome from dever.cancel(array[{id}])",
    "redrive": "select outcome from dever.redrive(array[{id}])",
    "enqueue": f"select id, created::integer from dever.enqueue('{TARGET}', 'k')",
}


class Client:
    """A session that is never waited for: it is asked whether it has ended or waits for a lock."""

    def __init__(self, url: str, name: str) -> None:
        self._session = psycopg.connect(url, autocommit=True, application_name=name)
        self.pid = self._session.info.backend_pid
        self._pgconn = self._session.pgconn
        self._rows: list[tuple[str | None, ...]] = []
        self._error: str | None = None

    def close(self) -> None:
        self._session.close()

    def ask(self, statement: str) -> None:
        self._rows, self._error = [], None
        self._pgconn.send_query(statement.encode())
        self._pgconn.flush()

    def has_ended(self) -> bool:
        self._pgconn.consume_input()
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                return True
            if result.status == ExecStatus.FATAL_ERROR:
                self._error = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
            self._rows += [
                tuple(
                    None if value is None else value.decode()
                    for value in (result.get_value(row, column) for column in range(result.nfields))
                )
                for row in range(result.ntuples)
            ]
        return False

    def answer(self) -> tuple[list[tuple[str | None, ...]], str | None]:
        """Rows, and the SQLSTATE of an error."""
        return self._rows, self._error


@dataclass
class Stage:
    """The database with three sessions, and one that prepares, looks and moves the clock."""

    url: str

    def __post_init__(self) -> None:
        self.observer = psycopg.connect(self.url, autocommit=True, application_name="observer")
        self.observer.execute(DATABASE)
        self.observer.execute("set plan_cache_mode = force_generic_plan")
        ((contract,),) = self.observer.execute(
            "select contract_id from dever.register('w1', %s, '3000 days')",
            [Jsonb([declaration()])],
        ).fetchall()
        self.contract = contract
        self.clients = [Client(self.url, f"client {number}") for number in range(3)]
        self.now = NOON
        self._runs = count(1)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.observer.close()

    def prepare(self, start: str) -> tuple[int, int]:
        # Autovacuum is off, and the rows of a few thousand runs would make every scan longer.
        if next(self._runs) % 400 == 0:
            self.observer.execute("vacuum dever.job, dever.finished, dever.sweep_cursor")
        row = self.observer.execute(
            "select id, token from dever_test.prepare(%s, %s)", [start, self.contract]
        ).fetchone()
        assert row is not None
        self.now = NOON + (LEASE if start in ("lapsed", "exhausted") else 0)
        return row

    def advance(self) -> None:
        self.now += LEASE
        self.observer.execute("select setval('dever_test.instant', %s)", [self.now])

    def look(self) -> State:
        live: list[Live] = []
        ended: list[Ended] = []
        for id, token, attempt, most, run_at, lease, outcome in self.observer.execute(LOOK):
            if outcome is None:
                live.append(Live(id, token, attempt, most, run_at, lease))
            else:
                ended.append(Ended(id, outcome, token, attempt, most))
        assert len(live) <= 1, f"one key, and two unfinished jobs: {live}"
        assert len({job.id for job in [*live, *ended]}) == len(live) + len(ended)
        return State(live[0] if live else None, frozenset(ended))

    def waits(self, client: Client) -> bool:
        """True once it waits for another session, False once it has ended: one of the two comes."""
        deadline = time.monotonic() + PATIENCE
        while not client.has_ended():
            row = self.observer.execute(
                "select a.wait_event_type = 'Lock' and pg_blocking_pids(a.pid) <> '{}'"
                " from pg_stat_get_activity(%s) as a",
                [client.pid],
            ).fetchone()
            if row is not None and row[0]:
                return True
            assert time.monotonic() < deadline, "neither ended nor waits for a lock"
        return False


class Run:
    """One case, step by step."""

    def __init__(self, stage: Stage, case: Case, isolation: str) -> None:
        self.stage = stage
        self.case = case
        self.isolation = isolation
        self.id, token = stage.prepare(case.start)
        strict = isolation != "read committed"
        self.judge = Judge([stage.look()], token, strict=strict)
        steps = ["begin", "verb", "end"] if strict else ["verb", "end"]
        self.steps = [list(steps) for _ in case.verbs]
        self.due = [0] * len(case.verbs)
        """Steps whose turn came while the session was waiting."""
        self.calls: dict[int, Call] = {}
        self.snapshots: dict[int, int] = {}

    def faults(self) -> list[str]:
        for session in self.case.order:
            if session == len(self.steps):
                self.stage.advance()
                self.judge.history.append(f"clock: {self.stage.now}")
            else:
                self.due[session] += 1
                self._go_on(session)
        assert not any(self.steps), "every transaction has ended"
        self.judge.compare(self.stage.look())
        return self.judge.faults

    def _go_on(self, session: int) -> None:
        """Take the session's steps whose turn has come; then those of whom it was in the way."""
        while self.due[session] and session not in self.calls:
            self.due[session] -= 1
            self._step(session, self.steps[session].pop(0))

    def _step(self, session: int, step: str) -> None:
        client = self.stage.clients[session]
        if step == "begin":
            self._finish(client, f"begin isolation level {self.isolation}; select")
            self.snapshots[session] = len(self.judge.states) - 1
        elif step == "verb":
            self._call(session, client)
        else:
            commits = self.case.commits[session]
            _, error = self._finish(client, "commit" if commits else "rollback")
            self.judge.ended(session, commits, error)
            for other in sorted(self.calls):
                if other in self.calls:
                    self._look_after(other)

    def _call(self, session: int, client: Client) -> None:
        call = self.judge.asked(
            session,
            self.case.verbs[session],
            self.id,
            self.stage.now,
            self.snapshots.get(session),
        )
        statement = STATEMENTS[call.verb].format(
            id=self.id, token=call.token, contract=self.stage.contract
        )
        if session not in self.snapshots:
            # One message, so that the begin costs no round trip.
            statement = f"begin; {statement}"
        self.calls[session] = call
        client.ask(statement)
        self._look_after(session)

    def _look_after(self, session: int) -> None:
        client, call = self.stage.clients[session], self.calls[session]
        if self.stage.waits(client):
            call.waited = True
            return
        del self.calls[session]
        rows, call.error = client.answer()
        if call.error is None:
            call.answer = answer_of(call.verb, rows)
        self.judge.answered(call, self.stage.now)
        self._go_on(session)

    def _finish(
        self, client: Client, statement: str
    ) -> tuple[list[tuple[str | None, ...]], str | None]:
        client.ask(statement)
        assert not self.stage.waits(client)
        return client.answer()


def answer_of(verb: str, rows: list[tuple[str | None, ...]]) -> tuple[int, ...] | str | None:
    """In the words of `Call.answer`."""
    if not rows:
        return None
    ((*values,),) = rows
    if verb in ("claim", "enqueue"):
        return tuple(int(value or 0) for value in values)
    if verb == "sweep":
        return values[0] if values[1] == "1" else f"{values}"
    return {"t": "done", "f": "lost", None: "busy"}.get(values[0], values[0])


@pytest.fixture(scope="module")
def stage(_pg_module_url: str) -> Iterator[Stage]:
    stage = Stage(_pg_module_url)
    yield stage
    stage.close()


@pytest.mark.timeout(300 * max(1, SCALE))
@pytest.mark.req("R4.2", "R4.3", "R4.4", "R4.5", "R4.6", "R4.8", "R3.2", "R5.6", "R8.5")
@pytest.mark.parametrize(
    ("sessions", "isolation", "runs"),
    [
        (2, "read committed", 1_500),
        (2, "repeatable read", 500),
        (2, "serializable", 500),
        (3, "read committed", 1_500),
        (3, "repeatable read", 500),
        (3, "serializable", 500),
    ],
)
def test_every_order_of_steps_ends_as_the_commits_say(
    stage: Stage, sessions: int, isolation: str, runs: int
) -> None:
    seed = int(os.environ.get("DEVER_CHAOS_SEED") or random.randrange(2**31))
    cases = Cases(STARTS, VERBS, sessions, 2 if isolation == "read committed" else 3)
    wrong: list[str] = []
    waited = refused = 0
    for case in cases.sample(int(runs * SCALE), seed):
        run = Run(stage, case, isolation)
        faults = run.faults()
        history = "\n    ".join(run.judge.history)
        waited += "waited" in history
        refused += run.judge.refused
        if faults:
            wrong.append(f"{case}\n    {history}\n  " + "\n  ".join(faults))
            if len(wrong) == 5:
                break
    print(f"seed {seed}: {runs} of {len(cases)} orders, {waited} with waits, {refused} refused")
    assert not wrong, f"seed {seed}\n" + "\n".join(wrong)
    assert waited, "sessions met"
    assert bool(refused) == (isolation != "read committed")
