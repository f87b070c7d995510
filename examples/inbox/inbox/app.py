"""What the inbox does: store each delivery once, count it once, tell others about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dever_sql import Store, record
from dever_sql import job as dever_job

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
    """Count one delivery and put a notification of it into the outbox.

    Count, notification and the job's completion are one commit, so that a worker killed at any
    moment leaves either all of it or nothing.
    """
    with transaction() as tx:
        event, body = tx.execute(
            "select event, body from delivery where id = :id", {"id": received.delivery}
        ).fetchone()
        about: Mapping[str, str] = json.loads(body).get("repository") or {}
        repository = about.get("full_name", "(none)")
        tx.execute(
            "insert into repository_statistic (repository, event, deliveries)"
            " values (:repository, :event, 1) on conflict (repository, event)"
            " do update set deliveries = repository_statistic.deliveries + 1",
            {"repository": repository, "event": event},
        )
        Store.of().outbox("notify").enqueue(
            {"delivery": received.delivery, "repository": repository, "event": event},
            key=received.delivery,
            max_attempts=20,
            connection=tx.connection,
        )
        dever_job.current().complete(tx.connection)


def summarise() -> None:
    """Write down how much has been counted at the beginning of this hour."""
    hour = datetime.now(UTC).strftime("%Y-%m-%dT%H:00Z")
    with transaction() as tx:
        tx.execute(
            "insert into hourly_summary (hour, repositories, deliveries)"
            " select :hour, count(distinct repository), coalesce(sum(deliveries), 0)"
            " from repository_statistic where 1 = 1"
            " on conflict (hour) do update set repositories = excluded.repositories,"
            " deliveries = excluded.deliveries",
            {"hour": hour},
        )


def report() -> list[tuple[str, int, int, int]]:
    """Repository, deliveries, kinds of event, most of one kind; the busiest first."""
    with transaction() as tx:
        rows: list[tuple[str, int, int, int]] = tx.execute(
            "select repository, deliveries, kinds_of_event, most_of_one_kind from inbox_report"
            " order by deliveries desc, repository"
        ).fetchall()
    return rows
