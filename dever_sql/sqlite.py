"""The SQLite engine: every verb is a run of named statements of `sqlite_port` in one transaction.

Nothing is decided here; which statements a verb consists of is said in `sqlite_verbs`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from . import connection as caller
from . import cron
from . import sqlite_schedule as schedules
from . import sqlite_verbs as verbs
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
from .errors import InstallError, SchemaVersion
from .sql_files import install_script, schema_version, split_statements, upgrade_scripts
from .sqlite_errors import caller_error
from .sqlite_file import MEMORY, SqliteFile, Synchronous, Transaction
from .sqlite_head import Heads
from .sqlite_sleeper import SqliteSleeper

PROTOCOL: Final = (1, 1)
"""The range of protocols this package speaks; it must overlap with the database's (R9.2)."""

_PRUNED_AT_ONCE: Final = 100
"""Finished rows that one transaction prunes: payloads may be large, and no other write can pass."""

_SCHEDULER_LOCK: Final = "__dever_scheduler"


class SQLiteEngine:
    """Dever SQL in the database file at `path`, `":memory:"` for one that lives with this object.

    Opens the file at the first call, not before, and creates it only in `install`.
    `synchronous="normal"` is faster and may lose the last commits in a power cut.
    """

    kind: Literal["postgresql", "sqlite"] = "sqlite"

    def __init__(self, path: str | os.PathLike[str], *, synchronous: Synchronous = "full") -> None:
        name = os.fspath(path)
        if not name:
            raise InstallError("the path of the database is empty", hint="name a file")
        self._file = SqliteFile(name if name == MEMORY else os.path.abspath(name), synchronous)
        self._id: str | None = None
        self._heads = Heads()

    def __repr__(self) -> str:
        return f"SQLiteEngine({self._file.path!r})"

    @property
    def path(self) -> str:
        """The absolute path of the database file, or `":memory:"`."""
        return self._file.path

    # --- the installation -------------------------------------------------------------------

    def version(self) -> str | None:
        if not self._file.exists() or not self._file.read("installation_table")[0][0]:
            return None
        return self._file.read("installation")[0][1]

    def protocol(self) -> tuple[int, int]:
        row = self._file.read("installation")[0]
        return row[2], row[3]

    def installation_id(self) -> str:
        if self._id is None:
            # First: who asks again after it was refused must not get through.
            self._check_protocol()
            self._id = str(self._file.read("installation")[0][0])
        return self._id

    def clock(self) -> datetime:
        return verbs.instant(self._file.read("clock")[0][0])

    def install(self) -> str:
        """Install, upgrade or do nothing, in one transaction; the version (R4.1)."""
        brought = schema_version()
        with self._file.write(create=True) as run:
            if run("installation_table", {})[0][0]:
                scripts = upgrade_scripts("sqlite", run("installation", {})[0][1])
            else:
                scripts = [install_script("sqlite")]
            for script in scripts:
                for statement in split_statements(script):
                    run.define(statement)
        return brought

    def close(self) -> None:
        self._file.close()

    def _check_protocol(self) -> None:
        lowest, highest = self.protocol()
        if lowest > PROTOCOL[1] or highest < PROTOCOL[0]:
            raise SchemaVersion(
                f"the database at {self.path} has Dever SQL {self.version()}"
                f" (protocol {lowest} to {highest}), this program speaks protocol"
                f" {PROTOCOL[0]} to {PROTOCOL[1]}",
                hint="upgrade whichever is older; neighbouring versions work together",
            )

    # --- calls ------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, *, urgent: bool = False) -> Generator[Transaction]:
        self.installation_id()
        with self._file.write(urgent=urgent) as run:
            yield run

    def _run(self, steps: Steps, *, urgent: bool = False, wakes: bool = False) -> Any:
        """Run steps in a write transaction of their own. `wakes`: work may be due afterwards."""
        with self._writing(urgent=urgent) as run:
            result = run.run(steps)
        if wakes:
            self._file.wake()
        return result

    def _on(self, connection: object | None, steps: Steps) -> Any:
        if connection is not None:
            return caller.run(self, connection, steps)
        return self._run(steps, wakes=True)

    def _read(self, name: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self.installation_id()
        return self._file.read(name, **parameters)

    # --- clients ----------------------------------------------------------------------------

    def enqueue(
        self, job: str, key: str, payload: str | None = None, run_at: datetime | None = None
    ) -> Enqueued:
        steps = verbs.enqueue(job, None, [key], None if payload is None else [payload], [run_at])
        return self._run(steps, wakes=True)[0]

    def enqueue_many(
        self,
        job: str,
        keys: Sequence[str],
        payloads: Sequence[str] | None = None,
        run_ats: Sequence[datetime | None] | None = None,
    ) -> list[Enqueued]:
        return self._run(verbs.enqueue(job, None, keys, payloads, run_ats), wakes=True)

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
        return verbs.enqueue(job, fingerprint, keys, payloads, run_ats)

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
        ids = yield from verbs.send(queue, [(payload, key)], delay, run_at, expires, max_attempts)
        return ids[0]

    def send_many(self, queue: str, payloads: Sequence[str]) -> list[int]:
        return self._run(verbs.send(queue, [(each, None) for each in payloads]), wakes=True)

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
        return verbs.outbox_enqueue(outbox, payload, key, max_attempts)

    # --- a caller's connection --------------------------------------------------------------

    def installation_steps(self, in_transaction: bool) -> Steps:
        return verbs.installation(in_transaction)

    def complete_steps(self, ids: Sequence[int], tokens: Sequence[int]) -> Steps:
        return verbs.complete(ids, tokens)

    def register_steps(
        self,
        worker: str | None,
        contracts: Sequence[Mapping[str, Any]],
        alive: timedelta,
        about: Mapping[str, Any] | None = None,
    ) -> Steps:
        """Cursors of declared crons come with the next tick."""
        schedules.check_declared(contracts)
        return verbs.register(worker, contracts, alive, about)

    def translate(self, error: Exception, statement: Statement) -> Exception:
        return caller_error(error, statement.parameters)

    def wake(self) -> None:
        """Somebody else of this process committed: workers that sleep look again."""
        self._file.wake()

    # --- workers ----------------------------------------------------------------------------

    def register(
        self,
        worker: str | None,
        contracts: Sequence[Mapping[str, Any]],
        alive: timedelta,
        about: Mapping[str, Any] | None = None,
    ) -> list[Registered]:
        with self._writing() as run:
            registered = run.run(self.register_steps(worker, contracts, alive, about))
            schedules.declare_schedules(run)
        self._file.wake()
        return registered

    def alive(self, worker: str, alive: timedelta) -> bool:
        return self._run(verbs.alive(worker, alive), urgent=True)

    def leave(self, worker: str) -> bool:
        with self._writing() as run:
            return bool(run("leave", {"worker": worker}))

    def claim(
        self,
        queue: str,
        worker: str,
        n: int,
        lease: timedelta | None = None,
        contracts: Sequence[int] | None = None,
    ) -> list[Claimed]:
        scan = repr((queue, contracts))
        with self._writing() as run:
            now = run("clock", {})[0][0]
            began = time.monotonic()
            steps = verbs.claim(queue, worker, n, lease, contracts, self._heads.place(scan))
            claimed, work = run.run_measured(steps)
            self._heads.scanned(scan, n, now, claimed, work, time.monotonic() - began)
        return claimed

    def renew(
        self, ids: Sequence[int], tokens: Sequence[int], lease: timedelta | None
    ) -> list[Verdict]:
        return self._run(verbs.renew(ids, tokens, lease), urgent=True)

    def complete(self, ids: Sequence[int], tokens: Sequence[int]) -> list[Verdict]:
        return self._run(verbs.complete(ids, tokens))

    def retry(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
        delays: Sequence[timedelta | None] | None = None,
    ) -> list[RetryVerdict]:
        return self._run(verbs.retry(ids, tokens, reasons, errors, delays), wakes=True)

    def bury(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
    ) -> list[Verdict]:
        return self._run(verbs.bury(ids, tokens, reasons, errors))

    def block(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        reasons: Sequence[str | None],
        errors: Sequence[str | None] | None = None,
    ) -> list[Verdict]:
        return self._run(verbs.block(ids, tokens, reasons, errors))

    def release(self, ids: Sequence[int], tokens: Sequence[int]) -> list[Verdict]:
        return self._run(verbs.release(ids, tokens), wakes=True)

    def sweep(self, n: int = 1000) -> dict[str, int]:
        moved = self._run(verbs.sweep(n))
        pruned = 0
        while pruned < n:
            part = min(n - pruned, _PRUNED_AT_ONCE)
            rows = self._run(verbs.prune(part))
            pruned += rows
            if rows < part:
                break
        if pruned:
            moved["pruned"] = pruned
        if moved.keys() & {"unblocked", "moved"}:
            self._file.wake()
        return moved

    def sleeper(self, queues: Sequence[str]) -> Sleeper:
        """Wakes for every commit, whatever the queue: SQLite does not tell what was committed."""
        return SqliteSleeper(self._file)

    # --- schedules --------------------------------------------------------------------------

    def tick(self, n: int = 100) -> list[Fired]:
        with self._writing() as run:
            fired = schedules.tick(run, n)
        if fired:
            self._file.wake()
        return fired

    def next_tick_at(self) -> datetime | None:
        return schedules.next_tick_at(self._read)

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
        expires_us = verbs.microseconds(expires)
        with self._writing() as run:
            run("check_name", {"name": name})
            run("check_name", {"name": queue})
            run.run(verbs.durations(True, expires=expires_us))
            row = schedules.schedule(
                run, name, spec, queue, payload, missed, expires_us, max_attempts
            )
        self._file.wake()
        return row

    def unschedule(self, name: str) -> bool:
        return self._on_schedule(schedules.unschedule, name)

    def pause_schedule(self, name: str) -> bool:
        return self._on_schedule(schedules.pause_schedule, name)

    def resume_schedule(self, name: str) -> bool:
        return self._on_schedule(schedules.resume_schedule, name)

    def rewind_schedule(self, name: str) -> bool:
        return self._on_schedule(schedules.rewind_schedule, name)

    def _on_schedule(self, change: Callable[[Transaction, str], bool], name: str) -> bool:
        with self._writing() as run:
            run("check_name", {"name": name})
            changed = change(run, name)
        self._file.wake()
        return changed

    def cron_next(self, spec: str, after: datetime) -> datetime:
        return cron.next_after(spec, after)

    def cron_preview(self, spec: str, after: datetime, n: int) -> list[datetime]:
        return cron.preview(spec, after, n)

    # --- locks ------------------------------------------------------------------------------

    def lock_acquire(self, name: str, owner: str, ttl: timedelta) -> int | None:
        with self._writing() as run:
            run("check_name", {"name": name})
            return run.run(verbs.lock_acquire(name, owner, ttl))

    def scheduler_acquire(self, owner: str, ttl: timedelta) -> int | None:
        return self._run(verbs.lock_acquire(_SCHEDULER_LOCK, owner, ttl))

    def lock_renew(self, name: str, owner: str, token: int, ttl: timedelta) -> bool:
        with self._writing(urgent=True) as run:
            if name != _SCHEDULER_LOCK:
                run("check_name", {"name": name})
            return run.run(verbs.lock_renew(name, owner, token, ttl))

    def lock_release(self, name: str, owner: str, token: int) -> bool:
        with self._writing() as run:
            if name != _SCHEDULER_LOCK:
                run("check_name", {"name": name})
            return bool(run("lock_release", {"name": name, "owner": owner, "token": token}))

    # --- operators --------------------------------------------------------------------------

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
        positive = {
            "visibility": visibility,
            "backoff_base": backoff_base,
            "backoff_max": backoff_max,
            "block_after": block_after,
        }
        keep = {
            "keep_succeeded": keep_succeeded,
            "keep_dead": keep_dead,
            "keep_cancelled": keep_cancelled,
        }
        return self._run(verbs.configure_queue(queue, positive, keep, max_attempts))

    def pause_queue(self, queue: str) -> bool:
        return self._run(verbs.pause_queue(queue, True))

    def resume_queue(self, queue: str) -> bool:
        return self._run(verbs.pause_queue(queue, False), wakes=True)

    def cancel(self, ids: Sequence[int]) -> list[Outcome]:
        return self._run(verbs.cancel(ids))

    def redrive(self, ids: Sequence[int]) -> list[Outcome]:
        return self._run(verbs.redrive(ids), wakes=True)

    def drop_jobs(self, ids: Sequence[int]) -> list[Outcome]:
        return self._run(verbs.drop_jobs(ids))

    # --- observers --------------------------------------------------------------------------

    def get_job(self, id: int) -> JobRow | None:
        rows = self._read("get_job", {"id": id})
        return verbs.job_row(rows[0]) if rows else None

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
        # A condition that is switched off by a parameter hides the index from the planner, so
        # each way to find jobs fast is a statement of its own.
        name = "jobs"
        if state == "dead" or state == "blocked":
            name = f"jobs_{state}"
        elif target is not None:
            name = "jobs_of_target"
        rows = self._read(
            name,
            {
                "state": state,
                "queue": queue,
                "target": target,
                "key": key,
                "limit": limit,
                "before": before,
            },
        )
        return [verbs.job_row(row) for row in rows]

    def queues(self) -> list[QueueRow]:
        return [verbs.queue_row(row) for row in self._read("queues", {"queue": None})]

    def workers(self) -> list[WorkerRow]:
        return [verbs.worker_row(row) for row in self._read("workers", {})]

    def schedules(self) -> list[ScheduleRow]:
        return schedules.schedules(self._read)

    def locks(self) -> list[LockRow]:
        return [
            LockRow(name, owner, token, verbs.instant(expires_at))
            for name, owner, token, expires_at in self._read("locks", {})
        ]
