"""One spelling of statements for both databases: parameters are named `:name`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any


async def run(tx: Any, statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """Run one statement in the open transaction `tx`; its rows."""
    if not isinstance(tx.connection, sqlite3.Connection):
        statement = re.sub(r":(\w+)", r"%(\1)s", statement)
    return await tx.execute(statement, values or {})
