-- Makes an extension of a plain install of the same version; jobs, workers and grants stay as they are. The
-- extension's files must be installed on the server (make -C sql install). As the schema's owner:
--
--     psql -v ON_ERROR_STOP=1 -f sql/adopt.sql "$DATABASE_URL"
--
-- What is granted while an object becomes a member counts as the extension's own, and pg_dump leaves it
-- out. So the grants to other roles are put aside and given again. One transaction: others see no gap.

begin;
\ir install_lock.sql

create temporary table dever_grant on commit drop as
select
    case a.grantee
        when 0 then 'public'
        else pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee))
    end as grantee,
    pg_catalog.format(o.form, a.privilege_type) as privilege,
    a.is_grantable
from (
    select
        pg_catalog.format('%%s on schema %I', n.nspname) as form,
        n.nspowner as owner,
        n.nspacl as acl
    from pg_catalog.pg_namespace as n
    where n.nspname = 'dever'
    union all
    select
        pg_catalog.format(
            '%%s on %s dever.%I', case c.relkind when 'S' then 'sequence' else 'table' end, c.relname
        ),
        c.relowner,
        c.relacl
    from pg_catalog.pg_class as c
    where c.relnamespace = pg_catalog.to_regnamespace('dever')
    union all
    select
        pg_catalog.format('%%s (%I) on table dever.%I', t.attname, c.relname),
        c.relowner,
        t.attacl
    from pg_catalog.pg_attribute as t
    inner join pg_catalog.pg_class as c on t.attrelid = c.oid
    where c.relnamespace = pg_catalog.to_regnamespace('dever')
    union all
    select
        pg_catalog.format('%%s on function %s', p.oid::pg_catalog.regprocedure),
        p.proowner,
        p.proacl
    from pg_catalog.pg_proc as p
    where p.pronamespace = pg_catalog.to_regnamespace('dever')
) as o
cross join lateral pg_catalog.aclexplode(o.acl) as a
where a.grantee <> o.owner;

do $$
declare
    v_grant record;
begin
    for v_grant in select g.* from pg_temp.dever_grant as g loop
        execute pg_catalog.format(
            'revoke %s from %s cascade', v_grant.privilege, v_grant.grantee
        );
    end loop;
end
$$;

create extension dever version 'unpackaged';
alter extension dever update;

do $$
declare
    v_grant record;
begin
    for v_grant in select g.* from pg_temp.dever_grant as g loop
        execute pg_catalog.format(
            'grant %s to %s%s',
            v_grant.privilege,
            v_grant.grantee,
            case when v_grant.is_grantable then ' with grant option' end
        );
    end loop;
end
$$;

commit;
