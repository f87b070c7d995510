"""What may happen to one key whose job several sessions work on at the same time.

A judge hears what each session called, what it was told and how its transaction ended. What changed
something must be legal in the order of the commits, down to the last column; what changed nothing
must have been true at some instant of the call, or another session was in its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

LEASE = 60_000_000
BACKOFF_BASE = 1_000_000
"""Of the declared job, in microseconds, as all instants here."""
BLOCKED = 2**63 - 1
"""The run_at of a blocked job."""

STARTS = ("ready", "running", "lapsed", "exhausted", "blocked", "dead")
HOLDERS = ("renew", "complete", "retry", "release")
NEWEST = " newest"
"""Such a verb comes with the newest token that was handed out, one without with the first."""
VERBS = (
    "claim",
    *HOLDERS,
    f"complete{NEWEST}",
    f"renew{NEWEST}",
    "sweep",
    "cancel",
    "redrive",
    "enqueue",
)
WAITING_VERBS = ("cancel", "redrive", "enqueue")
"""Nobody else ever waits for a row."""


@dataclass(frozen=True)
class Live:
    """The unfinished job of the key."""

    id: int
    token: int
    attempt: int
    max_attempts: int
    run_at: int
    lease_until: int | None = None
    asked_at: int = field(default=BLOCKED, compare=False)
    """A call that had to wait read the clock before or after that: run_at is no earlier."""

    def is_free(self, now: int) -> bool:
        return self.lease_until is None or self.lease_until <= now

    def is_claimable(self, now: int) -> bool:
        return self.run_at <= now and self.is_free(now) and self.attempt < self.max_attempts

    def is_exhausted(self, now: int) -> bool:
        return self.run_at <= now and self.is_free(now) and self.attempt >= self.max_attempts

    def is_held(self, id: int, token: int, now: int) -> bool:
        return (self.id, self.token) == (id, token) and not self.is_free(now)


@dataclass(frozen=True)
class Ended:
    """A finished job of the key."""

    id: int
    outcome: str
    token: int
    attempt: int
    max_attempts: int


@dataclass(frozen=True)
class State:
    """All jobs of the key."""

    live: Live | None
    ended: frozenset[Ended] = frozenset()

    def outcome(self, id: int) -> str | None:
        return next((job.outcome for job in self.ended if job.id == id), None)

    def end(self, outcome: str) -> State:
        assert self.live is not None
        live = self.live
        job = Ended(live.id, outcome, live.token, live.attempt, live.max_attempts)
        return State(None, self.ended | {job})


@dataclass
class Call:
    """One verb of one session. `answer`: None for nothing done, else what the verb says; a claim
    says (id, token, attempt, lease_until), an enqueue (id, created)."""

    session: int
    verb: str
    id: int
    token: int
    asked_at: int
    since: int
    """The first committed state it can have seen."""
    largest: int
    """The largest token that was handed out before."""
    beside: bool
    """Whether another session was in the middle of its transaction meanwhile."""
    answer: tuple[int, ...] | str | None = None
    error: str | None = None
    answered_at: int | None = None
    waited: bool = False

    def __str__(self) -> str:
        told = self.error or (self.answer if self.answered_at is not None else "no answer")
        waits = ", waited" if self.waited else ""
        return f"{self.session}: {self.verb} told {told} at {self.answered_at}{waits}"


class Illegal(Exception):
    """What a session was told cannot be."""


@dataclass
class Judge:
    """`strict`: the sessions' transactions are stricter than READ COMMITTED, so the database may
    refuse with 40001. `skips`: rows that another session has locked are skipped, and a token is
    never given twice; else there is one writer, and one that was rolled back gave no token."""

    states: list[State]
    token: int
    strict: bool = False
    skips: bool = True
    open: dict[int, Call] = field(default_factory=dict)
    waiting: dict[int, Call] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    refused: bool = False
    """The database refused something with 40001."""
    first_token: int = 0

    def __post_init__(self) -> None:
        self.first_token = self.token

    def asked(self, session: int, verb: str, id: int, now: int, since: int | None) -> Call:
        """A session calls; `since`: the state that its snapshot shows, if it has one already."""
        for other in self.waiting.values():
            other.beside = True
        call = Call(
            session,
            verb.removesuffix(NEWEST),
            id,
            self.token if verb.endswith(NEWEST) else self.first_token,
            asked_at=now,
            since=len(self.states) - 1 if since is None else since,
            largest=self.token,
            beside=bool(self.open or self.waiting),
        )
        self.waiting[session] = call
        return call

    def answered(self, call: Call, now: int) -> None:
        del self.waiting[call.session]
        self.open[call.session] = call
        call.answered_at = now
        if not self.skips:
            # One writer: the call began when the last one's transaction was over.
            call.asked_at, call.since, call.largest = now, len(self.states) - 1, self.token
        self.history.append(str(call))
        if call.verb == "claim" and isinstance(call.answer, tuple):
            if call.answer[1] <= call.largest:
                self._fault(f"token {call.answer[1]} is not larger than {call.largest}")
            if self.skips:
                self.token = max(self.token, call.answer[1])
        if call.waited and call.verb not in WAITING_VERBS and self.skips:
            self._fault(f"{call.verb} waited for another session")
        if call.error is not None:
            self._refused_with(call.error, call.verb)
        else:
            self._try(call)

    def _refused_with(self, error: str, what: str) -> None:
        self.refused = self.refused or error == "40001"
        if not (self.strict and error == "40001"):
            self._fault(f"{what} failed with {error}")

    def ended(self, session: int, committed: bool, error: str | None = None) -> None:
        """`error`: the commit failed."""
        call = self.open.pop(session)
        self.history.append(f"{session}: {'commit' if committed else 'rollback'} {error or ''}")
        if error is not None:
            self._refused_with(error, "commit")
        if committed and error is None and call.error is None:
            state = self._try(call)
            if state != self.states[-1]:
                self.states.append(state)
            if call.verb == "claim" and isinstance(call.answer, tuple):
                self.token = max(self.token, call.answer[1])

    def compare(self, found: State) -> None:
        """At the end: what is in the tables."""
        last = self.states[-1]
        if (
            last.live is not None
            and found.live is not None
            and last.live.asked_at <= found.live.run_at <= last.live.run_at
        ):
            last = replace(last, live=replace(last.live, run_at=found.live.run_at))
        if found != last:
            self._fault(f"the tables say {found}, the commits {self.states[-1]}")

    def _try(self, call: Call) -> State:
        try:
            return self._after(call)
        except Illegal as illegal:
            self._fault(str(illegal))
            return self.states[-1]

    def _fault(self, text: str) -> None:
        self.faults.append(text)

    def _after(self, call: Call) -> State:
        """The newest committed state changed by the call; raises Illegal."""
        state, now = self.states[-1], call.answered_at
        assert now is not None
        live, answer = state.live, call.answer
        if self._is_nothing(call):
            self._check_nothing(call)
            return state
        match call.verb:
            case "claim":
                assert isinstance(answer, tuple)
                self._require(call, live is not None and live.is_claimable(now))
                assert live is not None
                id, token, attempt, lease_until = answer
                claimed = replace(
                    live, token=token, attempt=live.attempt + 1, lease_until=now + LEASE
                )
                self._require(
                    call, (id, attempt, lease_until) == (live.id, claimed.attempt, now + LEASE)
                )
                return replace(state, live=claimed)
            case "renew" | "complete" | "retry" | "release":
                self._require(call, live is not None and live.is_held(call.id, call.token, now))
                assert live is not None
                return self._held(call, state, live, now)
            case "sweep":
                self._require(call, answer == "exhausted" and live is not None)
                assert live is not None
                self._require(call, live.is_exhausted(now))
                return state.end("dead")
            case "cancel":
                self._require(call, answer == "cancelled" and live is not None)
                assert live is not None
                self._require(call, live.id == call.id)
                return state.end("cancelled")
            case "redrive":
                self._require(call, answer == "pending")
                return self._redriven(call, state, now)
            case _:
                assert isinstance(answer, tuple)
                self._require(call, live is None)
                self._require(call, state.outcome(answer[0]) is None)
                # Due when it was asked for, however long that waited.
                return replace(state, live=Live(answer[0], 0, 0, 3, call.asked_at))

    def _held(self, call: Call, state: State, live: Live, now: int) -> State:
        is_last = live.attempt >= live.max_attempts
        match call.verb:
            case "renew":
                return replace(state, live=replace(live, lease_until=now + LEASE))
            case "complete":
                return state.end("succeeded")
            case "retry":
                self._require(call, call.answer == ("dead" if is_last else "retried"))
                if is_last:
                    return state.end("dead")
                run_at = now + BACKOFF_BASE * 2 ** (live.attempt - 1)
                return replace(state, live=replace(live, run_at=run_at, lease_until=None))
            case _:
                if is_last:
                    return state.end("dead")
                return replace(state, live=replace(live, lease_until=None))

    def _redriven(self, call: Call, state: State, now: int) -> State:
        live = state.live
        if live is not None:
            self._require(call, live.id == call.id and live.run_at == BLOCKED)
            again = replace(live, run_at=now, attempt=0, asked_at=call.asked_at)
            return replace(state, live=again)
        self._require(call, state.outcome(call.id) == "dead")
        dead = next(job for job in state.ended if job.id == call.id)
        again = Live(call.id, dead.token, 0, dead.max_attempts, now, asked_at=call.asked_at)
        return State(again, state.ended - {dead})

    def _is_nothing(self, call: Call) -> bool:
        if call.verb == "enqueue":
            return isinstance(call.answer, tuple) and not call.answer[1]
        return call.answer in (None, "lost", "busy", "finished", "not_found", "key_in_use")

    def _check_nothing(self, call: Call) -> None:
        """Raises Illegal unless doing nothing was right at some instant of the call."""
        if call.beside and self.skips and call.answer in (None, "busy"):
            return
        instants = {call.asked_at, call.answered_at or call.asked_at}
        seen = self.states[call.since :]
        if not any(self._is_true(call, state, now) for state in seen for now in instants):
            raise Illegal(f"{call} was never true; seen: {seen}")

    def _is_true(self, call: Call, state: State, now: int) -> bool:
        live = state.live
        match call.verb, call.answer:
            case "claim", None:
                return live is None or not live.is_claimable(now)
            case "sweep", None:
                return live is None or not live.is_exhausted(now)
            case "cancel", "finished":
                return state.outcome(call.id) is not None
            case "redrive", "not_found":
                is_blocked = live is not None and live.id == call.id and live.run_at == BLOCKED
                return not is_blocked and state.outcome(call.id) != "dead"
            case "redrive", "key_in_use":
                return state.outcome(call.id) == "dead" and live is not None
            case "enqueue", (id, _):
                return live is not None and live.id == id
            case _, "lost":
                return live is None or not live.is_held(call.id, call.token, now)
            case _:
                return False

    def _require(self, call: Call, condition: bool) -> None:
        if not condition:
            raise Illegal(f"{call} cannot be in {self.states[-1]}")
