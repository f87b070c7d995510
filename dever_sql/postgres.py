"""The PostgreSQL engine: every verb is one call of the function of that name in schema `dever`.

Nothing is decided here. Statements have named parameters and cast them themselves, arrays are sent
as array literals, so that the same statement runs through any driver a caller may use.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import psycopg

from . import connection as caller
from .arguments import check as check_arguments
from .arguments import check_texts, unfit_text
from .engine import (
    Claimed,
    Enqueued,
    Fired,
    JobRow,
    JobState,
    LockRow,
    Missed,
    Outcome,
    QueueRow,
    Registered,
    RetryVerdict,
    ScheduleRow,
    Sleeper,
    Statement,
    Steps,
    Verdict,
    WorkerRow,
)
from .errors import (
    DeverError,
    SchemaVersion,
)
from .postgres_async_pool import AsyncPool
from .postgres_errors import callers_error, own_error
from .postgres_install import install, installed_version
from .postgres_pool import Pool, Session
from .postgres_sleeper import PostgresSleeper
from .postgres_values import (
    claims,
    duration,
    durations,
    instant,
    instants,
    number_array,
    outcomes_of,
    text_array,
)

PROTOCOL: Final = (1, 1)
"""The range of protocols this package speaks; it must overlap with the database's (R9.2)."""

# The row is copied with its database, by a template or a dump: the number keeps the copies apart.
_INSTALLATION: Final = (
    "select pg_catalog.concat(dever.installation_id(), ' ', d.oid)"
    " from pg_catalog.pg_database as d"
    " where d.datname operator(pg_catalog.=) pg_catalog.current_database()"
)

_JOB_COLUMNS: Final = (
    "id, queue, target, key, state, attempt, max_attempts, run_at, created_at, lease_until, worker,"
    " token, fingerprint, expires_at, finished_at, reason, error, payload::text"
)
_QUEUE_COLUMNS: Final = (
    "queue, paused, ready, scheduled, running, blocked, dead, exact, oldest_ready_seconds::float8,"
    " visibility, max_attempts, backoff_base, backoff_max, keep_succeeded, keep_dead,"
    " keep_cancelled, block_after"
)
_SCHEDULE_COLUMNS: Final = (
    "name, spec, queue, target, payload::text, next_at, last_at, fired, skipped, missed, paused,"
    " status"
)

# The payload travels as text: jsonb in binary form would have to be parsed and printed again.
_CLAIM: Final = (
    "select id, token, target, key, attempt, max_attempts, fingerprint, payload::text, run_at,"
    " lease_until from dever.claim(%(queue)s, %(worker)s, %(n)s::integer,"
    " %(lease)s::interval, cast(%(contracts)s as integer[]))"
)
_RENEW: Final = (
    "select id, ok from dever.renew(cast(%(ids)s as bigint[]), cast(%(tokens)s as bigint[]),"
    " %(lease)s::interval)"
)
_COMPLETE: Final = (
    "select id, ok from dever.complete(cast(%(ids)s as bigint[]), cast(%(tokens)s as bigint[]))"
)
_RELEASE: Final = (
    "select id, ok from dever.release(cast(%(ids)s as bigint[]), cast(%(tokens)s as bigint[]))"
)
_RETRY: Final = (
    "select id, outcome from dever.retry(cast(%(ids)s as bigint[]), cast(%(tokens)s as bigint[]),"
    " cast(%(reasons)s as text[]), cast(%(errors)s as text[]), %(delays)s::interval[])"
)
_BURY: Final = (
    "select id, ok from dever.bury(cast(%(ids)s as bigint[]), cast(%(tokens)s as bigint[]),"
    " cast(%(reasons)s as text[]), cast(%(errors)s as text[]))"
)
_BLOCK: Final = _BURY.replace("dever.bury", "dever.block")
_ENQUEUE_AS: Final = (
    "select ordinal, id, created from dever.enqueue_as(cast(%(job)s as text),"
    " cast(%(fingerprint)s as text), cast(%(keys)s as text[]), cast(%(payloads)s as jsonb[]),"
    " cast(%(run_ats)s as timestamptz[])) order by ordinal"
)
_ENQUEUE_MANY: Final = (
    "select ordinal, id, created from dever.enqueue_many(cast(%(job)s as text),"
    " cast(%(keys)s as text[]), cast(%(payloads)s as jsonb[]),"
    " cast(%(run_ats)s as timestamptz[])) order by ordinal"
)
_SEND: Final = (
    "select dever.send(cast(%(queue)s as text), cast(%(payload)s as jsonb), cast(%(key)s as text),"
    " cast(%(delay)s as interval), cast(%(run_at)s as timestamptz), cast(%(expires)s as interval),"
    " cast(%(max_attempts)s as integer))"
)
_OUTBOX_ENQUEUE: Final = (
    "select dever.outbox_enqueue(cast(%(outbox)s as text), cast(%(payload)s as jsonb),"
    " cast(%(key)s as text), cast(%(max_attempts)s as integer))"
)
_SCHEDULE: Final = (
    f"select {_SCHEDULE_COLUMNS} from dever.schedule(%(name)s, %(spec)s, %(queue)s,"
    " cast(%(payload)s as jsonb), %(missed)s, %(expires)s::interval, %(max_attempts)s::integer)"
)
_CONFIGURE_QUEUE: Final = (
    f"select {_QUEUE_COLUMNS} from dever.configure_queue(%(queue)s,"
    " visibility => %(visibility)s::interval, max_attempts => %(max_attempts)s::integer,"
    " backoff_base => %(backoff_base)s::interval, backoff_max => %(backoff_max)s::interval,"
    " keep_succeeded => %(keep_succeeded)s::interval, keep_dead => %(keep_dead)s::interval,"
    " keep_cancelled => %(keep_cancelled)s::interval, block_after => %(block_after)s::interval)"
)


