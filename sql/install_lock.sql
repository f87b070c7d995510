-- What the installer's search_path holds is not meant here: a function, or an operator in a view, that
-- somebody made in a schema of his would become part of Dever SQL.
set local search_path = pg_catalog, pg_temp;

-- One installer at a time. It holds up nobody else, so it may be waited for longer than other locks.
set local lock_timeout = '30s';

do $$
begin
    perform pg_catalog.pg_advisory_xact_lock(1145394770);
exception
    when lock_not_available then
        raise exception using
            errcode = '55P03',
            message = 'Dever SQL is being installed or upgraded' || coalesce(
                (
                    select ' by ' || pg_catalog.string_agg(
                        pg_catalog.format(
                            'pid %s (%s, %s, for %s s)',
                            a.pid,
                            coalesce(nullif(a.application_name, ''), 'unknown program'),
                            coalesce(a.state, 'state not visible to this role'),
                            coalesce(
                                extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::integer::text,
                                '?'
                            )
                        ),
                        ', ' order by a.pid
                    )
                    from pg_catalog.pg_locks as l
                    inner join pg_catalog.pg_stat_activity as a on a.pid = l.pid
                    where l.locktype = 'advisory' and l.granted and l.classid = 0 and l.objid = 1145394770
                        and l.database = (
                            select d.oid from pg_catalog.pg_database as d
                            where d.datname = pg_catalog.current_database()
                        )
                ),
                ''
            ),
            hint = 'nothing was changed; try again, or end that transaction';
end
$$;
