"""Who may do what, and that nobody's search path changes what a function does (R9.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from calls import (
    ADMIN,
    CLIENT,
    EVERYBODY,
    INTERNAL,
    OBSERVE,
    VIEWS,
    WORKER,
    null_call,
)
from psycopg.types.json import Jsonb
from samples import TARGET, declaration
from sessions import Session

from dever_sql.sql_files import sql_directory

Connect = Callable[..., Session]

MAY = {
    "dever_enqueue": CLIENT.keys() | EVERYBODY.keys(),
    "dever_worker": CLIENT.keys() | WORKER.keys() | OBSERVE.keys() | EVERYBODY.keys(),
    "dever_observe": OBSERVE.keys() | EVERYBODY.keys(),
    "dever_admin": CLIENT.keys() | WORKER.keys() | ADMIN.keys() | OBSERVE.keys() | EVERYBODY.keys(),
    "dever_test_nobody": set[str](),
}
CALLS = {**CLIENT, **WORKER, **ADMIN, **OBSERVE, **EVERYBODY}

# Who must run with the owner's rights: what roles call, since none has a right on a table, and what
# the views call. cron_next and cron_preview call parts that nobody else may call.
DEFINERS = {
    *(CLIENT.keys() - {"register", "microseconds", "positive_microseconds"}),
    *WORKER,
    *ADMIN,
    *("schedule_state", "oldest_due", "later_counts"),
    *("version", "protocol", "installation_id"),
}

# One way in for each privilege there is on a table, a view and a sequence.
WAYS_INTO_A_TABLE = {
    "select": "select 1 from dever.{}",
    "lock rows of": "select 1 from dever.{} for update",
    "insert into": "insert into dever.{} default values",
    "update": "update dever.{} set {} = null",
    "delete from": "delete from dever.{}",
    "truncate": "truncate dever.{} cascade",
    "read through copy": "copy dever.{} to stdout",
    "lock": "lock table dever.{} in access share mode",
}
WAYS_INTO_A_SEQUENCE = {
    "look at": "select * from dever.{}",
    "advance": "select pg_catalog.nextval('dever.{}')",
    "set": "select pg_catalog.setval('dever.{}', 1000)",
}


@pytest.fixture
def owner(connect: Connect) -> Session:
    session = connect("owner")
    session.execute((sql_directory("postgresql") / "roles.sql").read_text(encoding="utf-8"))
    session.execute(
        "do $$ begin if not exists (select from pg_roles where rolname = 'dever_test_nobody')"
        " then create role dever_test_nobody; end if; end $$"
    )
    return session


def register(session: Session) -> int:
    row = session.execute(
        "select contract_id from dever.register('w', %s, '1 day')", [Jsonb([declaration()])]
    ).fetchone()
    assert row is not None
    return int(row[0])


def is_allowed(session: Session, statement: str) -> bool:
    try:
        with session.transaction(force_rollback=True):
            session.execute(statement)
    except psycopg.Error as error:
        # Refused for any other reason, the right was there.
        return error.sqlstate != "42501"
    return True


def functions(session: Session) -> set[str]:
    rows = session.execute(
        "select p.proname from pg_proc as p where p.pronamespace = 'dever'::regnamespace"
    ).fetchall()
    return {name for (name,) in rows}


def relations(session: Session, *kinds: str) -> list[tuple[str, str]]:
    """(name, last column) of every relation of these kinds."""
    return session.execute(
        """
        select c.relname, a.attname
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum = c.relnatts
        where c.relnamespace = 'dever'::regnamespace and c.relkind = any (%s)
        """,
        [list(kinds)],
    ).fetchall()


@pytest.mark.req("R9.3")
def test_every_function_and_view_is_somebodys_or_internal(owner: Session) -> None:
    """A new one fails here until it is listed in calls.py, and with it who may call it."""
    views = {name for name, _ in relations(owner, "v", "m")}
    assert views == VIEWS.keys()
    assert functions(owner) == (CALLS.keys() - VIEWS.keys()) | INTERNAL


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("role", MAY)
def test_each_role_may_do_its_own_and_nothing_else(owner: Session, role: str) -> None:
    """C69. Every function and every view is tried as every role, and as one that has none."""
    register(owner)
    statements = CALLS | {name: null_call(owner, name) for name in functions(owner) - CALLS.keys()}
    owner.execute(f"set role {role}")
    allowed = {name for name, statement in statements.items() if is_allowed(owner, statement)}
    assert allowed == MAY[role]


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("role", MAY)
def test_the_catalogue_says_the_same(owner: Session, role: str) -> None:
    """Granted is what can be done: a right that a function's body takes back is none to grant."""
    rows = owner.execute(
        """
        select p.proname
        from pg_proc as p
        where p.pronamespace = 'dever'::regnamespace
            and has_function_privilege(%(role)s, p.oid, 'execute')
        union all
        select c.relname
        from pg_class as c
        where c.relnamespace = 'dever'::regnamespace
            and c.relkind in ('r', 'v', 'm', 'p', 'f')
            and has_table_privilege(%(role)s, c.oid, 'select, insert, update, delete, references')
        """,
        {"role": role},
    ).fetchall()
    assert {name for (name,) in rows} == MAY[role]


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("role", MAY)
def test_no_role_has_a_way_into_a_table_or_a_sequence(owner: Session, role: str) -> None:
    tables, sequences = relations(owner, "r", "p"), relations(owner, "S")
    assert len(tables) >= 11
    assert len(sequences) >= 5
    statements = [
        *(way.format(*table) for table in tables for way in WAYS_INTO_A_TABLE.values()),
        *(way.format(name) for name, _ in sequences for way in WAYS_INTO_A_SEQUENCE.values()),
        "create table dever.mine (id bigint)",
        "create function dever.mine() returns integer language sql as 'select 1'",
        "drop schema dever cascade",
        "alter function dever.clock() volatile",
    ]
    owner.execute(f"set role {role}")
    assert [statement for statement in statements if is_allowed(owner, statement)] == []