class PostgresEngine:
    """Dever SQL in the database at `url`. Connects at the first call, not before.

    `connections`: how many it opens at most. Half of them are for `transaction()`; in async code
    each event loop has as many again. Each sleeping worker has one more. Renewals have their own,
    so that no other call can hold them up.
    """

    kind: Literal["postgresql", "sqlite"] = "postgresql"

    def __init__(
        self,
        url: str,
        *,
        connections: int = 10,
        connect_timeout: float = 10.0,
        statement_timeout_ms: int | None = None,
    ) -> None:
        def pool(size: int) -> Pool:
            return Pool(
                url,
                size=max(1, size),
                connect_timeout=connect_timeout,
                statement_timeout_ms=statement_timeout_ms,
            )

        self._pool = pool((connections - 1) // 2)
        self._renewals = pool(1)
        self._transactions = pool(connections // 2)
        self.async_transactions = AsyncPool(self._transactions, max(1, connections // 2))
        """For async transactions of the program's own."""
        self._checked = False
        self._check_lock = threading.Lock()
        self._id: str | None = None

    def __repr__(self) -> str:
        return f"PostgresEngine({self._pool.shown_url!r})"

    # --- the installation -------------------------------------------------------------------

    def version(self) -> str | None:
        with self._pool.session() as session:
            try:
                return installed_version(session)
            except psycopg.Error as error:
                raise self._own_error(error, {}) from None

    def protocol(self) -> tuple[int, int]:
        rows = self._call("select min, max from dever.protocol()", {}, check=False)
        return rows[0][0], rows[0][1]

    def installation_id(self) -> str:
        if self._id is None:
            self._id = str(self._call(_INSTALLATION, {})[0][0])
        return self._id

    def clock(self) -> datetime:
        return self._call("select dever.clock()", {})[0][0]

    def install(self) -> str:
        with self._pool.session() as session:
            try:
                return install(session)
            except psycopg.Error as error:
                raise self._own_error(error, {}) from None

    def catalogue(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query about the server, for an operator to read: nothing is decided by
        them, and operators in it have to be pg_catalog's."""
        return self._call(query, {})

    def lend(self) -> AbstractContextManager[Session]:
        """A session for a transaction of the program's own."""
        return self._transactions.session()

    def close(self) -> None:
        for pool in (self._pool, self._renewals, self._transactions, self.async_transactions):
            pool.close()

    def _check_protocol(self) -> None:
        with self._check_lock:
            if self._checked:
                return
            lowest, highest = self.protocol()
            if lowest > PROTOCOL[1] or highest < PROTOCOL[0]:
                raise SchemaVersion(
                    f"the database at {self._pool.shown_url} has Dever SQL {self.version()}"
                    f" (protocol {lowest} to {highest}), this program speaks protocol"
                    f" {PROTOCOL[0]} to {PROTOCOL[1]}",
                    hint="upgrade whichever is older; neighbouring versions work together",
                )
            self._checked = True

    # --- calls ------------------------------------------------------------------------------

    def _call(
        self,
        text: str,
        parameters: Mapping[str, Any],
        *,
        check: bool = True,
        pool: Pool | None = None,
    ) -> list[tuple[Any, ...]]:
        check_arguments(parameters)
        if check and not self._checked:
            self._check_protocol()
        for attempt in range(4):
            try:
                with (pool or self._pool).session() as session:
                    rows = session.execute(text, parameters, binary=True).fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue]
                    if session.in_transactions:
                        session.commit()
                    return rows
            except psycopg.Error as error:
                # The whole call was rolled back and is one statement: it can simply run again.
                if error.sqlstate in ("40001", "40P01") and attempt < 3:
                    continue
                raise self._own_error(error, parameters) from None
            except UnicodeEncodeError:
                raise unfit_text(parameters) from None
        raise AssertionError("unreachable")

    def _own_error(self, error: psycopg.Error, parameters: Mapping[str, Any]) -> DeverError:
        if error.sqlstate == "25006":
            # A primary that became a standby: the other connections lead there too.
            self._pool.discard_idle()
        return own_error(error, parameters, self._pool.shown_url)

    def translate(self, error: Exception, statement: Statement) -> Exception:
        return callers_error(error, statement.parameters)

    def _run(self, steps: Steps) -> Any:
        """Run steps on an own connection; each consists of statements that stand alone."""
        try:
            statement = next(steps)
            while True:
                statement = steps.send(self._call(statement.text, statement.parameters))
        except StopIteration as done:
            return done.value

    def _on(self, connection: object | None, steps: Steps) -> Any:
        return self._run(steps) if connection is None else caller.run(self, connection, steps)

    # --- clients ----------------------------------------------------------------------------

    def enqueue(
        self, job: str, key: str, payload: str | None = None, run_at: datetime | None = None
    ) -> Enqueued:
        rows = self._call(
            "select id, created from dever.enqueue(%(job)s, %(key)s,"
            " cast(%(payload)s as jsonb), cast(%(run_at)s as timestamptz))",
            {"job": job, "key": key, "payload": payload, "run_at": instant(run_at)},
        )
        return Enqueued(*rows[0])

    def enqueue_many(
        self,
        job: str,
        keys: Sequence[str],
        payloads: Sequence[str] | None = None,
        run_ats: Sequence[datetime | None] | None = None,
    ) -> list[Enqueued]:
        rows = self._call(
            _ENQUEUE_MANY,
            {
                "job": job,
                "keys": text_array(keys, "key"),
                "payloads": text_array(payloads, "payload"),
                "run_ats": instants(run_ats),
            },
        )
        return [Enqueued(id, created) for _, id, created in rows]

    def enqueue_as(
        self,
        job: str,
        fingerprint: str,
        keys: Sequence[str],
        payloads: Sequence[str] | None = None,
        run_ats: Sequence[datetime | None] | None = None,
        connection: object | None = None,
    ) -> list[Enqueued]:
        return self._on(
            connection, self.enqueue_as_steps(job, fingerprint, keys, payloads, run_ats)
        )

    def enqueue_as_steps(
        self,
        job: str,
        fingerprint: str,
        keys: Sequence[str],
        payloads: Sequence[str] | None = None,
        run_ats: Sequence[datetime | None] | None = None,
    ) -> Steps:
        rows = yield Statement(
            _ENQUEUE_AS,
            {
                "job": job,
                "fingerprint": fingerprint,
                "keys": text_array(keys, "key"),
                "payloads": text_array(payloads, "payload"),
                "run_ats": instants(run_ats),
            },
        )
        return [Enqueued(id, created) for _, id, created in rows]

    def send(
        self,
        queue: str,
        payload: str,
        key: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        expires: timedelta | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int:
        return self._on(
            connection, self.send_steps(queue, payload, key, delay, run_at, expires, max_attempts)
        )

    def send_steps(
        self,
        queue: str,
        payload: str,
        key: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        expires: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> Steps:
        rows = yield Statement(
            _SEND,
            {
                "queue": queue,
                "payload": payload,
                "key": key,
                "delay": duration(delay),
                "run_at": instant(run_at),
                "expires": duration(expires),
                "max_attempts": max_attempts,
            },
        )
        return rows[0][0]

    def send_many(self, queue: str, payloads: Sequence[str]) -> list[int]:
        rows = self._call(
            "select dever.send_many(%(queue)s, cast(%(payloads)s as jsonb[]))",
            {"queue": queue, "payloads": text_array(payloads, "payload")},
        )
        return [row[0] for row in rows]

    def outbox_enqueue(
        self,
        outbox: str,
        payload: str,
        key: str | None = None,
        max_attempts: int | None = None,
        connection: object | None = None,
    ) -> int:
        return self._on(connection, self.outbox_enqueue_steps(outbox, payload, key, max_attempts))

    def outbox_enqueue_steps(
        self, outbox: str, payload: str, key: str | None = None, max_attempts: int | None = None
    ) -> Steps:
        rows = yield Statement(
            _OUTBOX_ENQUEUE,
            {"outbox": outbox, "payload": payload, "key": key, "max_attempts": max_attempts},
        )
        return rows[0][0]

    # --- a caller's connection --------------------------------------------------------------

    def installation_steps(self, in_transaction: bool) -> Steps:
        # A call of a function that is not there would end the caller's transaction: look first.
        rows = yield Statement(
            "select pg_catalog.to_regprocedure('dever.installation_id()') is not null", {}
        )
        if not rows[0][0]:
            return None
        rows = yield Statement(_INSTALLATION, {})
        return rows[0][0]

    def complete_steps(self, ids: Sequence[int], tokens: Sequence[int]) -> Steps:
        rows = yield Statement(_COMPLETE, claims(ids, tokens))
        return list(map(Verdict._make, rows))

    # --- workers ----------------------------------------------------------------------------

    def register(
        self,
        worker: str | None,
        contracts: Sequence[Mapping[str, Any]],
        alive: timedelta,
        about: Mapping[str, Any] | None = None,
    ) -> list[Registered]:
        return self._run(self.register_steps(worker, contracts, alive, about))

    def register_steps(
        self,
        worker: str | None,
        contracts: Sequence[Mapping[str, Any]],
        alive: timedelta,
        about: Mapping[str, Any] | None = None,
    ) -> Steps:
        for contract in contracts:
            # Inside jsonb the server would call it a payload's fault.
            for member in ("target", "queue", "fingerprint"):
                check_texts(member, (contract.get(member),))
        rows = yield Statement(
            "select target, fingerprint, contract_id from dever.register(%(worker)s,"
            " %(contracts)s::jsonb, %(alive)s::interval, %(about)s::jsonb)",
            {
                "worker": worker,
                "contracts": json.dumps([dict(contract) for contract in contracts]),
                "alive": duration(alive),
                "about": json.dumps(dict(about or {})),
            },
        )
        return [Registered(*row) for row in rows]

    def alive(self, worker: str, alive: timedelta) -> bool:
        rows = self._call(
            "select dever.alive(%(worker)s, %(alive)s::interval)",
            {"worker": worker, "alive": duration(alive)},
            pool=self._renewals,
        )
        return bool(rows[0][0])

    def leave(self, worker: str) -> bool:
        return self._yes("select dever.leave(%(worker)s)", {"worker": worker})

    def claim(
        self,
        queue: str,
        worker: str,
        n: int,
        lease: timedelta | None = None,
        contracts: Sequence[int] | None = None,
    ) -> list[Claimed]:
        rows = self._call(
            _CLAIM,
            {
                "queue": queue,
                "worker": worker,
                "n": n,
                "lease": duration(lease),
                "contracts": None if contracts is None else number_array(contracts, "contract"),
            },
        )
        return list(map(Claimed._make, rows))

    def renew(
        self, ids: Sequence[int], tokens: Sequence[int], lease: timedelta | None
    ) -> list[Verdict]:
        rows = self._call(
            _RENEW,
            {
                "ids": number_array(ids),
                "tokens": number_array(tokens, "token"),
                "lease": duration(lease),
            },
            pool=self._renewals,
        )
        return list(map(Verdict._make, rows))

    def complete(self, ids: Sequence[int], tokens: Sequence[int]) -> list[Verdict]:
        return self._verdicts(_COMPLETE, claims(ids, tokens))

    def release(self, ids: Sequence[int], tokens: Sequence[int]) -> list[Verdict]:
        return self._verdicts(_RELEASE, claims(ids, tokens))

    def retry(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
        delays: Sequence[timedelta | None] | None = None,
    ) -> list[RetryVerdict]:
        rows = self._call(
            _RETRY,
            {
                **outcomes_of(ids, tokens, reasons, errors),
                "delays": durations(delays),
            },
        )
        return [RetryVerdict(*row) for row in rows]

    def bury(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
    ) -> list[Verdict]:
        return self._verdicts(_BURY, outcomes_of(ids, tokens, reasons, errors))

    def block(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
    ) -> list[Verdict]:
        return self._verdicts(_BLOCK, outcomes_of(ids, tokens, reasons, errors))

    def sweep(self, n: int = 1000) -> dict[str, int]:
        rows = self._call("select what, rows from dever.sweep(%(n)s::integer)", {"n": n})
        return dict(rows)

    def tick(self, n: int = 100) -> list[Fired]:
        rows = self._call(
            "select schedule, fire_at, job_id from dever.tick(%(n)s::integer)", {"n": n}
        )
        return [Fired(*row) for row in rows]

    def next_tick_at(self) -> datetime | None:
        return self._call("select dever.next_tick_at()", {})[0][0]

    def sleeper(self, queues: Sequence[str]) -> Sleeper:
        rows = self._call(
            "select dever.queue_ids(cast(%(queues)s as text[]))",
            {"queues": text_array(queues, "queue")},
        )
        return PostgresSleeper(self._pool, [row[0] for row in rows])

    def _verdicts(self, text: str, parameters: Mapping[str, Any]) -> list[Verdict]:
        return list(map(Verdict._make, self._call(text, parameters)))

    def _yes(self, text: str, parameters: Mapping[str, Any]) -> bool:
        return bool(self._call(text, parameters)[0][0])

    # --- locks ------------------------------------------------------------------------------

    def lock_acquire(self, name: str, owner: str, ttl: timedelta) -> int | None:
        return self._call(
            "select dever.lock_acquire(%(name)s, %(owner)s, %(ttl)s::interval)",
            {"name": name, "owner": owner, "ttl": duration(ttl)},
        )[0][0]

    def scheduler_acquire(self, owner: str, ttl: timedelta) -> int | None:
        return self._call(
            "select dever.scheduler_acquire(%(owner)s, %(ttl)s::interval)",
            {"owner": owner, "ttl": duration(ttl)},
        )[0][0]

    def lock_renew(self, name: str, owner: str, token: int, ttl: timedelta) -> bool:
        return self._yes(
            "select dever.lock_renew(%(name)s, %(owner)s, %(token)s::bigint, %(ttl)s::interval)",
            {"name": name, "owner": owner, "token": token, "ttl": duration(ttl)},
        )

    def lock_release(self, name: str, owner: str, token: int) -> bool:
        return self._yes(
            "select dever.lock_release(%(name)s, %(owner)s, %(token)s::bigint)",
            {"name": name, "owner": owner, "token": token},
        )

    # --- operators --------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        spec: str,
        queue: str,
        payload: str = "null",
        missed: Missed = "catch_up",
        expires: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> ScheduleRow:
        rows = self._call(
            _SCHEDULE,
            {
                "name": name,
                "spec": spec,
                "queue": queue,
                "payload": payload,
                "missed": missed,
                "expires": duration(expires),
                "max_attempts": max_attempts,
            },
        )
        return ScheduleRow(*rows[0])

    def unschedule(self, name: str) -> bool:
        return self._yes("select dever.unschedule(%(name)s)", {"name": name})

    def pause_schedule(self, name: str) -> bool:
        return self._yes("select dever.pause_schedule(%(name)s)", {"name": name})

    def resume_schedule(self, name: str) -> bool:
        return self._yes("select dever.resume_schedule(%(name)s)", {"name": name})

    def rewind_schedule(self, name: str) -> bool:
        return self._yes("select dever.rewind_schedule(%(name)s)", {"name": name})

    def cron_next(self, spec: str, after: datetime) -> datetime:
        return self._call(
            "select dever.cron_next(%(spec)s, cast(%(after)s as timestamptz))",
            {"spec": spec, "after": instant(after)},
        )[0][0]

    def cron_preview(self, spec: str, after: datetime, n: int) -> list[datetime]:
        rows = self._call(
            "select dever.cron_preview(%(spec)s, cast(%(after)s as timestamptz), %(n)s::integer)",
            {"spec": spec, "after": instant(after), "n": n},
        )
        return [row[0] for row in rows]

    def configure_queue(
        self,
        queue: str,
        visibility: timedelta | None = None,
        max_attempts: int | None = None,
        backoff_base: timedelta | None = None,
        backoff_max: timedelta | None = None,
        keep_succeeded: timedelta | None = None,
        keep_dead: timedelta | None = None,
        keep_cancelled: timedelta | None = None,
        block_after: timedelta | None = None,
    ) -> QueueRow:
        rows = self._call(
            _CONFIGURE_QUEUE,
            {
                "queue": queue,
                "visibility": duration(visibility),
                "max_attempts": max_attempts,
                "backoff_base": duration(backoff_base),
                "backoff_max": duration(backoff_max),
                "keep_succeeded": duration(keep_succeeded),
                "keep_dead": duration(keep_dead),
                "keep_cancelled": duration(keep_cancelled),
                "block_after": duration(block_after),
            },
        )
        return QueueRow(*rows[0])

    def pause_queue(self, queue: str) -> bool:
        return self._yes("select dever.pause_queue(%(queue)s)", {"queue": queue})

    def resume_queue(self, queue: str) -> bool:
        return self._yes("select dever.resume_queue(%(queue)s)", {"queue": queue})

    def cancel(self, ids: Sequence[int]) -> list[Outcome]:
        return self._outcomes("dever.cancel", ids)

    def redrive(self, ids: Sequence[int]) -> list[Outcome]:
        return self._outcomes("dever.redrive", ids)

    def drop_jobs(self, ids: Sequence[int]) -> list[Outcome]:
        return self._outcomes("dever.drop_jobs", ids)

    def _outcomes(self, function: str, ids: Sequence[int]) -> list[Outcome]:
        rows = self._call(
            f"select id, outcome from {function}(cast(%(ids)s as bigint[]))",
            {"ids": number_array(ids)},
        )
        return [Outcome(*row) for row in rows]

    # --- observers --------------------------------------------------------------------------

    def get_job(self, id: int) -> JobRow | None:
        rows = self._call(f"select {_JOB_COLUMNS} from dever.get_job(%(id)s::bigint)", {"id": id})
        return JobRow(*rows[0]) if rows else None

    def jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        target: str | None = None,
        key: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> list[JobRow]:
        conditions = {
            "state = %(state)s": state,
            "queue = %(queue)s": queue,
            "target = %(target)s": target,
            "key = %(key)s": key,
            "id < %(before)s::bigint": before,
        }
        given = [condition for condition, value in conditions.items() if value is not None]
        # Only what is asked for stands in the statement: a condition that is switched off by a
        # parameter would hide the index from the planner.
        where = f" where {' and '.join(given)}" if given else ""
        view = f"dever.{state}" if state in ("dead", "blocked") else "dever.jobs"
        rows = self._call(
            f"select {_JOB_COLUMNS} from {view}{where} order by id desc"
            " limit greatest(%(limit)s::bigint, 0)",
            {
                "state": state,
                "queue": queue,
                "target": target,
                "key": key,
                "before": before,
                "limit": limit,
            },
        )
        return [JobRow(*row) for row in rows]

    def queues(self) -> list[QueueRow]:
        rows = self._call(f"select {_QUEUE_COLUMNS} from dever.queues order by queue", {})
        return [QueueRow(*row) for row in rows]

    def workers(self) -> list[WorkerRow]:
        rows = self._call(
            "select worker, host, pid::bigint, version, started_at, alive_until, jobs"
            " from dever.workers order by worker",
            {},
        )
        return [WorkerRow(*row) for row in rows]

    def schedules(self) -> list[ScheduleRow]:
        rows = self._call(f"select {_SCHEDULE_COLUMNS} from dever.schedules order by name", {})
        return [ScheduleRow(*row) for row in rows]

    def locks(self) -> list[LockRow]:
        rows = self._call(
            "select name, owner, token, expires_at from dever.locks order by name", {}
        )
        return [LockRow(*row) for row in rows]
