"""Both databases against the golden examples of the wire format: what an enqueue takes, refuses."""

from __future__ import annotations

from typing import Any

import pytest
from samples import LONG, declaration
from wire_cases import WireCase, cases, schemas

from dever_sql.engine import Engine
from dever_sql.errors import InvalidPayload

SCHEMAS = {entry["name"]: entry for entry in schemas()}


def outcome(engine: Engine, target: str, case: WireCase) -> str | None:
    """What is wrong with how the engine judged the case; None when it is right."""
    try:
        engine.enqueue(target, case.label, case.payload)
    except InvalidPayload as error:
        message = str(error)
        if case.path is None:
            return f"{case.label}: refused: {message[:200]}"
        if not case.unparsable and case.path not in message:
            return f"{case.label}: {case.path} is not in: {message[:200]}"
        return None
    except Exception as error:  # so that one table shows every case
        return None if case.unparsable else f"{case.label}: {error!r}"
    return None if case.path is None else f"{case.label}: accepted"


@pytest.mark.req("R2.2", "R2.3", "R2.4", "R3.6")
@pytest.mark.parametrize("name", list(SCHEMAS))
def test_golden_payloads(engine: Engine, name: str) -> None:
    entry: dict[str, Any] = SCHEMAS[name]
    target = f"golden.job.{name}"
    engine.register(None, [declaration(target, entry["schema"])], LONG)
    examples = [case for case in cases(engine.kind) if case.schema_name == name]
    wrong = [fault for case in examples if (fault := outcome(engine, target, case))]
    assert not wrong, "\n" + "\n".join(wrong)
    accepted = sum(case.path is None for case in examples)
    assert len(engine.jobs(target=target, limit=1_000)) == accepted