@pytest.mark.req("R9.3")
def test_a_view_is_for_looking_at(owner: Session) -> None:
    owner.execute("set role dever_admin")
    for view, column in relations(owner, "v", "m"):
        for way in ("insert into", "update", "delete from"):
            with pytest.raises(psycopg.Error) as refused:
                owner.execute(WAYS_INTO_A_TABLE[way].format(view, column))
            assert refused.value.sqlstate in ("42501", "55000", "0A000")


@pytest.mark.req("R9.3")
def test_only_what_must_runs_with_the_owners_rights(owner: Session) -> None:
    rows = owner.execute(
        "select p.proname from pg_proc as p"
        " where p.pronamespace = 'dever'::regnamespace and p.prosecdef"
    ).fetchall()
    assert {name for (name,) in rows} == DEFINERS


@pytest.mark.req("R9.3")
def test_public_has_nothing(owner: Session) -> None:
    granted = owner.execute(
        """
        select 'schema', n.nspname, g.privilege_type
        from pg_namespace as n, aclexplode(n.nspacl) as g
        where n.nspname = 'dever' and g.grantee = 0
        union all
        select 'function', p.proname, g.privilege_type
        from pg_proc as p,
            aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as g
        where p.pronamespace = 'dever'::regnamespace and g.grantee = 0
        union all
        select 'relation', c.relname, g.privilege_type
        from pg_class as c, aclexplode(c.relacl) as g
        where c.relnamespace = 'dever'::regnamespace and g.grantee = 0
        """
    ).fetchall()
    assert granted == []


@pytest.mark.req("R9.3")
def test_every_function_pins_its_search_path(owner: Session) -> None:
    unpinned = owner.execute(
        """
        select p.oid::regprocedure::text
        from pg_proc as p
        where p.pronamespace = 'dever'::regnamespace
            and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)
        """
    ).fetchall()
    assert unpinned == []


@pytest.mark.req("R9.3")
@pytest.mark.parametrize(
    ("role", "sees"), [("dever_observe", False), ("dever_worker", True), ("dever_admin", True)]
)
def test_payload_is_shown_to_workers_and_administrators(
    owner: Session, role: str, sees: bool
) -> None:
    owner.execute("select dever.send('q', '{\"card\": 1}')")
    owner.execute(f"set role {role}")
    assert owner.execute("select payload is not null from dever.jobs").fetchall() == [(sees,)]


@pytest.mark.req("R9.3", "R5.4")
def test_the_right_to_enqueue_registers_contracts_but_poses_as_no_worker(owner: Session) -> None:
    owner.execute("set role dever_enqueue")
    declarations = Jsonb([declaration()])
    assert owner.execute(
        "select count(*) from dever.register(null, %s, '1 minute')", [declarations]
    ).fetchone() == (1,)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute("select * from dever.register('posing', %s, '36500 days')", [declarations])
    owner.execute("reset role")
    assert owner.execute("select count(*) from dever.workers").fetchone() == (0,)


