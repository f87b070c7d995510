-- Makes a plain install of an extension again: the schema, its jobs and the grants stay, only the extension
-- goes. After that deploy.sql and dever sql upgrade look after it. As the extension's owner:
--
--     psql -v ON_ERROR_STOP=1 -f sql/unadopt.sql "$DATABASE_URL"

begin;
\ir install_lock.sql

do $$
declare
    v_member text;
begin
    for v_member in
        select pg_catalog.format('%s %s', o.type, o.identity)
        from pg_catalog.pg_depend as d
        inner join pg_catalog.pg_extension as e on d.refobjid = e.oid
        cross join lateral pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid) as o
        where d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
            and d.deptype = 'e'
            and e.extname = 'dever'
            -- From 17 on row types are members, too; they go with their tables.
            and d.classid <> 'pg_catalog.pg_type'::pg_catalog.regclass
    loop
        execute pg_catalog.format('alter extension dever drop %s', v_member);
    end loop;
end
$$;

drop extension dever;

commit;
