-- Makes an extension of a plain install, by its owner and without touching a job:
--
--     create extension dever version 'unpackaged';
--     alter extension dever update;
--
-- This first step only looks, so that a database that cannot go the whole way is left as it was. Where other
-- roles hold grants use adopt.sql, which takes both steps and keeps the grants in dumps.

do $$
declare
    v_wanted text := (
        select a.default_version from pg_catalog.pg_available_extensions as a where a.name = 'dever'
    );
    v_installed text;
begin
    perform pg_catalog.pg_advisory_xact_lock(1145394770);
    if pg_catalog.to_regclass('dever.installation') is null then
        raise exception using
            errcode = '55000',
            message = 'there is no plain install of Dever SQL in this database',
            hint = 'run: create extension dever';
    end if;
    select i.version into v_installed from dever.installation as i;
    if v_installed is distinct from v_wanted then
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s as a plain install, the extension is %s',
                v_installed, v_wanted
            ),
            hint = pg_catalog.format('bring the plain install to %s first: deploy.sql, or dever sql upgrade', v_wanted);
    end if;
end
$$;
