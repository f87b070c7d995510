"""A program whose role may enqueue and not register (R9.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from dever_sql import database
from dever_sql.declare import Job, Jobs
from dever_sql.errors import UnknownJob
from dever_sql.postgres import PostgresEngine
from dever_sql.sql_files import sql_directory

ROLE = "dever_test_only_enqueues"


@pytest.fixture
def job() -> Job[Any]:
    jobs = Jobs(database="only_enqueues")

    @jobs.job(retry=1, timeout=1_000, name="only.enqueues")
    def nothing() -> None: ...

    return nothing


@pytest.fixture
def owner(pg_url: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(pg_url)
    yield engine
    engine.close()


@pytest.fixture
def program(pg_url: str, connect: Callable[..., psycopg.Connection[Any]]) -> Iterator[None]:
    """The program connects as a role that lost the right to register."""
    session = connect()
    session.execute((sql_directory("postgresql") / "roles.sql").read_bytes())
    session.execute(
        "revoke execute on function dever.register(text, jsonb, interval, jsonb),"
        " dever.store_declarations(jsonb) from dever_enqueue"
    )
    session.execute(f"create role {ROLE} login in role dever_enqueue".encode())
    engine = PostgresEngine(pg_url.replace("//postgres@", f"//{ROLE}@"))
    database.use_engine("only_enqueues", engine)
    yield
    engine.close()
    session.execute(f"drop role {ROLE}".encode())


@pytest.mark.req("R9.3", "R3.1")
@pytest.mark.usefixtures("program")
def test_it_enqueues_what_others_have_registered(job: Job[Any], owner: PostgresEngine) -> None:
    owner.register(None, [job.contract()], timedelta(minutes=1))
    assert job.enqueue(key="k").created
    assert not job.enqueue(key="k").created


@pytest.mark.req("R9.3", "R3.6")
@pytest.mark.usefixtures("program")
def test_it_is_told_what_to_do_about_a_job_that_nobody_registered(job: Job[Any]) -> None:
    with pytest.raises(UnknownJob, match=r"only\.enqueues") as caught:
        job.enqueue(key="k")
    assert "dever sql contracts" in str(caught.value)
