"""What an installation in an SQLite file consists of, as sorted lines of text."""

from __future__ import annotations

import re
import sqlite3


def sqlite_snapshot(connection: sqlite3.Connection) -> list[str]:
    """Views, triggers and indexes by their text; tables by their parts, in any layout: an added
    column ends up in another place of the text that SQLite keeps."""
    lines: list[str] = []
    for kind, name, text in connection.execute(
        "select type, name, sql from sqlite_master where sql is not null"
    ):
        if kind != "table":
            lines.append(f"{kind} {name}: {text}")
            continue
        plain = " ".join(re.sub(r"--[^\n]*", "", text).split())
        body, _, options = plain.partition("(")[2].rpartition(")")
        lines.append(f"table {name} options: {options}")
        lines += [f"table {name}: {part}" for part in _parts(body)]
        columns = connection.execute("select name, type from pragma_table_xinfo(?)", [name])
        lines += [f"table {name} column {column}: {type}" for column, type in columns]
    return sorted(lines)


def _parts(body: str) -> list[str]:
    """Columns and constraints: divided at the commas outside all parentheses."""
    parts, depth = [""], 0
    for character in body:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
