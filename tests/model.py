"""The engine as a few lines of Python: what PostgreSQL and SQLite are held to.

One queue, three contracts, no concurrency. Written from the specification, as plainly as possible:
a list that is scanned, a clock that is a number of microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

SECOND = 1_000_000
DAY = 86_400 * SECOND

MAX_ATTEMPTS = 3
VISIBILITY = 300 * SECOND
BLOCK_AFTER = 600 * SECOND
KEEP = {"succeeded": DAY, "dead": 30 * DAY, "cancelled": DAY}
# Backoff of the declared jobs and of messages: base and most.
JOB_BACKOFF = (1 * SECOND, 3 * SECOND)
MESSAGE_BACKOFF = (5 * SECOND, 3600 * SECOND)


@dataclass
class ModelJob:
    """A row. `n` stands for its id: a later row has a larger one."""

    n: int
    contract: str | None
    key: str | None
    run_at: int
    created_at: int
    max_attempts: int
    expires_at: int | None = None
    attempt: int = 0
    token: int = 0
    lease_until: int | None = None
    worker: str | None = None
    reason: str | None = None
    error: str | None = None
    blocked: bool = False
    outcome: str | None = None
    finished_at: int | None = None

    def state(self, now: int) -> str:
        if self.outcome is not None:
            return self.outcome
        if self.blocked:
            return "blocked"
        if self.lease_until is not None and self.lease_until > now:
            return "running"
        return "scheduled" if self.run_at > now else "ready"

    def is_free(self, now: int) -> bool:
        return self.lease_until is None or self.lease_until <= now

    def is_expired(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass
class Model:
    now: int
    jobs: list[ModelJob] = field(default_factory=list)
    last_n: int = 0
    last_token: int = 0
    # Until when some worker runs the contract; what was never run counts from its creation.
    live_until: dict[str, int] = field(default_factory=dict)
    created: int = 0
    # Targets of which a live worker runs another schema.
    other_schema_live: frozenset[str] = frozenset()

    def live(self) -> list[ModelJob]:
        return [job for job in self.jobs if job.outcome is None]

    def with_key(self, contract: str | None, key: str | None) -> ModelJob | None:
        for job in self.live():
            if key is not None and (job.contract, job.key) == (contract, key):
                return job
        return None

    # Clients

    def insert(
        self,
        contract: str | None,
        key: str | None,
        delay: int = 0,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        expires: int | None = None,
    ) -> tuple[ModelJob, bool]:
        found = self.with_key(contract, key)
        if found is not None:
            return found, False
        self.last_n += 1
        job = ModelJob(
            n=self.last_n,
            contract=contract,
            key=key,
            run_at=self.now + delay,
            created_at=self.now,
            max_attempts=max_attempts,
            expires_at=None if expires is None else self.now + expires,
        )
        self.jobs.append(job)
        return job, True

    # Workers

    def claim(
        self, worker: str, n: int, lease: int | None, contracts: list[str] | None
    ) -> list[ModelJob]:
        """Copies: a claim is what its holder knows."""
        due = [
            job
            for job in self.live()
            if not job.blocked
            and job.run_at <= self.now
            and job.is_free(self.now)
            and job.attempt < job.max_attempts
            and not job.is_expired(self.now)
            and (job.contract is None if contracts is None else job.contract in contracts)
        ]
        due.sort(key=lambda job: (job.run_at, job.n))
        for job in due[: max(n, 0)]:
            self.last_token += 1
            job.attempt += 1
            job.token = self.last_token
            job.lease_until = self.now + (VISIBILITY if lease is None else lease)
            job.worker = worker
        return [replace(job) for job in due[: max(n, 0)]]

    def held(self, claim: ModelJob) -> ModelJob | None:
        for job in self.live():
            if (job.n, job.token) == (claim.n, claim.token) and not job.is_free(self.now):
                return job
        return None

    def renew(self, claim: ModelJob, lease: int) -> bool:
        job = self.held(claim)
        if job is None:
            return False
        job.lease_until = self.now + lease
        return True

    def finish(
        self, job: ModelJob, outcome: str, reason: str | None = None, error: str | None = None
    ) -> None:
        job.outcome, job.reason = outcome, reason
        if outcome == "succeeded":
            job.error = None
        elif error is not None:  # else the one of the attempt before stays
            job.error = error
        job.finished_at, job.lease_until, job.blocked = self.now, None, False

    def complete(self, claim: ModelJob) -> bool:
        job = self.held(claim)
        if job is None:
            return False
        self.finish(job, "succeeded")
        return True

    def retry(self, claim: ModelJob, reason: str, error: str | None, delay: int | None) -> str:
        job = self.held(claim)
        if job is None:
            return "lost"
        if job.attempt >= job.max_attempts:
            self.finish(job, "dead", reason, error)
            return "dead"
        base, most = MESSAGE_BACKOFF if job.contract is None else JOB_BACKOFF
        wait = min(base * 2 ** (job.attempt - 1), most) if delay is None else max(delay, 0)
        job.run_at = self.now + wait
        job.lease_until, job.worker, job.reason, job.error = None, None, reason, error
        return "retried"

    def bury(self, claim: ModelJob, reason: str, error: str | None) -> bool:
        job = self.held(claim)
        if job is None:
            return False
        self.finish(job, "dead", reason, error)
        return True

    def block(self, claim: ModelJob, reason: str, error: str | None) -> bool:
        job = self.held(claim)
        if job is None:
            return False
        job.blocked, job.reason, job.error = True, reason, error
        job.lease_until, job.worker = None, None
        return True

    def release(self, claim: ModelJob) -> bool:
        job = self.held(claim)
        if job is None:
            return False
        if job.attempt >= job.max_attempts:
            self.finish(job, "dead", "interrupted")
        else:
            job.lease_until, job.worker = None, None
        return True

    def is_stale(self, contract: str | None) -> bool:
        if contract is None:
            return False
        since = self.now - BLOCK_AFTER
        return self.created <= since and self.live_until.get(contract, 0) <= since

    def sweep(self) -> None:
        """As often as it takes."""
        for job in self.live():
            if job.blocked:
                if (
                    job.reason in ("unknown_target", "schema_mismatch")
                    and job.contract is not None
                    and self.live_until.get(job.contract, 0) > self.now
                ):
                    job.blocked, job.reason = False, None
                    job.attempt = min(job.attempt, job.max_attempts - 1)
            elif job.run_at > self.now or not job.is_free(self.now):
                continue
            elif job.is_expired(self.now):
                self.finish(job, "dead", "expired")
            elif job.attempt >= job.max_attempts:
                self.finish(job, "dead", "attempts_exhausted")
            elif self.is_stale(job.contract):
                job.blocked, job.error = True, None
                job.lease_until, job.worker = None, None
                job.reason = (
                    "schema_mismatch"
                    if job.contract in self.other_schema_live
                    else "unknown_target"
                )
        self.jobs = [job for job in self.jobs if not self._is_pruned(job)]

    def _is_pruned(self, job: ModelJob) -> bool:
        return (
            job.outcome is not None
            and job.finished_at is not None
            and job.finished_at < self.now - KEEP[job.outcome]
        )

    # Operators

    def find(self, n: int) -> ModelJob | None:
        return next((job for job in self.jobs if job.n == n), None)

    def cancel(self, n: int) -> str:
        job = self.find(n)
        if job is None:
            return "not_found"
        if job.outcome is not None:
            return "finished"
        self.finish(job, "cancelled", "cancelled")
        return "cancelled"

    def redrive(self, n: int) -> str:
        job = self.find(n)
        if job is None or not (job.blocked or job.outcome == "dead"):
            return "not_found"
        if job.outcome == "dead" and self.with_key(job.contract, job.key) is not None:
            return "key_in_use"
        job.outcome, job.finished_at, job.blocked, job.expires_at = None, None, False, None
        job.run_at, job.attempt, job.reason, job.error = self.now, 0, None, None
        job.worker, job.lease_until = None, None
        return "pending"

    def drop(self, n: int) -> str:
        job = self.find(n)
        if job is None or not (job.blocked or job.outcome == "dead"):
            return "not_found"
        self.jobs.remove(job)
        return "dropped"

    # Time

    def boundaries(self) -> list[int]:
        """The instants ahead at which something changes by itself."""
        instants = {
            instant
            for job in self.live()
            for instant in (job.run_at, job.lease_until, job.expires_at)
            if instant is not None
        }
        instants |= {until + BLOCK_AFTER for until in self.live_until.values()}
        instants |= set(self.live_until.values()) | {self.created + BLOCK_AFTER}
        instants |= {
            job.finished_at + KEEP[job.outcome]
            for job in self.jobs
            if job.outcome is not None and job.finished_at is not None
        }
        return sorted(at for at in instants if self.now + 1 < at < self.now + 60 * DAY)


def as_duration(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)
