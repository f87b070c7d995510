"""What an error of PostgreSQL means: decided by its SQLSTATE alone, never by its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from .arguments import is_storable, unfit_text
from .errors import (
    DatabaseUnavailable,
    DeverError,
    InstallError,
    InvalidArgument,
    InvalidPayload,
    MissingRight,
    from_sqlstate,
)
from .postgres_pool import unavailable


def own_error(error: psycopg.Error, parameters: Mapping[str, Any], shown_url: str) -> DeverError:
    """What a failed call on an own connection means to the caller."""
    ours = _own(error)
    if ours is not None:
        return ours
    state = error.sqlstate
    if state is None:
        if isinstance(error, psycopg.DataError):
            return unfit_text(parameters)
        return unavailable(error, shown_url)
    if state == "25006":
        return DatabaseUnavailable(
            f"the database at {shown_url} cannot be written: {error.diag.message_primary}",
            hint="connect to the primary server, or look who set default_transaction_read_only",
        )
    if state[:2] in ("08", "53", "57", "58", "40") or state in ("55P03", "25P03"):
        return unavailable(error, shown_url)
    if state in ("42883", "3F000", "42P01", "42703"):
        return InstallError(
            f"Dever SQL is not installed in the database at {shown_url},"
            " or it is too old for this program",
            detail=error.diag.message_primary,
            hint="dever sql install URL",
        )
    if state == "42501":
        return MissingRight(
            f"the role may not do that: {error.diag.message_primary}",
            hint="grant it one of the roles dever_enqueue, dever_worker, dever_observe,"
            " dever_admin; dever doctor says which it has. The schema's owner may do everything",
        )
    if state[:2] == "22":
        wide = state == "22003" and any(_is_wide(value) for value in parameters.values())
        fault = InvalidPayload if _has_payload(parameters) and not wide else InvalidArgument
        # The server's text may quote the value.
        return fault(f"PostgreSQL cannot store a value of this call (SQLSTATE {state})")
    if state == "54001" and _has_payload(parameters):
        return InvalidPayload(
            "payload is nested too deeply", hint="a payload has at most 64 levels"
        )
    return DeverError(
        f"PostgreSQL refused the call (SQLSTATE {state}): {error.diag.message_primary}"
    )


def callers_error(error: Exception, parameters: Mapping[str, Any]) -> Exception:
    """The DeverError behind what a caller's driver raised, else that exception itself."""
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        ours = _own(candidate)
        if ours is not None:
            return ours
    if any(not is_storable(v) for v in parameters.values() if isinstance(v, str)):
        return unfit_text(parameters)
    return error


def _own(error: object) -> DeverError | None:
    """What one of our functions raised, told by its SQLSTATE alone (any driver)."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if not isinstance(state, str) or not state.startswith("DV"):
        return None
    diagnostics = getattr(error, "diag", error)
    return from_sqlstate(
        state,
        getattr(diagnostics, "message_primary", None) or getattr(error, "message", str(error)),
        getattr(diagnostics, "message_detail", None) or getattr(error, "detail", None),
        getattr(diagnostics, "message_hint", None) or getattr(error, "hint", None),
    )


def _has_payload(parameters: Mapping[str, Any]) -> bool:
    return "payload" in parameters or "payloads" in parameters


def _is_wide(value: object) -> bool:
    """An integer that no `integer` of the database can hold."""
    return isinstance(value, int) and not -(2**31) <= value < 2**31
