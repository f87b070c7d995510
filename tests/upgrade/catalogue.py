"""What an installation consists of, as sorted lines of text, so that two can be compared."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]

# A missing list of rights means the default ones: both are spelled out, to compare as equal.
SNAPSHOT = """
with
owned as (
    select oid from pg_catalog.pg_namespace where nspname = 'dever'
),
relation as (
    select c.*, c.oid::regclass::text as shown
    from pg_catalog.pg_class as c
    where c.relnamespace in (table owned)
),
line (kind, name, what) as (
    select 'schema', n.nspname, format('owner %s', n.nspowner::regrole)
    from pg_catalog.pg_namespace as n
    where n.oid in (table owned)
    union all
    select
        'relation', r.shown,
        format(
            '%s persistence %s owner %s options %s row security %s %s replica identity %s',
            r.relkind, r.relpersistence, r.relowner::regrole, r.reloptions,
            r.relrowsecurity, r.relforcerowsecurity, r.relreplident
        )
    from relation as r
    union all
    select
        'column', r.shown || '.' || a.attname,
        format(
            'number %s type %s not null %s default %s identity %s generated %s collation %s'
            || ' storage %s compression %s options %s',
            row_number() over (partition by r.oid order by a.attnum),
            format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
            a.attidentity, a.attgenerated,
            case when a.attcollation <> 0 then a.attcollation::regcollation end,
            a.attstorage, a.attcompression, a.attoptions
        )
    from relation as r
    inner join pg_catalog.pg_attribute as a
        on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
    left join pg_catalog.pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where r.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
    union all
    select
        'constraint', c.conrelid::regclass || ' ' || c.conname,
        format('%s validated %s', pg_get_constraintdef(c.oid), c.convalidated)
    from pg_catalog.pg_constraint as c
    where c.connamespace in (table owned)
    union all
    select
        'index', i.indexrelid::regclass::text,
        format('%s valid %s', pg_get_indexdef(i.indexrelid), i.indisvalid)
    from relation as r
    inner join pg_catalog.pg_index as i on i.indrelid = r.oid
    union all
    select
        'sequence', r.shown,
        format(
            '%s start %s by %s from %s to %s cache %s cycle %s owned by %s',
            s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
            s.seqcycle,
            (
                select pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
                from pg_catalog.pg_depend as d
                where d.classid = 'pg_class'::regclass and d.objid = r.oid
                    and d.deptype in ('a', 'i') and d.refobjsubid > 0
            )
        )
    from relation as r
    inner join pg_catalog.pg_sequence as s on s.seqrelid = r.oid
    union all
    select 'view', r.shown, pg_get_viewdef(r.oid)
    from relation as r
    where r.relkind in ('v', 'm')
    union all
    select 'trigger', t.tgrelid::regclass || ' ' || t.tgname, pg_get_triggerdef(t.oid)
    from relation as r
    inner join pg_catalog.pg_trigger as t on t.tgrelid = r.oid and not t.tgisinternal
    union all
    select 'rule', w.ev_class::regclass || ' ' || w.rulename, pg_get_ruledef(w.oid)
    from relation as r
    inner join pg_catalog.pg_rewrite as w on w.ev_class = r.oid
    union all
    select 'type', format_type(t.oid, null), format('%s owner %s', t.typtype, t.typowner::regrole)
    from pg_catalog.pg_type as t
    where t.typnamespace in (table owned)
    union all
    select
        'function', p.oid::regprocedure::text,
        format('owner %s %s', p.proowner::regrole, pg_get_functiondef(p.oid))
    from pg_catalog.pg_proc as p
    where p.pronamespace in (table owned)
    union all
    select
        'comment', format('%s %s', o.type, o.identity), d.description
    from pg_catalog.pg_description as d
    cross join lateral pg_identify_object(d.classoid, d.objoid, d.objsubid) as o
    where o.schema = 'dever' or (o.type = 'schema' and o.name = 'dever')
    union all
    select
        'right', format('%s %s', o.kind, o.name),
        format(
            '%s to %s%s', a.privilege_type,
            case a.grantee when 0 then 'public' else a.grantee::regrole::text end,
            case when a.is_grantable then ' with grant option' end
        )
    from (
        select
            'schema' as kind, n.nspname::text as name,
            coalesce(n.nspacl, acldefault('n', n.nspowner)) as acl
        from pg_catalog.pg_namespace as n
        where n.oid in (table owned)
        union all
        select
            'relation', r.shown,
            coalesce(
                r.relacl,
                acldefault((case r.relkind when 'S' then 's' else 'r' end)::"char", r.relowner)
            )
        from relation as r
        where r.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
        union all
        select 'column', r.shown || '.' || a.attname, a.attacl
        from relation as r
        inner join pg_catalog.pg_attribute as a on a.attrelid = r.oid and a.attacl is not null
        union all
        select
            'function', p.oid::regprocedure::text, coalesce(p.proacl, acldefault('f', p.proowner))
        from pg_catalog.pg_proc as p
        where p.pronamespace in (table owned)
    ) as o
    cross join lateral aclexplode(o.acl) as a
)
select kind, name, what from line
"""

MEMBERS = """
select format('%s %s', o.type, o.identity)
from pg_catalog.pg_extension as e
inner join pg_catalog.pg_depend as d
    on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid and d.deptype = 'e'
