"""What the inbox does: store each delivery once, count each delivery once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dever_sql import job as dever_job
from dever_sql import record

from . import job
from .database import transaction


@record
class Received:
    delivery: str


@dataclass(frozen=True)
class Receipt:
    stored: int
    known: int


def receive(lines: Iterable[str]) -> Receipt:
    """Store deliveries and enqueue their jobs: each delivery and its job in one transaction.

    The row decides whether a delivery is new; the job's key only holds while the job is unfinished.
    """
    stored = known = 0
    for line in lines:
        delivery: Mapping[str, Any] = json.loads(line)
        with transaction() as tx:
            inserted = tx.execute(
                "insert into delivery (id, event, action, body)"
                " values (:id, :event, :action, :body) on conflict (id) do nothing",
                {
                    "id": delivery["delivery"],
                    "event": delivery["event"],
                    "action": delivery.get("action"),
                    "body": json.dumps(delivery["payload"]),
                },
            ).rowcount
            if inserted:
                received = Received(delivery=delivery["delivery"])
                job.count.enqueue(received, key=received.delivery, connection=tx.connection)
        stored, known = stored + inserted, known + 1 - inserted
    return Receipt(stored=stored, known=known)


def count(received: Received) -> None:
    """Count one delivery. The count and the job's completion are one commit, so that a worker
    killed at any moment leaves either both or neither."""
    with transaction() as tx:
        event, body = tx.execute(
            "select event, body from delivery where id = :id", {"id": received.delivery}
        ).fetchone()
        repository = (json.loads(body).get("repository") or {}).get("full_name", "(none)")
        tx.execute(
            "insert into repository_statistic (repository, event, deliveries)"
            " values (:repository, :event, 1) on conflict (repository, event)"
            " do update set deliveries = repository_statistic.deliveries + 1",
            {"repository": repository, "event": event},
        )
        dever_job.current().complete(tx.connection)


def report() -> list[tuple[str, int, int, int]]:
    """Repository, deliveries, kinds of event, most of one kind; the busiest first."""
    with transaction() as tx:
        return tx.execute(
            "select repository, deliveries, kinds_of_event, most_of_one_kind from inbox_report"
            " order by deliveries desc, repository"
        ).fetchall()