@pytest.mark.req("R9.3", "R6.4")
def test_the_right_to_enqueue_moves_no_cron(owner: Session) -> None:
    cron = {"spec": "0 3 * * *"}
    look = "select spec, next_at from dever.schedules"
    owner.execute(
        "select * from dever.register(null, %s, '1 minute')", [Jsonb([declaration(schedule=cron)])]
    )
    before = owner.execute(look).fetchall()
    owner.execute("set role dever_enqueue")
    owner.execute(
        "select * from dever.register(null, %s, '1 minute')",
        [Jsonb([declaration(schedule={"spec": "0 0 1 1 *"})])],
    )
    owner.execute("reset role")
    assert len(before) == 1
    assert owner.execute(look).fetchall() == before


@pytest.mark.req("R9.3", "R9.1")
def test_plain_database_owner_can_install(pg_empty_url: str) -> None:
    from conftest import install_script

    with psycopg.connect(pg_empty_url, autocommit=True) as admin:
        admin.execute("drop role if exists dever_test_owner")
        admin.execute("create role dever_test_owner nosuperuser nocreatedb nocreaterole")
        admin.execute(f"alter database {admin.info.dbname} owner to dever_test_owner")
        admin.execute("set role dever_test_owner")
        with admin.transaction():
            admin.execute(install_script())
        assert register(admin) > 0
        assert admin.execute("select created from dever.enqueue(%s, 'k')", [TARGET]).fetchone() == (
            True,
        )
        admin.execute("reset role")


LIFE = [
    "select created from dever.enqueue('{target}', 'k')",
    "select created from dever.enqueue('{target}', 'k')",
    "select count(*) from dever.send_many('default', array['1', '2']::jsonb[])",
    "select key, attempt from dever.claim('default', 'w', 5, '1 minute', array[{contract}])",
    "select c.ok from dever.jobs as j, dever.renew(array[j.id], array[j.token], '1 minute') as c"
    " where j.key = 'k'",
    "select c.outcome from dever.jobs as j,"
    " dever.retry(array[j.id], array[j.token], array['x'], null, array[interval '0']) as c"
    " where j.key = 'k'",
    "select key, attempt from dever.claim('default', 'w', 5, '1 minute', array[{contract}])",
    "select c.ok from dever.jobs as j, dever.complete(array[j.id], array[j.token]) as c"
    " where j.key = 'k'",
    "select key, state, attempt, queue from dever.jobs where key = 'k'",
    "select attempt from dever.claim('default', 'w', 5)",
    "select ready, running, blocked, dead from dever.queues where queue = 'default'",
    "select * from dever.sweep()",
    "select dever.cron_next('0 0 1 1 *', '2026-01-01T00:00:00Z') = '2027-01-01T00:00:00Z'",
    "select dever.lock_acquire('l', 'o', '1 minute') > 0",
]


def live(session: Session, contract: int) -> list[Any]:
    """The life of a job and of two messages, as what each call answered."""
    return [
        session.execute(step.format(target=TARGET, contract=contract)).fetchall() for step in LIFE
    ]


@pytest.fixture
def expected(connect: Connect, owner: Session) -> list[Any]:
    contract = register(owner)
    with owner.transaction(force_rollback=True):
        return live(owner, contract)


HIJACK = """
    create schema evil;
    create function evil.never(timestamptz, timestamptz) returns boolean
        language sql as 'select false';
    create operator evil.<= (leftarg = timestamptz, rightarg = timestamptz, function = evil.never);
    create operator evil.> (leftarg = timestamptz, rightarg = timestamptz, function = evil.never);
    create function evil.same(text, text) returns boolean language sql as 'select true';
    create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
    create function evil.clock_timestamp() returns timestamptz
        language sql as 'select timestamptz ''infinity''';
    create function evil.now() returns timestamptz
        language sql as 'select timestamptz ''infinity''';
    create function evil.greatest(bigint, bigint) returns bigint language sql as 'select 0::bigint';
    create function evil.nextval(text) returns bigint language sql as 'select 7::bigint';
    create function evil.unnest(bigint[]) returns setof bigint
        language sql as 'select 666::bigint';
    grant usage on schema evil to public;
    grant execute on all functions in schema evil to public;
"""


