-- Upgrades Dever SQL {before} to {after}. Built by scripts/build-sql; do not edit.

-- Who waits for a lock holds up everybody behind him: long enough that PostgreSQL ends an autovacuum that
-- is in the way (it looks after 1 s), short enough for the workers. Only in a transaction it has any effect.
set local lock_timeout = '1200ms';

do $$
declare
    v_deadline timestamptz := pg_catalog.clock_timestamp() + interval '1200 milliseconds';
    v_owner text;
    v_installed text;
    v_locks text[] := {locks};
    v_relation text := 'dever.installation';
    v_harmless text[] := array['AccessShareLock'];
begin
    if pg_catalog.current_setting('lock_timeout') <> '1200ms' then
        raise exception using
            errcode = '25P01',
            message = 'the upgrade of Dever SQL has to run in one transaction',
            hint = 'run it with: psql --single-transaction -v ON_ERROR_STOP=1';
    end if;
    if pg_catalog.to_regclass('dever.installation') is null then
        raise exception using
            errcode = 'DV009',
            message = 'Dever SQL is not installed in this database, this file upgrades {before} to {after}',
            hint = 'run the install script of {after}';
    end if;

    -- What an extension gets has to become part of it: only its own update sees to that, and may call this.
    if exists (select from pg_catalog.pg_extension as e where e.extname = 'dever') then
        begin
            perform pg_catalog.pg_extension_config_dump('dever.queue'::pg_catalog.regclass, '');
        exception
            when feature_not_supported then
                raise exception using
                    errcode = '55000',
                    message = 'Dever SQL is installed as an extension in this database',
                    hint = 'run: alter extension dever update';
        end;
    end if;

    -- What is new shall belong to whom the rest belongs to, also when a superuser upgrades.
    v_owner := (
        select pg_catalog.pg_get_userbyid(n.nspowner)
        from pg_catalog.pg_namespace as n
        where n.nspname = 'dever'
    );
    if v_owner <> current_user then
        if not pg_catalog.pg_has_role(current_user, v_owner, 'member') then
            raise exception using
                errcode = '42501',
                message = pg_catalog.format(
                    'Dever SQL belongs to the role %s here, and %s is not a member of it', v_owner, current_user
                ),
                hint = pg_catalog.format('upgrade as %s', v_owner);
        end if;
        perform pg_catalog.set_config('role', v_owner, true);
    end if;

    v_installed := (select i.version from dever.installation as i for update);
    if v_installed <> '{before}' then
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s, this file upgrades {before} to {after}', v_installed
            ),
            hint = 'nothing was changed';
    end if;

    -- All the locks that something may hold, at once and first. When they cannot be had soon, all of them
    -- are given back, and whoever upgrades tries again later.
    for v_number in 1 .. coalesce(pg_catalog.array_length(v_locks, 1), 0) loop
        v_relation := v_locks[v_number][1];
        v_harmless := case
            when v_locks[v_number][3] = 'readers' then '{}' else array['AccessShareLock', 'RowShareLock']
        end;
        perform pg_catalog.set_config(
            'lock_timeout',
            greatest(
                1, extract(epoch from v_deadline - pg_catalog.clock_timestamp()) * 1000
            )::integer || 'ms',
            true
        );
        execute v_locks[v_number][2];
    end loop;
    perform pg_catalog.set_config('lock_timeout', '100ms', true);
exception
    when lock_not_available then
        raise exception using
            errcode = '55P03',
            message = pg_catalog.format('%s is in use', v_relation) || coalesce(
                (
                    select ' by ' || pg_catalog.string_agg(
                        pg_catalog.format(
                            'pid %s (%s, %s, for %s s)',
                            a.pid,
                            coalesce(nullif(a.application_name, ''), a.backend_type, 'unknown program'),
                            coalesce(a.state, 'state not visible to this role'),
                            coalesce(
                                extract(
                                    epoch from pg_catalog.clock_timestamp() - a.xact_start
                                )::integer::text,
                                '?'
                            )
                        ),
                        ', ' order by a.xact_start, a.pid
                    )
                    from pg_catalog.pg_stat_activity as a
                    where a.pid <> pg_catalog.pg_backend_pid()
                        and exists (
                            select
                            from pg_catalog.pg_locks as l
                            where l.pid = a.pid
                                and l.granted
                                and l.relation = pg_catalog.to_regclass(v_relation)
                                and l.mode <> all (v_harmless)
                        )
                ),
                ''
            ),
            hint = 'nothing was changed; try again, or end that transaction';
end
$$;
