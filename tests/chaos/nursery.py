"""Workers forked from a parent that has everything imported: a new one costs milliseconds.

    python -m chaos.nursery URL LOG_DIRECTORY LEASE_MS

Reads names from its input, forks a worker for each and answers with its process id. Says on its
error output how each worker ended. Ends its workers, kindly, when its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from chaos.effect_log import EffectLog
from worker_tasks import task

from dever_sql import job
from dever_sql.database import open_engine
from dever_sql.engine import Engine
from dever_sql.worker import Worker, WorkerOptions

SLOTS = 8
RETRY = 12
"""Attempts of a job: kills use them up, and only the jobs of `fragile` are meant to die of it."""
URL = ""
log: EffectLog


class Recorded:
    """An engine that writes down what it was answered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def claim(self, *arguments: Any, **more: Any) -> Any:
        claimed = self._engine.claim(*arguments, **more)
        for row in claimed:
            log.write(
                "claimed",
                id=row.id,
                token=row.token,
                attempt=row.attempt,
                lease_until=row.lease_until.timestamp(),
            )
        return claimed

    def renew(self, ids: Sequence[int], tokens: Sequence[int], lease: timedelta) -> Any:
        return self._recorded("renew", ids, tokens, lease)

    def complete(self, ids: Sequence[int], tokens: Sequence[int]) -> Any:
        return self._recorded("complete", ids, tokens)

    def bury(self, ids: Sequence[int], tokens: Sequence[int], *more: Any) -> Any:
        return self._recorded("bury", ids, tokens, *more)

    def release(self, ids: Sequence[int], tokens: Sequence[int]) -> Any:
        return self._recorded("release", ids, tokens)

    def retry(self, ids: Sequence[int], tokens: Sequence[int], *more: Any) -> Any:
        return self._recorded("retry", ids, tokens, *more)

    def _recorded(
        self,
        verb: str,
        ids: Sequence[int],
        tokens: Sequence[int],
        *more: Any,
    ) -> Any:
        token = dict(zip(ids, tokens, strict=True))
        asked_at = time.time()
        # Before it is sent: an answer that never comes may have been a yes.
        log.write("asked", verb=verb, ids=list(ids), tokens=list(tokens))
        verdicts = getattr(self._engine, verb)(ids, tokens, *more)
        for verdict in verdicts:
            if verb == "retry":
                outcome = verdict.outcome
                word = "dead" if outcome == "dead" else "retry"
                accepted = None if outcome == "busy" else outcome != "lost"
                self._verdict(word, verdict.id, token[verdict.id], asked_at, accepted)
            else:
                self._verdict(verb, verdict.id, token[verdict.id], asked_at, verdict.ok)
        return verdicts

    def _verdict(
        self, verb: str, id: int, token: int, asked_at: float, accepted: bool | None
    ) -> None:
        log.write("verdict", verb=verb, id=id, token=token, asked_at=asked_at, accepted=accepted)


# What jobs do is decided by their key and attempt alone, so that a seed replays it.


def begin(run_at: float) -> random.Random:
    context = job.current()
    log.write(
        "started",
        id=context.id,
        key=context.key,
        token=context.token,
        attempt=context.attempt,
        max_attempts=context.max_attempts,
        run_at=run_at,
    )
    seed = hashlib.sha256(f"{context.key} {context.attempt}".encode()).digest()
    return random.Random(seed)


def end() -> None:
    context = job.current()
    log.write("effect", id=context.id, token=context.token)


async def aloop(run_at: float) -> None:
    """Fails, asks for a retry, gives up, or takes a while, each now and then."""
    luck = begin(run_at)
    what = luck.random()
    await asyncio.sleep(luck.uniform(0, 0.02) if what < 0.97 else 0.6)
    if 0.10 < what < 0.14:
        raise ValueError("this attempt fails")
    if 0.14 < what < 0.16:
        raise job.Retry(delay=timedelta(milliseconds=luck.randrange(500)))
    if 0.16 < what < 0.165:
        raise job.Dead("gave up")
    end()


def thread(run_at: float) -> None:
    luck = begin(run_at)
    time.sleep(luck.uniform(0, 0.01))
    end()


def fragile(run_at: float) -> None:
    """Two attempts only: kills make some of them exhausted."""
    luck = begin(run_at)
    time.sleep(luck.uniform(0, 0.05))
    end()


def transactional(run_at: float) -> None:
    """Its effect is a row, committed together with the completion (R5.8)."""
    luck = begin(run_at)
    context = job.current()
    with contextlib.closing(connect(URL)) as connection:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("begin immediate")
        connection.execute(f"insert into effect values ({context.id}, {context.token})")
        context.complete(connection)
        time.sleep(luck.uniform(0, 0.005))
        if luck.random() < 0.05:
            connection.rollback()
        else:
            connection.commit()
        if luck.random() < 0.05:
            raise ValueError("after the end of the transaction")


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
        connection.isolation_level = None
        return connection
    return psycopg.connect(url, application_name="chaos handler")


def tasks() -> list[Any]:
    def decode(payload: str) -> list[float]:
        return [float(payload)]

    options: dict[str, Any] = {"decode": decode, "base_ms": 50, "timeout": 20.0}
    return [
        task(aloop, retry=RETRY, **options),
        task(thread, retry=RETRY, **options),
        task(transactional, retry=RETRY, **options),
        task(fragile, retry=2, **options),
    ]


def work(url: str, directory: Path, lease_ms: int, name: str) -> int:
    global URL, log
    URL = url
    log = EffectLog(directory, "worker")
    worker = Worker(
        Recorded(open_engine(url)),  # type: ignore[arg-type]
        tasks(),
        WorkerOptions(workers=SLOTS, poll_ms=100, lease_ms=lease_ms, shutdown_ms=10_000, name=name),
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    worker.start()
    while True:
        with contextlib.suppress(TimeoutError):
            return worker.wait(0.2)


def main() -> None:
    url, directory, lease_ms = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    children: set[int] = set()
    reading = True
    while reading or children:
        ready, _, _ = select.select([sys.stdin] if reading else [], [], [], 0.05)
        if ready:
            name = sys.stdin.readline().strip()
            if not name:
                reading = False
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                continue
            # A worker that is told to stop before it can hear would just die of it.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            pid = os.fork()
            signal.pthread_sigmask(
                signal.SIG_UNBLOCK if pid else signal.SIG_BLOCK, [signal.SIGTERM]
            )
            if pid == 0:
                os._exit(work(url, directory, lease_ms, name))
            children.add(pid)
            print(pid, flush=True)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                # One write: the workers' lines go to the same file.
                os.write(sys.stderr.fileno(), f"\nexit {pid} {code}\n".encode())


if __name__ == "__main__":
    main()
