"""python -m shop prepare: install Dever SQL and the shop's tables where they are missing."""

from __future__ import annotations

import asyncio
import sys

from dever_sql import database

from .order import app


def main(arguments: list[str]) -> int:
    if arguments != ["prepare"]:
        print(__doc__, file=sys.stderr)
        return 2
    database.engine_for("default").install()
    asyncio.run(app.prepare())
    database.close_all()
    return 0


sys.exit(main(sys.argv[1:]))