@pytest.mark.req("R9.3")
@pytest.mark.parametrize("path", ["evil, pg_catalog, dever", "pg_temp, evil, dever", "''"])
def test_callers_path_and_temporary_tables_change_nothing(
    owner: Session, expected: list[Any], path: str
) -> None:
    """C68: as a low role, with a temporary table of every product table's name."""
    contract = register(owner)
    owner.execute(HIJACK)
    tables = owner.execute(
        "select relname from pg_class where relnamespace = 'dever'::regnamespace"
        " and relkind in ('r', 'v', 'S')"
    ).fetchall()
    owner.execute("set role dever_worker")
    for (table,) in tables:
        owner.execute(f"create temporary table {table} (id bigint, name text, now timestamptz)")
    owner.execute(f"set search_path = {path}")
    # The operators of this very text are the caller's own; the functions' are not.
    plain = [step for step in LIFE if " > 0" not in step and "= 'k'" not in step]
    want = [answer for step, answer in zip(LIFE, expected, strict=True) if step in plain]
    skipped = {step for step in LIFE if step not in plain}
    got: list[Any] = []
    for step in LIFE:
        text = step.format(target=TARGET, contract=contract)
        if step in skipped:
            text = text.replace(" = 'k'", " operator(pg_catalog.=) 'k'")
            text = text.replace(" > 0", " operator(pg_catalog.>) 0")
        text = text.replace(") = '2027", ") operator(pg_catalog.=) '2027")
        answer = owner.execute(text).fetchall()
        if step in plain:
            got.append(answer)
    assert got == want
    for (table,) in tables:
        assert owner.execute(f"select count(*) from pg_temp.{table}").fetchone() == (0,)


SETTINGS = [
    "intervalstyle = 'iso_8601'",
    "intervalstyle = 'sql_standard'",
    "datestyle = 'SQL, DMY'",
    "datestyle = 'German'",
    "timezone = 'Australia/Lord_Howe'",
    "timezone = 'America/St_Johns'",
    "standard_conforming_strings = off",
    "bytea_output = 'escape'",
    "extra_float_digits = 0",
    "row_security = off",
    "statement_timeout = '10s'",
    "lock_timeout = '1s'",
    "idle_in_transaction_session_timeout = '5s'",
    "search_path = ''",
    "plan_cache_mode = force_custom_plan",
    "plan_cache_mode = force_generic_plan",
    "jit = on",
    "default_transaction_isolation = 'serializable'",
    "track_counts = off",
    "enable_indexscan = off",
    "xmloption = document",
    "quote_all_identifiers = on",
    "default_table_access_method = 'heap'",
    "array_nulls = off",
    "transform_null_equals = on",
    "check_function_bodies = off",
    "escape_string_warning = off",
]


@pytest.mark.req("R9.3", "R4.1")
@pytest.mark.parametrize("setting", SETTINGS)
def test_session_settings_change_nothing(
    owner: Session, connect: Connect, expected: list[Any], setting: str
) -> None:
    """C55."""
    contract = register(owner)
    owner.execute(f"alter database {owner.info.dbname} set {setting}")
    session = connect("hostile")
    assert live(session, contract) == expected
    exact = session.execute(
        """
        select visibility = interval '90061.5 seconds'
        from dever.configure_queue('x', visibility => '25:01:01.5')
        """
    ).fetchone()
    assert exact == (True,)


@pytest.mark.req("R3.3")
@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns", "Australia/Lord_Howe", "UTC"])
def test_run_at_is_an_instant_in_every_zone(owner: Session, connect: Connect, zone: str) -> None:
    """C50: a naive literal is read in the session's zone, an aware one is what it says."""
    register(owner)
    session = connect("zone", options=f"-c timezone={zone}")
    at = "2030-06-01T12:00:00+05:30"
    session.execute("select dever.enqueue(%s, 'aware', null, %s)", [TARGET, at])
    session.execute("select dever.enqueue(%s, 'naive', null, '2030-06-01 12:00')", [TARGET])
    rows = dict(owner.execute("select key, extract(epoch from run_at)::bigint from dever.jobs"))
    naive = owner.execute(
        "select extract(epoch from timestamp '2030-06-01 12:00' at time zone %s)::bigint", [zone]
    ).fetchone()
    assert rows == {"aware": 1906525800, "naive": naive[0] if naive else None}
