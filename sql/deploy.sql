-- Deploy Dever SQL with psql, from a pipeline, without Python:
--
--     psql -v ON_ERROR_STOP=1 -f sql/deploy.sql "$DATABASE_URL"
--
-- Installs what is missing and does nothing when the version is already there. One transaction: all of
-- it or nothing. Exit code 0: the schema is at this version; 3: it is not, and nothing was changed. Safe to
-- run on every deploy and by two pipelines at once (the second waits). An installation as an extension is
-- left to "alter extension dever update".

\set ON_ERROR_STOP on
begin;
set local lock_timeout = '5s';
select pg_catalog.pg_advisory_xact_lock(1145394770) as deploy_lock \gset

do $$
begin
    if exists (select from pg_catalog.pg_extension as e where e.extname = 'dever') then
        raise exception using
            errcode = '55000',
            message = 'Dever SQL is installed as an extension in this database',
            hint = 'run: alter extension dever update';
    end if;
end
$$;

select pg_catalog.to_regclass('dever.installation') is not null as dever_present \gset
\if :dever_present
    select i.version as dever_version from dever.installation as i \gset
\else
    \set dever_version nothing
\endif

select
    :'dever_version' = 'nothing' as dever_install,
    :'dever_version' = '0.2.0' as dever_current \gset

\if :dever_install
    \ir dever--0.2.0.sql
    \echo Dever SQL 0.2.0 installed
\elif :dever_current
    \echo Dever SQL 0.2.0 is already installed, nothing to do
\else
    do $$
    begin
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s, this file installs 0.2.0',
                (select i.version from dever.installation as i)
            ),
            hint = 'deploy with the files of the newer release; going back is not supported';
    end
    $$;
\endif

commit;