cross join lateral pg_identify_object(d.classid, d.objid, d.objsubid) as o
where e.extname = 'dever'
"""

CONFIGURATION = """
select format('%s where %L', r.id::regclass, r.condition)
from pg_catalog.pg_extension as e
cross join lateral unnest(e.extconfig, e.extcondition) as r (id, condition)
where e.extname = 'dever'
"""


def snapshot(connection: Connection) -> list[str]:
    """Everything in the schema `dever`: columns, constraints, indexes, views, functions with their
    bodies and settings, owners, rights, comments. Empty when it is not installed."""
    # Names are shown in full, whatever the caller's search path.
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog")
        rows = connection.execute(SNAPSHOT).fetchall()
    return sorted(": ".join(row) for row in rows)


def membership(connection: Connection) -> list[str]:
    """What belongs to the extension, and which of it pg_dump copies the rows of."""
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog")
        members = [f"member: {row[0]}" for row in connection.execute(MEMBERS).fetchall()]
        configuration = [
            f"configuration: {row[0]}" for row in connection.execute(CONFIGURATION).fetchall()
        ]
    return sorted(members + configuration)


def contents(connection: Connection) -> dict[str, list[str]]:
    """Every row of every table of `dever` as text, and where its sequences stand."""
    relations = connection.execute(
        "select c.relname::text, c.relkind::text from pg_catalog.pg_class as c"
        " where c.relnamespace = 'dever'::regnamespace and c.relkind in ('r', 'S') order by 1"
    ).fetchall()
    found: dict[str, list[str]] = {}
    for name, kind in relations:
        # log_cnt is how many values are written ahead, not a position.
        columns = sql.SQL("(r.last_value, r.is_called)" if kind == "S" else "r")
        query = sql.SQL("select {}::text from {} as r").format(
            columns, sql.Identifier("dever", name)
        )
        found[name] = sorted(row[0] for row in connection.execute(query).fetchall())
    return found


def catalogue_sizes(connection: Connection) -> dict[str, int]:
    """How many rows every catalogue has, the ones of the whole cluster included: what is created
    and dropped again leaves them as they were."""
    names = connection.execute(
        "select c.relname::text from pg_catalog.pg_class as c"
        " where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r'"
        " and c.relname not in ('pg_statistic', 'pg_statistic_ext_data')"
    ).fetchall()
    sizes: dict[str, int] = {}
    for (name,) in names:
        query = sql.SQL("select count(*) from {}").format(sql.Identifier("pg_catalog", name))
        row = connection.execute(query).fetchone()
        assert row is not None
        sizes[name] = row[0]
    return sizes
