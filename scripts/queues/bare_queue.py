"""The least a queue in PostgreSQL can do: insert, `delete ... returning`. No lease, retry or key.

A crash after the delete loses the jobs: it is the floor, not an alternative.
"""

from __future__ import annotations

import itertools

import psycopg
from measured import BATCH, arguments, measured
from psycopg.types.json import Jsonb

INSERT = "insert into bare_queue (payload) values (%s)"
TAKE = """
    delete from bare_queue where ctid = any(array(
        select ctid from bare_queue order by id limit %s for update skip locked
    ))
    returning id, payload
"""


def main() -> None:
    url, phase, count, slots = arguments()
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(
        "create table if not exists bare_queue"
        " (id bigint generated always as identity primary key, payload jsonb not null)"
    )
    with measured():
        if phase == "enqueue-one":
            for number in range(count):
                connection.execute(INSERT, [Jsonb({"number": number})])
        elif phase == "enqueue-batch":
            numbers = iter(range(count))
            while batch := list(itertools.islice(numbers, BATCH)):
                connection.execute(
                    "insert into bare_queue (payload) select unnest(%s::jsonb[])",
                    [[Jsonb({"number": number}) for number in batch]],
                )
        else:
            taken = 0
            while rows := connection.execute(TAKE, [slots]).fetchall():
                taken += len(rows)
            assert taken == count, f"{taken} of {count} jobs ran"


main()
