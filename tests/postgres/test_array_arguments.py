"""Arrays as only SQL can write them: of two dimensions, or not beginning at 1 (R3.6, R3.7)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb
from samples import TARGET, declaration
from sessions import Session

Connect = Callable[..., Session]

ODD_ARRAYS = {
    "two dimensions": "array[array[{0}]]",
    "begins at 5": "('[5:5]=' || array[{0}]::text)",
}


def registered(connect: Connect) -> Session:
    session = connect()
    session.execute("select from dever.register(null, %s, '1 minute')", [Jsonb([declaration()])])
    return session


@pytest.mark.req("R3.6")
@pytest.mark.parametrize("form", ODD_ARRAYS)
def test_payload_is_checked_wherever_it_stands(connect: Connect, form: str) -> None:
    session = registered(connect)
    payloads = ODD_ARRAYS[form].format("'{\"evil\": 1}'::jsonb")
    with pytest.raises(psycopg.Error) as refused:
        session.execute(
            f"select * from dever.enqueue_many('{TARGET}', array['k'], ({payloads})::jsonb[])"
        )
    assert refused.value.sqlstate == "DV005"


@pytest.mark.req("R3.7")
@pytest.mark.parametrize("form", ODD_ARRAYS)
def test_run_at_and_key_hold_wherever_they_stand(connect: Connect, form: str) -> None:
    session = registered(connect)
    keys = ODD_ARRAYS[form].format("'k'")
    run_ats = ODD_ARRAYS[form].format("'2999-01-01 00:00:00+00'")
    session.execute(
        f"select * from dever.enqueue_many('{TARGET}', ({keys})::text[], null,"
        f" ({run_ats})::timestamptz[])"
    )
    row = session.execute("select key, state from dever.jobs").fetchone()
    assert row == ("k", "scheduled")


@pytest.mark.req("R7.1")
def test_sleeping_over_a_queue_stores_no_bad_name(connect: Connect) -> None:
    session = connect()
    for name in ("", " ", "x" * 256):
        with pytest.raises(psycopg.Error) as refused:
            session.execute("select * from dever.queue_ids(array[%s::text])", [name])
        assert refused.value.sqlstate == "DV001"
    session.execute("select * from dever.queue_ids(array['__dever_outbox:mail', null])")
    assert session.execute("select count(*) from dever.queue").fetchone() == (0,)
