"""A schema that stands in for pg_catalog and for Dever SQL, and raises whenever it is used.

Casts cannot be taken over in this way: they belong to the pair of types, not to a schema, and only
the owner of one of the types may make one.
"""

from __future__ import annotations

from sessions import Session

HIJACKED = "HJ001"

PATHS = ("evil, pg_catalog, dever", "pg_temp, evil, pg_catalog, dever", "evil, public, pg_temp")

# Every operator of pg_catalog; every function of it that a text of Dever SQL calls by name; every
# function, relation and built-in type that Dever SQL has or uses. What PostgreSQL lets nobody make
# again (operators on its internal types) is left out.
_SCHEMA = """
create schema evil;
grant usage on schema evil to public;

create function evil.boom() returns boolean language plpgsql as $$
begin
    raise exception using errcode = 'HJ001', message = 'hijacked: a table or a type';
end
$$;

do $evil$
declare
    v_body constant text :=
        '$$ begin raise exception using errcode = ''HJ001'', message = %L; end $$';
    v_source text;
    v_each record;
begin
    -- Aliases are not for functions only: a name with a bracket behind it is a call.
    select string_agg(s.text, ' ') into v_source
    from (
        select p.prosrc as text from pg_proc as p where p.pronamespace = to_regnamespace('dever')
        union all
        select pg_get_viewdef(c.oid)
        from pg_class as c
        where c.relnamespace = to_regnamespace('dever') and c.relkind = 'v'
    ) as s;
    for v_each in
        select
            p.oid::regprocedure::text as name,
            format(
                'create function evil.%I(%s) returns %s%s language plpgsql as ',
                p.proname,
                coalesce(
                    (
                        select string_agg(t.id::regtype::text, ', ' order by t.n)
                        from unnest(p.proargtypes::oid[]) with ordinality as t (id, n)
                    ),
                    ''
                ),
                case when p.proretset then 'setof ' else '' end,
                case
                    when p.pronamespace = to_regnamespace('dever') then 'boolean'
                    else p.prorettype::regtype::text
                end
            ) as head
        from pg_proc as p
        where p.prokind in ('f', 'a')
            and (
                p.pronamespace = to_regnamespace('dever')
                or p.pronamespace = 'pg_catalog'::regnamespace
                    and (v_source is null or strpos(v_source, p.proname || '(') > 0)
            )
    loop
        begin
            execute v_each.head || format(v_body, 'hijacked: ' || v_each.name);
        exception
            when invalid_function_definition or feature_not_supported or wrong_object_type then
                null;
        end;
    end loop;
    for v_each in
        select
            row_number() over () as n,
            o.oid::regoperator::text as name,
            o.oprname,
            nullif(o.oprleft, 0)::regtype as left_type,
            o.oprright::regtype as right_type,
            o.oprresult::regtype as result
        from pg_operator as o
        where o.oprnamespace = 'pg_catalog'::regnamespace
    loop
        begin
            execute format(
                'create function evil.op_%s(%s) returns %s language plpgsql as ',
                v_each.n, concat_ws(', ', v_each.left_type, v_each.right_type), v_each.result
            ) || format(v_body, 'hijacked: ' || v_each.name);
            execute format(
                'create operator evil.%s (function = evil.op_%s, %s rightarg = %s)',
                v_each.oprname, v_each.n, 'leftarg = ' || v_each.left_type || ',', v_each.right_type
            );
        exception
            when invalid_function_definition or feature_not_supported or wrong_object_type then
                null;
        end;
    end loop;
    for v_each in
        select c.relname as name from pg_class as c
        where c.relnamespace = to_regnamespace('dever') and c.relkind in ('r', 'v', 'S')
    loop
        execute format('create view evil.%I as select evil.boom() as id', v_each.name);
        execute format('grant select on evil.%I to public', v_each.name);
    end loop;
    foreach v_each.name in array array[
        'text', 'jsonb', 'json', 'int4', 'int8', 'bool', 'float8', 'numeric', 'timestamptz',
        'interval', 'regclass', 'uuid', 'tid', 'oid'
    ]
    loop
        execute format('create domain evil.%I as pg_catalog.%1$I check (evil.boom())', v_each.name);
    end loop;
end
$evil$;
"""

_TEMPORARY = """
do $evil$
declare
    v_name text;
begin
    for v_name in
        select c.relname from pg_class as c
        where c.relnamespace = 'dever'::regnamespace and c.relkind in ('r', 'v', 'S')
    loop
        execute format('create temporary view %I as select evil.boom() as id', v_name);
    end loop;
end
$evil$;
"""


def build_hostile_schema(session: Session) -> None:
    session.execute(_SCHEMA)


def build_temporary_relations(session: Session) -> None:
    """Temporary views of every relation's name: they come before every schema when unqualified."""
    session.execute(_TEMPORARY)
