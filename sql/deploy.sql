-- Deploy Dever SQL with psql, from a pipeline, without Python:
--
--     psql -v ON_ERROR_STOP=1 -f sql/deploy.sql "$DATABASE_URL"
--
-- Installs what is missing, upgrades what is older, and does nothing when the version is already there.
-- One transaction: all of it or nothing. Exit code 0: the schema is at this version; 3: it is not, and
-- nothing was changed. Safe to run on every deploy and by two pipelines at once (the second waits). When
-- another session holds a lock that an upgrade needs, it gives up after a moment instead of holding up the
-- workers behind it: scripts/install-schema runs this file and tries again.

\set ON_ERROR_STOP on
-- A stricter isolation would not see what the pipeline before this one did.
begin transaction isolation level read committed read write;
\ir install_lock.sql

select pg_catalog.to_regclass('dever.installation') is not null as dever_present \gset
\if :dever_present
    select i.version as dever_version from dever.installation as i \gset
\else
    \set dever_version nothing
\endif
\set dever_found :dever_version

select exists (select from pg_catalog.pg_extension as e where e.extname = 'dever') as dever_extension \gset
\if :dever_extension
    \set dever_version extension
\endif

-- The steps, by scripts/build-sql:
\set dever_brought 0.3.0

select :'dever_version' = '0.1.0' as dever_step \gset
\if :dever_step
    \ir dever--0.1.0--0.2.0.sql
    \set dever_version 0.2.0
\endif

select :'dever_version' = '0.2.0' as dever_step \gset
\if :dever_step
    \ir dever--0.2.0--0.3.0.sql
    \set dever_version 0.3.0
\endif

select :'dever_version' = 'nothing' as dever_step \gset
\if :dever_step
    \ir dever--0.3.0.sql
    \set dever_version 0.3.0
\endif
-- The end of the steps.

select
    :'dever_version' = :'dever_brought' as dever_right,
    :'dever_found' = :'dever_brought' as dever_same \gset
\if :dever_same
    \set dever_done 'is already installed, nothing to do'
\elif :dever_right
    \set dever_done 'installed (before: ' :dever_found ')'
\elif :dever_extension
    do $$
    begin
        raise exception using
            errcode = '55000',
            message = pg_catalog.format(
                'Dever SQL %s is installed as an extension in this database',
                (select i.version from dever.installation as i)
            ),
            hint = 'run: alter extension dever update';
    end
    $$;
\else
    -- A variable of psql does not reach into a dollar quote.
    select pg_catalog.set_config('dever.brought', :'dever_brought', true) as dever_brought \gset
    do $$
    begin
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s, this file brings %s and knows no way from there',
                (select i.version from dever.installation as i),
                pg_catalog.current_setting('dever.brought')
            ),
            hint = 'deploy with the files of the newer release; going back is not supported';
    end
    $$;
\endif

commit;
\echo Dever SQL :dever_brought :dever_done
