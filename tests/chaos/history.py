"""Checks what the processes saw and what the database holds against the promises of the engine.

`check` returns every broken promise as a line of text; the numbers are those of the requirements.
Nothing here knows how the engine works.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chaos.effect_log import Event

from dever_sql.engine import JobRow

FINAL = ("succeeded", "dead", "cancelled")


@dataclass
class Claim:
    token: int
    attempt: int
    claimed_at: float
    """By the engine's clock."""
    earliest_end: float
    """The lease has not run out before: it is renewed only by what was answered."""
    latest_end: float
    """The lease has run out after, but for renewals that were never answered."""


@dataclass
class History:
    """The events of one job."""

    claims: dict[int, Claim] = field(default_factory=dict)
    starts: list[Event] = field(default_factory=list)
    verdicts: list[Event] = field(default_factory=list)
    effects: list[Event] = field(default_factory=list)
    asked: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How often a verb was sent with a token."""
    answered: Counter[tuple[int, str]] = field(default_factory=Counter)

    def unanswered(self, token: int, verb: str) -> bool:
        """Sent without an answer, or with "ask again": the database may have done it."""
        return self.asked[token, verb] > self.answered[token, verb]


def check(events: Sequence[Event], rows: Sequence[JobRow], lease: float) -> list[str]:
    jobs: dict[int, History] = defaultdict(History)
    acknowledged: dict[int, Event] = {}
    rolled_back: set[str] = set()
    for event in events:
        match event.name:
            case "enqueued":
                acknowledged.setdefault(event["id"], event)
            case "rolled back":
                rolled_back.add(event["key"])
            case "claimed":
                _add_claim(jobs[event["id"]], event, lease)
            case "asked":
                for id, token in zip(event["ids"], event["tokens"], strict=True):
                    jobs[id].asked[token, event["verb"]] += 1
            case "verdict":
                history = jobs[event["id"]]
                history.verdicts.append(event)
                asked = "retry" if event["verb"] == "dead" else event["verb"]
                history.answered[event["token"], asked] += 1
                claim = history.claims.get(event["token"])
                if claim and event["verb"] == "renew" and event["accepted"]:
                    claim.earliest_end = max(claim.earliest_end, event["asked_at"] + lease)
                    claim.latest_end = max(claim.latest_end, event.at + lease)
            case "started":
                jobs[event["id"]].starts.append(event)
            case "effect":
                jobs[event["id"]].effects.append(event)
    found = {row.id: row for row in rows}
    return [
        *_ends(acknowledged, rolled_back, jobs, found),
        *(
            f"job {id}: {fault}"
            for id in sorted({*jobs, *found})
            for fault in _job(jobs[id], found.get(id))
        ),
    ]


def _add_claim(history: History, event: Event, lease: float) -> None:
    end = event["lease_until"]
    history.claims[event["token"]] = Claim(event["token"], event["attempt"], end - lease, end, end)


def _ends(
    acknowledged: dict[int, Event],
    rolled_back: set[str],
    jobs: dict[int, History],
    found: dict[int, JobRow],
) -> Iterator[str]:
    for id, event in acknowledged.items():
        row = found.get(id)
        if row is None:
            yield f"R3.4 job {id} ({event['key']}) was acknowledged and is lost"
        elif row.state not in FINAL:
            yield f"R4.5 job {id} ({event['key']}) did not end: {row.state}, {row.reason}"
    for row in found.values():
        if row.key in rolled_back:
            yield f"R3.4 job {row.id} ({row.key}) comes from a transaction that was rolled back"
    for id in jobs:
        if id not in found:
            yield f"R3.4 job {id} ran and is not in the database"


def _job(history: History, row: JobRow | None) -> Iterator[str]:
    claims = sorted(history.claims.values(), key=lambda claim: claim.token)
    for earlier, later in itertools.pairwise(claims):
        if later.attempt <= earlier.attempt:
            yield f"R4.3 attempt {later.attempt} was claimed after attempt {earlier.attempt}"
        given_back = any(
            verdict["token"] == earlier.token
            and verdict["accepted"]
            and verdict["verb"] in ("retry", "release")
            for verdict in history.verdicts
        )
        unknown = history.unanswered(earlier.token, "retry") or history.unanswered(
            earlier.token, "release"
        )
        if not given_back and not unknown and later.claimed_at < earlier.earliest_end - 0.001:
            yield (
                f"R4.5 token {later.token} was claimed"
                f" {earlier.earliest_end - later.claimed_at:.3f} s before the end of the lease of"
                f" token {earlier.token}"
            )
    started = [event["token"] for event in history.starts]
    if len(started) != len(set(started)):
        yield f"R4.4 two starts with one token: {sorted(started)}"
    by_token = sorted(history.starts, key=lambda event: event["token"])
    attempts = [event["attempt"] for event in by_token]
    if attempts != sorted(set(attempts)):
        yield f"R4.3 attempts in the order of their tokens: {attempts}"
    for event in history.starts:
        if event["attempt"] > event["max_attempts"]:
            yield f"R4.6 attempt {event['attempt']} of {event['max_attempts']}"
        if event["run_at"] > event.at:
            yield f"R3.3 started {event['run_at'] - event.at:.3f} s before its time"
    yield from _verdicts(history, row)
    if len(history.effects) > len(history.starts):
        yield "more effects than starts"


def _verdicts(history: History, row: JobRow | None) -> Iterator[str]:
    newest = max(history.claims, default=0)
    final = [
        event
        for event in history.verdicts
        if event["accepted"] and event["verb"] in ("complete", "bury", "dead")
    ]
    if len({event["token"] for event in final}) > 1:
        yield f"R4.4 finished by several tokens: {[event['token'] for event in final]}"
    for event in history.verdicts:
        if not event["accepted"]:
            continue
        claim = history.claims.get(event["token"])
        renewed = history.unanswered(event["token"], "renew")
        if claim and not renewed and event["asked_at"] > claim.latest_end + 0.001:
            yield (
                f"R4.4 {event['verb']} with token {event['token']} was accepted"
                f" {event['asked_at'] - claim.latest_end:.3f} s after its lease"
            )
        newer = [
            other.claimed_at for other in history.claims.values() if other.token > event["token"]
        ]
        if newer and event["asked_at"] > min(newer) + 0.001:
            yield f"R4.4 {event['verb']} with stale token {event['token']} was accepted"
    if row is None:
        return
    for event in final:
        if event["token"] != row.token:
            yield f"R4.4 finished by token {event['token']}, the row says {row.token}"
        wanted = "succeeded" if event["verb"] == "complete" else "dead"
        if row.state != wanted:
            yield f"R4.2 {event['verb']} was accepted and the job is {row.state}"
    exhausted = row.state == "dead" and row.reason == "attempts_exhausted"
    if exhausted and row.attempt != row.max_attempts:
        yield f"R4.6 exhausted after {row.attempt} of {row.max_attempts} attempts"
    if newest > row.token:
        yield f"R4.4 token {newest} was claimed, the row says {row.token}"
    if history.starts and row.state == "succeeded" and row.attempt < len(history.starts):
        yield f"R4.3 {len(history.starts)} starts, the row counts {row.attempt} attempts"


def in_transaction(rows: Sequence[JobRow], effects: dict[int, list[int]]) -> list[str]:
    """For jobs that completed themselves in the transaction of their effect (R5.8): exactly one
    effect where the job succeeded, under the token that succeeded, and none elsewhere."""
    faults: list[str] = []
    for row in rows:
        tokens = effects.get(row.id, [])
        wanted = [row.token] if row.state == "succeeded" else []
        if tokens != wanted:
            faults.append(
                f"R5.8 job {row.id} is {row.state} with token {row.token},"
                f" its effects were committed with {tokens}"
            )
    return faults
