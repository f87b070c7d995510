"""The verbs of the SQLite engine as the named statements they consist of, in order.

What a function of `sql/src` is to PostgreSQL, a run of statements of `sqlite_port` inside one
write transaction is here. Nothing is decided in between: what one statement answers is handed to
the next, lists as JSON arrays. Durations and instants are integer microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from .arguments import check_instant, check_integers, check_texts, microseconds
from .engine import (
    Claimed,
    Enqueued,
    JobRow,
    Outcome,
    QueueRow,
    Registered,
    RetryOutcome,
    RetryVerdict,
    Steps,
    Verdict,
    WorkerRow,
)
from .sqlite_file import step

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_JOB_INSTANTS: Final = ("run_at", "created_at", "lease_until", "expires_at", "finished_at")
_QUEUE_DURATIONS: Final = (
    "visibility",
    "backoff_base",
    "backoff_max",
    "keep_succeeded",
    "keep_dead",
    "keep_cancelled",
    "block_after",
)


# --- values -------------------------------------------------------------------------------------


def instant_us(instant: datetime | None) -> int | None:
    """Raises InvalidArgument for a datetime without a time zone."""
    if instant is None:
        return None
    check_instant(instant)
    return (instant - _EPOCH) // _MICROSECOND


def instant(value: int) -> datetime:
    return _EPOCH + value * _MICROSECOND


def _array(items: Iterable[Any]) -> str:
    # Not ASCII only: half of a surrogate pair must fail when it is bound, not slip in as an escape.
    return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))


def durations(positive: bool, **named: int | None) -> Steps:
    """Check durations in microseconds, each under the name that an error shall say."""
    yield from _check_durations(positive, named.items())


def _check_durations(positive: bool, named: Iterable[tuple[str, int | None]]) -> Steps:
    given = [[what, value] for what, value in named if value is not None]
    if given:
        yield step("check_duration", positive=positive, durations=_array(given))


def _lengths(expected: int, *lists: Sequence[Any] | None) -> Steps:
    lengths = [expected, *(len(each) for each in lists if each is not None)]
    yield step("check_lengths", expected=expected, lengths=_array(lengths))


# --- clients ------------------------------------------------------------------------------------


def enqueue(
    job: str,
    fingerprint: str | None,
    keys: Sequence[str],
    payloads: Sequence[str | None] | None,
    run_ats: Sequence[datetime | None] | None,
) -> Steps:
    """enqueue_many, or with a fingerprint enqueue_as: a list of Enqueued."""
    check_texts("key", keys)
    check_texts("payload", payloads)
    yield step("enqueue_check_job", job=job, fingerprint=fingerprint)
    yield from _lengths(len(keys), payloads, run_ats)
    texts = ["null" if each is None else each for each in payloads or [None] * len(keys)]
    instants = [instant_us(each) for each in run_ats or [None] * len(keys)]
    items = [list(item) for item in zip(keys, texts, instants, strict=True)]
    about = {"job": job, "fingerprint": fingerprint}
    if fingerprint is None:
        yield step("enqueue_check_payloads", job=job, items=_array(items))
    yield step("enqueue_check_keys", items=_array(items))
    if run_ats is not None:
        yield step("enqueue_check_run_ats", items=_array(items))

    found: dict[int, Enqueued] = {}
    # Inside a transaction one round settles all. On a connection of a caller that has none open,
    # another process may finish a job between the look that found it unfinished and the insert.
    while len(found) < len(items):
        missing = [ordinal for ordinal in range(len(items)) if ordinal not in found]
        batch = _array(items[ordinal] for ordinal in missing)
        inserted = yield step("enqueue_insert", items=batch, **about)
        created = {key: id for id, key in inserted}
        for ordinal in missing:
            id = created.pop(items[ordinal][0], None)
            if id is not None:
                found[ordinal] = Enqueued(id, True)
        if len(found) < len(items):
            rows = yield step("enqueue_find", job=job, items=batch)
            for position, id in rows:
                if missing[position] not in found:
                    found[missing[position]] = Enqueued(id, False)
    return [found[ordinal] for ordinal in range(len(items))]


def send(
    queue: str,
    items: Sequence[tuple[str | None, str | None]],
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    expires: timedelta | None = None,
    max_attempts: int | None = None,
) -> Steps:
    """send and send_many; `items` are (payload, key): the ids in that order."""
    rows = _messages(items)
    yield step("check_name", name=queue)
    yield from _lengths(len(items))
    if not items:
        return []
    yield from durations(False, delay=microseconds(delay))
    yield from durations(True, expires=microseconds(expires))
    yield step("send_check_max_attempts", max_attempts=max_attempts)
    yield step("send_check", items=rows, run_at=instant_us(run_at))
    yield step("queue_for", queue=queue)
    ids = yield from _insert_messages(
        queue=queue,
        items=rows,
        delay_us=microseconds(delay),
        run_at=instant_us(run_at),
        expires_us=microseconds(expires),
        max_attempts=max_attempts,
    )
    return ids


def outbox_enqueue(outbox: str, payload: str, key: str | None, max_attempts: int | None) -> Steps:
    """The id of the message."""
    rows = _messages([(payload, key)])
    about = {"outbox": outbox, "payload": payload, "key": key, "max_attempts": max_attempts}
    yield step("outbox_check", **about)
    ids = yield from _insert_messages(
        queue=f"__dever_outbox:{outbox}",
        items=rows,
        delay_us=None,
        run_at=None,
        expires_us=None,
        max_attempts=max_attempts,
    )
    return ids[0]


def _messages(items: Sequence[tuple[str | None, str | None]]) -> str:
    check_texts("payload", [payload for payload, _ in items])
    check_texts("key", [key for _, key in items])
    return _array(["null" if payload is None else payload, key] for payload, key in items)


def _insert_messages(**about: Any) -> Steps:
    """Ids of inserted messages in their order, or of the one that holds the key of a single one."""
    while True:
        inserted = yield step("send_insert", **about)
        found = inserted or (yield step("send_find", queue=about["queue"], items=about["items"]))
        if found:
            # Ids rise in the order of insertion.
            return sorted(id for (id,) in found)


def installation(in_transaction: bool) -> Steps:
    """The identity of the installation. In a transaction it begins with an INSERT of nothing: one
    that has not read before then waits for the write lock, and cannot be told that it was
    overtaken. Outside it only reads, so that a refused connection is left without a transaction."""
    if in_transaction:
        yield step("take_write_lock")
    rows = yield step("installation")
    return rows[0][0]


# --- workers ------------------------------------------------------------------------------------


def register(
    worker: str | None,
    contracts: Sequence[Mapping[str, Any]],
    alive: timedelta | None,
    about: Mapping[str, Any] | None,
) -> Steps:
    for contract in contracts:
        for member in ("target", "queue", "fingerprint"):
            check_texts(member, (contract.get(member),))
    declared = json.dumps([dict(contract) for contract in contracts])
    yield from durations(True, alive=microseconds(alive))
    yield step("register_check", contracts=declared)
    yield step("register_queues", contracts=declared)
    yield step("register_contracts", contracts=declared)
    yield step("register_policies", contracts=declared)
    if worker is not None:
        yield step("check_name", name=worker)
        yield step("alive_check", alive_us=microseconds(alive))
        yield step(
            "register_worker",
            worker=worker,
            about=json.dumps(dict(about or {})),
            alive_us=microseconds(alive),
        )
        yield step("register_forget_policies", worker=worker)
        yield step("register_worker_policies", worker=worker, contracts=declared)
    rows = yield step("register_result", contracts=declared)
    return [Registered(*row) for row in rows]


def alive(worker: str, alive: timedelta) -> Steps:
    yield from durations(True, alive=microseconds(alive))
    yield step("alive_check", alive_us=microseconds(alive))
    rows = yield step("alive", worker=worker, alive_us=microseconds(alive))
    return bool(rows)


def claim(
    queue: str,
    worker: str,
    n: int,
    lease: timedelta | None,
    contracts: Sequence[int] | None,
    place: tuple[int, int],
) -> Steps:
    """`place`: run_at and id where the scan starts."""
    check_integers("contract", contracts)
    yield step("claim_check", n=n)
    yield step("claim_check_names", n=n, queue=queue, worker=worker)
    yield from durations(True, lease=microseconds(lease))
    picked = yield step(
        "claim_pick",
        queue=queue,
        n=n,
        contracts=None if contracts is None else _array(contracts),
        from_run_at=place[0],
        from_id=place[1],
    )
    if not picked:
        return []
    ids = _array(id for (id,) in picked)
    rows = yield step("claim_update", ids=ids, worker=worker, lease_us=microseconds(lease))
    yield step("claim_tokens", ids=ids)
    # Tokens were given in the order of the scan, rows come back in any.
    return [
        Claimed(*row[:-2], run_at=instant(row[-2]), lease_until=instant(row[-1]))
        for row in sorted(rows, key=lambda row: row[1])
    ]


def renew(ids: Sequence[int], tokens: Sequence[int], lease: timedelta | None) -> Steps:
    yield from durations(True, lease=microseconds(lease))
    check_integers("id", ids)
    check_integers("token", tokens)
    yield from _lengths(len(ids), tokens)
    items = _array(zip(ids, tokens, strict=True))
    rows = yield step("renew", items=items, lease_us=microseconds(lease))
    return _verdicts(ids, rows)


def complete(ids: Sequence[int], tokens: Sequence[int]) -> Steps:
    held = yield from _hold(ids, tokens)
    yield from _finish("succeeded", [[id] for id, *_ in held])
    return _verdicts(ids, held)


def retry(
    ids: Sequence[int],
    tokens: Sequence[int],
    reasons: Sequence[str | None],
    errors: Sequence[str | None] | None,
    delays: Sequence[timedelta | None] | None,
) -> Steps:
    delays_us = None if delays is None else [microseconds(delay) for delay in delays]
    yield from _check_durations(False, [("delay", delay) for delay in delays_us or ()])
    held = yield from _hold(ids, tokens, reasons, errors, delays_us)
    dead = [[id, reason, error] for id, reason, error, _, last, _ in held if last]
    again = [[id, reason, error, delay] for id, reason, error, delay, last, _ in held if not last]
    if again:
        yield step("retry_update", items=_array(again))
    yield from _finish("dead", dead)
    outcomes: dict[int, RetryOutcome] = {
        id: "dead" if last else "retried" for id, _, _, _, last, _ in held
    }
    return [RetryVerdict(id, outcomes.get(id, "lost")) for id in dict.fromkeys(ids)]


def bury(
    ids: Sequence[int],
    tokens: Sequence[int],
    reasons: Sequence[str | None],
    errors: Sequence[str | None] | None,
) -> Steps:
    held = yield from _hold(ids, tokens, reasons, errors)
    yield from _finish("dead", [[id, reason, error] for id, reason, error, *_ in held])
    return _verdicts(ids, held)


def block(
    ids: Sequence[int],
    tokens: Sequence[int],
    reasons: Sequence[str | None],
    errors: Sequence[str | None] | None,
) -> Steps:
    check_texts("reason", reasons)
    yield step("block_check", reasons=_array(reasons))
    held = yield from _hold(ids, tokens, reasons, errors)
    if held:
        items = [[id, reason, error] for id, reason, error, *_ in held]
        yield step("block_update", items=_array(items))
    return _verdicts(ids, held)


def release(ids: Sequence[int], tokens: Sequence[int]) -> Steps:
    held = yield from _hold(ids, tokens)
    yield from _finish("dead", [[id, "interrupted"] for id, _, _, _, last, _ in held if last])
    again = [[id] for id, _, _, _, last, _ in held if not last]
    if again:
        yield step("release_update", items=_array(again))
    return _verdicts(ids, held)


def _hold(
    ids: Sequence[int],
    tokens: Sequence[int],
    reasons: Sequence[str | None] | None = None,
    errors: Sequence[str | None] | None = None,
    delays: Sequence[int | None] | None = None,
) -> Steps:
    """Rows (id, reason, error, delay, last, ordinal) of the claims that are still in force."""
    check_integers("id", ids)
    check_integers("token", tokens)
    check_texts("reason", reasons)
    check_texts("error", errors)
    yield from _lengths(len(ids), tokens, reasons, errors, delays)
    none: list[None] = [None] * len(ids)
    items = zip(ids, tokens, reasons or none, errors or none, delays or none, strict=True)
    rows = yield step("hold", items=_array(items))
    return rows


def _finish(outcome: str, items: Sequence[Sequence[Any]]) -> Steps:
    if items:
        yield step("finish_store", outcome=outcome, items=_array(items))
        yield step("finish_remove", items=_array(items))


def _verdicts(ids: Sequence[int], held: Sequence[tuple[Any, ...]]) -> list[Verdict]:
    held_ids = {row[0] for row in held}
    return [Verdict(id, id in held_ids) for id in dict.fromkeys(ids)]


def sweep(n: int) -> Steps:
    """What was moved, and how many rows of it; nothing that is zero."""
    yield step("sweep_check", n=n)
    moved = dict.fromkeys(("expired", "exhausted", "blocked", "unblocked", "moved", "workers"), 0)
    if n <= 0:
        return {}
    left = 10 * n
    end = yield step("sweep_start")
    parts = yield step("sweep_parts")
    for queue_id, is_blocked, run_at, job_id in parts:
        about = {"queue_id": queue_id, "run_at": run_at, "job_id": job_id, "n": left}
        if is_blocked:
            rows = yield step("sweep_blocked", **about)
            examined, last_run_at, last_id, runnable = rows[0]
            moved["unblocked"] += yield from _count("sweep_unblock", runnable)
        else:
            rows = yield step("sweep_due", **about)
            examined, last_run_at, last_id, expired, exhausted, dead, stale, elsewhere = rows[0]
            yield from _finish("dead", json.loads(dead))
            moved["expired"] += expired
            moved["exhausted"] += exhausted
            moved["blocked"] += yield from _count("sweep_block", stale)
            moved["moved"] += yield from _count("sweep_move", elsewhere)
        left -= examined
        if left <= 0:
            end = [(queue_id, last_run_at, last_id)]
            break
    yield step("sweep_cursor_update", queue_id=end[0][0], run_at=end[0][1], job_id=end[0][2])
    moved["workers"] = len((yield step("sweep_workers")))
    return {what: rows for what, rows in moved.items() if rows}


def prune(n: int) -> Steps:
    """How many finished rows were pruned, at most `n`."""
    rows = yield step("sweep_prune", n=n)
    return len(rows)


def _count(name: str, ids: str) -> Steps:
    """How many rows a statement changed; most of the time it has none to look at."""
    rows: list[tuple[Any, ...]] = [] if ids == "[]" else (yield step(name, ids=ids))
    return len(rows)


# --- locks --------------------------------------------------------------------------------------


def lock_acquire(name: str, owner: str, ttl: timedelta) -> Steps:
    """A fencing token, or None while anyone holds the lock. Expects a checked name."""
    ttl_us = microseconds(ttl)
    yield step("lock_check", owner=owner, ttl_us=ttl_us)
    yield from durations(True, ttl=ttl_us)
    rows = yield step("lock_acquire", name=name, owner=owner, ttl_us=ttl_us)
    if not rows:
        return None
    yield step("lock_token", token=rows[0][0])
    return rows[0][0]


def lock_renew(name: str, owner: str, token: int, ttl: timedelta) -> Steps:
    ttl_us = microseconds(ttl)
    yield step("lock_check", owner=owner, ttl_us=ttl_us)
    yield from durations(True, ttl=ttl_us)
    rows = yield step("lock_renew", name=name, owner=owner, token=token, ttl_us=ttl_us)
    return bool(rows)


# --- operators ----------------------------------------------------------------------------------


def configure_queue(
    queue: str,
    positive: Mapping[str, timedelta | None],
    keep: Mapping[str, timedelta | None],
    max_attempts: int | None,
) -> Steps:
    settings = {name: microseconds(value) for name, value in {**positive, **keep}.items()}
    yield step("check_name", name=queue)
    yield from durations(True, **{name: settings[name] for name in positive})
    yield from durations(False, **{name: settings[name] for name in keep})
    values = {f"{name}_us": value for name, value in settings.items()}
    yield step("configure_check", max_attempts=max_attempts, **values)
    yield step("queue_for", queue=queue)
    yield step("configure_update", queue=queue, max_attempts=max_attempts, **values)
    yield step("configure_check_backoff", queue=queue)
    rows = yield step("queues", queue=queue)
    return queue_row(rows[0])


def pause_queue(queue: str, paused: bool) -> Steps:
    yield step("check_name", name=queue)
    rows = yield step("resume_queue" if not paused else "pause_queue", queue=queue)
    return bool(rows)


def cancel(ids: Sequence[int]) -> Steps:
    check_integers("id", ids)
    yield from _lengths(len(ids))
    rows = yield step("cancel_outcomes", ids=_array(ids))
    yield from _finish(
        "cancelled", [[id, outcome] for id, outcome in rows if outcome == "cancelled"]
    )
    return [Outcome(*row) for row in rows]


def redrive(ids: Sequence[int]) -> Steps:
    check_integers("id", ids)
    yield from _lengths(len(ids))
    candidates = yield step("redrive_candidates", ids=_array(ids))
    yield step("redrive_blocked", ids=_array(ids))
    yield step("redrive_dead", ids=_array(ids))
    yield step("redrive_forget", ids=_array(ids))
    rows = yield step("redrive_outcomes", candidates=_array(candidates))
    return [Outcome(*row) for row in rows]


def drop_jobs(ids: Sequence[int]) -> Steps:
    check_integers("id", ids)
    yield from _lengths(len(ids))
    rows = yield step("drop_outcomes", ids=_array(ids))
    yield step("drop_blocked", ids=_array(ids))
    yield step("drop_dead", ids=_array(ids))
    return [Outcome(*row) for row in rows]


# --- rows ---------------------------------------------------------------------------------------


def queue_row(row: tuple[Any, ...]) -> QueueRow:
    columns = list(row)
    for position, column in enumerate(fields(QueueRow)):
        if column.name in ("paused", "exact"):
            columns[position] = bool(columns[position])
        elif column.name in _QUEUE_DURATIONS:
            columns[position] *= _MICROSECOND
    return QueueRow(*columns)


def job_row(row: tuple[Any, ...]) -> JobRow:
    columns = list(row)
    for position, column in enumerate(fields(JobRow)):
        if column.name in _JOB_INSTANTS and columns[position] is not None:
            columns[position] = datetime.fromisoformat(columns[position])
    return JobRow(*columns)


def worker_row(row: tuple[Any, ...]) -> WorkerRow:
    worker, host, pid, version, started_at, alive_until, jobs = row
    return WorkerRow(
        worker,
        host,
        None if pid is None else int(pid),
        version,
        datetime.fromisoformat(started_at),
        datetime.fromisoformat(alive_until),
        jobs,
    )
