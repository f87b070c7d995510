"""The upgrade from a released schema to the current one: what differs, as a script.

What can simply be replaced is taken from the current source: functions, views, comments, rights; on
SQLite views and triggers. Tables, indexes and rows are changed by a part written by hand,
`upgrade/A--B.sql`; it runs before what is replaced. On PostgreSQL the comment above each of its
statements ends with the lock that it takes, and the upgrade takes all of these first:

    -- lock: access exclusive on dever.job
    -- lock: none

New columns belong at the end of a table, in the source as well: nothing else compares as equal.
A function that is dropped and made anew loses the rights that roles.sql gave it; run that again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sql_statements import Statement, plain, postgres_statements, sqlite_statements

_LOCK = re.compile(r"-- lock: (?:none|(?P<mode>[a-z ]+) on (?P<relation>[\w.]+))$", re.MULTILINE)
_VERSION_VALUES = re.compile(r"'\d+\.\d+\.\d+', (\d+), (\d+)")

VERSION_ROW = "the row of dever.installation"
CONFIGURATION_DUMP = "what pg_dump keeps of an extension"
"""Statements that every script has once, under these keys."""


class UpgradeFault(Exception):
    """The upgrade cannot be built; says what is to be written by hand."""


@dataclass(frozen=True, slots=True)
class Change:
    """Two versions, their scripts, what was written by hand (empty: nothing), and how every upgrade
    of the engine begins."""

    before: str
    after: str
    old_script: str
    new_script: str
    by_hand: str
    head: str


def postgres_upgrade(change: Change) -> str:
    """The script for PostgreSQL. Raises UpgradeFault."""
    old = _by_key(postgres_statements(change.old_script))
    new = _by_key(postgres_statements(change.new_script))
    hand = postgres_statements(change.by_hand)
    _check_locks(hand)
    views = {key.removeprefix("view ") for key in old if key.startswith("view ")}
    dropped = {each.key for each in hand if each.verb == "drop"}
    _check_functions(old, new, dropped)
    old = {key: each for key, each in old.items() if key.removeprefix("comment on ") not in dropped}
    made_by_hand = {each.key for each in hand if each.verb != "drop"}
    _check_the_rest(old, new, hand, automatic=("function", "view", "comment on", "revoke"))
    taken: list[str] = []
    for key, each in new.items():
        if key == CONFIGURATION_DUMP or (key.startswith("revoke ") and key not in old):
            taken.append(each.text)
        elif key.startswith("revoke "):
            # A revoke of everything touches what roles hold rights on. In an extension these would
            # count as its own from then on, and pg_dump would leave them out.
            continue
        elif key == VERSION_ROW:
            low, high = _protocols(each)
            taken.append(
                f"update dever.installation\nset version = '{change.after}', protocol_min = {low},"
                f" protocol_max = {high},\n    upgraded_at = dever.clock()"
            )
        elif key in made_by_hand or _same(old.get(key), each):
            continue
        elif key.startswith(("function ", "view ", "comment on ")):
            taken.append(re.sub(r"^create (function|view)", r"create or replace \1", each.text))
    taken += [
        f"revoke all on {key.replace('view ', 'table ', 1)} from public"
        for key in new
        if key.startswith(("function ", "table ", "view ", "sequence ")) and key not in old
    ]
    replaced = {
        view
        for view in views
        if (key := f"view {view}") in old and not _same(new.get(key), old[key])
    }
    head = _head(change).replace("{locks}", _locks(hand, views, replaced))
    return head + _joined(change.by_hand, taken)


def sqlite_upgrade(change: Change) -> str:
    """The script for SQLite. Raises UpgradeFault."""
    old = _by_key(sqlite_statements(change.old_script))
    new = _by_key(sqlite_statements(change.new_script))
    hand = sqlite_statements(change.by_hand)
    _check_the_rest(old, new, hand, automatic=("view", "trigger"))
    views = {key for key in old if key.startswith("view ") and not _same(new.get(key), old[key])}
    drops: list[str] = []
    creates: list[str] = []
    for key, each in old.items():
        # The triggers of a view go with it.
        if f"view {each.trigger_relation}" in views:
            continue
        if key.startswith(("view ", "trigger ")) and not _same(new.get(key), each):
            drops.append(f"drop {key}")
    for key, each in new.items():
        again = f"view {each.trigger_relation}" in views
        if key.startswith(("view ", "trigger ")) and (again or not _same(old.get(key), each)):
            creates.append(each.text)
        elif key == VERSION_ROW:
            low, high = _protocols(each)
            creates.append(
                f"update dever_installation\nset version = '{change.after}', protocol_min = {low},"
                f" protocol_max = {high},\n    upgraded_at = (select c.now from dever_clock as c)"
            )
    dropping = "".join(f"\n{each};\n" for each in drops)
    return _head(change) + dropping + _joined(change.by_hand, creates)


def _head(change: Change) -> str:
    return change.head.replace("{before}", change.before).replace("{after}", change.after)


def _by_key(statements: Iterable[Statement]) -> dict[str, Statement]:
    found: dict[str, Statement] = {}
    for each in statements:
        key = each.key
        if re.match(r"insert into dever[._]installation ", key):
            key = VERSION_ROW
        elif "pg_extension_config_dump" in key:
            key = CONFIGURATION_DUMP
        found[key] = each
    return found


def _same(one: Statement | None, other: Statement) -> bool:
    """Of functions and triggers the database keeps the text itself, of the rest the meaning."""
    if one is None:
        return False
    if other.key.startswith(("function ", "trigger ", "view dever_")):
        return one.text == other.text
    return one.plain == other.plain


def _check_locks(hand: Sequence[Statement]) -> None:
    for each in hand:
        if _LOCK.search(each.comment) is None:
            raise UpgradeFault(
                f"the comment above does not end with the lock it takes: {each.plain:.80}"
            )


def _check_functions(
    old: dict[str, Statement], new: dict[str, Statement], dropped: set[str]
) -> None:
    """A function that goes, or that `create or replace` would refuse, has to be dropped by hand."""
    for key, each in old.items():
        if not key.startswith(("function ", "view ")) or key in dropped:
            continue
        if key not in new:
            raise UpgradeFault(f"{key} is gone: the part written by hand has to drop it")
        if key.startswith("function ") and _signature(each) != _signature(new[key]):
            raise UpgradeFault(
                f"{key} has other argument names, defaults or another result:"
                " the part written by hand has to drop it"
            )


def _signature(function: Statement) -> str:
    return plain(function.text.partition("\nlanguage")[0])


def _check_the_rest(
    old: dict[str, Statement],
    new: dict[str, Statement],
    hand: Sequence[Statement],
    automatic: tuple[str, ...],
) -> None:
    """What is not taken from the source by itself is named in the part written by hand."""
    text = " ".join(each.plain for each in hand)
    for key in [*old, *(key for key in new if key not in old)]:
        if key in (VERSION_ROW, CONFIGURATION_DUMP) or key.startswith(automatic):
            continue
        if key in old and key in new and _same(old[key], new[key]):
            continue
        kind, _, name = key.partition(" ")
        named = " " in name or re.search(rf"(?<!\w){re.escape(name)}\b", text)
        if not hand or not named:
            raise UpgradeFault(
                f"{kind} {name:.80} differs from the released one:"
                " the part written by hand has to change it"
            )


def _protocols(row: Statement) -> tuple[str, str]:
    found = _VERSION_VALUES.search(row.plain)
    if found is None:
        raise UpgradeFault(f"no version and protocols in: {row.plain}")
    return found[1], found[2]


def _locks(hand: Sequence[Statement], views: set[str], replaced: set[str]) -> str:
    """Rows of (relation, how to lock it, who is in the way): views, then tables."""
    wanted = dict.fromkeys(sorted(replaced), "access exclusive")
    for each in hand:
        found = _LOCK.search(each.comment)
        if found and found["mode"] and wanted.get(found["relation"]) != "access exclusive":
            wanted[found["relation"]] = found["mode"]
    rows: list[str] = []
    for relation, mode in sorted(wanted.items(), key=lambda each: each[0] not in views):
        if relation in views:
            # To lock a view by name locks the tables below it, too; this changes and locks only it.
            statement = f"alter view {relation} reset (security_barrier)"
        else:
            statement = f"lock table {relation} in {mode} mode"
        against = "readers" if mode == "access exclusive" else "writers"
        rows.append(f"        ['{relation}', '{statement}', '{against}']")
    return "array[\n" + ",\n".join(rows) + "\n    ]" if rows else "'{}'"


def _joined(by_hand: str, statements: Sequence[str]) -> str:
    hand = f"\n{by_hand.strip()}\n" if by_hand.strip() else ""
    return hand + "".join(f"\n{each};\n" for each in statements)
