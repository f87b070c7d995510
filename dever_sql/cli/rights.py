"""Which of the four rights of `sql/roles.sql` the connected role has (R9.3)."""

from __future__ import annotations

from typing import Final

from dever_sql.engine import Engine
from dever_sql.postgres import PostgresEngine

from .diagnosis import Check

_FUNCTIONS: Final = {
    "enqueue": "dever.enqueue(text, text, jsonb, timestamptz)",
    "worker": "dever.claim(text, text, integer, interval, integer[])",
    "observe": "dever.get_job(bigint)",
    "admin": "dever.redrive(bigint[])",
}
"""One function that stands for each right."""

_QUERY: Final = "select pg_catalog.quote_ident(current_user), " + ", ".join(
    "coalesce(pg_catalog.has_function_privilege("
    f"pg_catalog.to_regprocedure('{function}'), 'execute'), false),"
    f" pg_catalog.to_regrole('dever_{right}') is not null"
    for right, function in _FUNCTIONS.items()
)


def check_rights(engine: Engine) -> Check | None:
    """Not ok without the right to observe, which the rest of `dever doctor` needs. The others may
    be missing on purpose: then the hint says how to get them. None: an SQLite file has no roles."""
    if not isinstance(engine, PostgresEngine):
        return None
    role, *answers = engine.catalogue(_QUERY)[0]
    granted = dict(zip(_FUNCTIONS, answers[0::2], strict=True))
    role_exists = dict(zip(_FUNCTIONS, answers[1::2], strict=True))
    having = [right for right in _FUNCTIONS if granted[right]]
    missing = [right for right in _FUNCTIONS if not granted[right]]
    found = f"{role} has {', '.join(having) or 'none'}"
    if not missing:
        return Check("rights", True, found)
    hint = f"grant {', '.join(f'dever_{right}' for right in missing)} to {role} (those it needs)"
    if not all(role_exists[right] for right in missing):
        hint = f"run sql/roles.sql as the owner, then: {hint}"
    if not granted["observe"]:
        hint += "; the rest of dever doctor needs observe"
    return Check("rights", granted["observe"], f"{found}; not {', '.join(missing)}", hint)
