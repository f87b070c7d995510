-- Upgrades Dever SQL 0.2.0 to 0.3.0. Built by scripts/build-sql; do not edit.

-- Who waits for a lock holds up everybody behind him: long enough that PostgreSQL ends an autovacuum that
-- is in the way (it looks after 1 s), short enough for the workers. Only in a transaction it has any effect.
set local lock_timeout = '1200ms';

do $$
declare
    v_deadline timestamptz := pg_catalog.clock_timestamp() + interval '1200 milliseconds';
    v_owner text;
    v_installed text;
    v_locks text[] := '{}';
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
            message = 'Dever SQL is not installed in this database, this file upgrades 0.2.0 to 0.3.0',
            hint = 'run the install script of 0.3.0';
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
    if v_installed <> '0.2.0' then
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s, this file upgrades 0.2.0 to 0.3.0', v_installed
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

create or replace function dever.check_name(name text, what text)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- The usual case in one expression: these checks are on the path of every call. What begins with more
    -- than a space (32) is not blank.
    if pg_catalog.ascii(check_name.name) > 32
        and pg_catalog.octet_length(check_name.name) <= 255
        and not pg_catalog.starts_with(check_name.name, '__dever_')
    then
        return check_name.name;
    end if;
    if check_name.name is null or dever.is_blank(check_name.name) then
        raise exception using
            errcode = 'DV001',
            message = pg_catalog.format('the %s name is empty', check_name.what),
            hint = 'give a name of 1 to 255 bytes that is not only whitespace';
    end if;
    if pg_catalog.octet_length(check_name.name) > 255 then
        raise exception using
            errcode = 'DV001',
            message = pg_catalog.format(
                'the %s name is %s bytes long', check_name.what, pg_catalog.octet_length(check_name.name)
            ),
            hint = 'give a name of 1 to 255 bytes';
    end if;
    if pg_catalog.starts_with(check_name.name, '__dever_') then
        raise exception using
            errcode = 'DV002',
            message = pg_catalog.format('the %s name %L is reserved', check_name.what, check_name.name),
            hint = 'names that start with __dever_ belong to Dever SQL, choose another one';
    end if;
    return check_name.name;
end
$$;

create or replace function dever.check_keys(keys text[])
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_key text;
begin
    foreach v_key in array check_keys.keys loop
        -- The usual case in one expression, as in dever.check_name.
        continue when pg_catalog.ascii(v_key) > 32
            and pg_catalog.octet_length(v_key) <= 1024
            and not pg_catalog.starts_with(v_key, '__dever_');
        if v_key is null or dever.is_blank(v_key) then
            raise exception using
                errcode = 'DV006',
                message = 'the idempotency key is missing or blank',
                hint = 'name the business event, for example receipt:7';
        end if;
        if pg_catalog.octet_length(v_key) > 1024 then
            raise exception using
                errcode = 'DV006',
                message = pg_catalog.format(
                    'the idempotency key is %s bytes long', pg_catalog.octet_length(v_key)
                ),
                hint = 'give a key of 1 to 1024 bytes';
        end if;
        if pg_catalog.starts_with(v_key, '__dever_') then
            raise exception using
                errcode = 'DV002',
                message = 'the idempotency key starts with __dever_, which is reserved',
                hint = 'keys that start with __dever_ belong to Dever SQL, choose another one';
        end if;
    end loop;
end
$$;

create or replace function dever.insert_jobs(
    target text,
    contract_id integer,
    queue_id bigint,
    max_attempts integer,
    visibility_us bigint,
    backoff_base_us bigint,
    backoff_max_us bigint,
    backoff_jitter double precision,
    keys text[],
    payloads jsonb[],
    run_ats timestamptz[],
    expires_at timestamptz,
    created_at timestamptz
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := pg_catalog.cardinality(insert_jobs.payloads);
    v_ids bigint[];
    v_found bigint[];
    v_inserted integer;
    v_round integer := 0;
begin
    -- Ids in the caller's order; those of duplicates are lost, which is what bigint is for.
    v_ids := array(
        select pg_catalog.nextval('dever.job_id_seq')
        from pg_catalog.generate_series(1, v_count)
    );
    loop
        insert into dever.job (
            id, queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us,
            backoff_max_us, backoff_jitter, expires_at, created_at, target, key, payload
        )
        overriding system value
        select
            i.id,
            insert_jobs.queue_id,
            i.run_at,
            insert_jobs.max_attempts,
            insert_jobs.contract_id,
            insert_jobs.visibility_us,
            insert_jobs.backoff_base_us,
            insert_jobs.backoff_max_us,
            insert_jobs.backoff_jitter,
            insert_jobs.expires_at,
            insert_jobs.created_at,
            insert_jobs.target,
            i.key,
            i.payload
        from (
            select distinct on (u.key collate "C", case when u.key is null then u.ordinal end)
                u.id,
                u.key collate "C" as key,
                coalesce(u.payload, 'null') as payload,
                u.run_at,
                u.ordinal,
                case when u.key is null then u.ordinal end as keyless
            from rows from (
                pg_catalog.unnest(v_ids),
                pg_catalog.unnest(insert_jobs.keys),
                pg_catalog.unnest(insert_jobs.payloads),
                pg_catalog.unnest(insert_jobs.run_ats)
            ) with ordinality as u (id, key, payload, run_at, ordinal)
            order by u.key collate "C", case when u.key is null then u.ordinal end, u.ordinal
        ) as i
        -- The order of the subquery, so that nothing is sorted twice.
        order by i.key, i.keyless, i.ordinal
        on conflict do nothing;
        get diagnostics v_inserted = row_count;

        exit when v_inserted = v_count;
        -- New statements, so new snapshots: they see the rows that made the insert do nothing, unless
        -- one has finished meanwhile; then its key is free again and the next round inserts. Looked at
        -- once, and what was seen is what is returned: a second look may find less.
        v_found := array(
            select
                case
                    when u.key is null then u.id
                    else dever.unfinished_id(insert_jobs.target, insert_jobs.queue_id, u.key)
                end
            from rows from (
                pg_catalog.unnest(v_ids),
                pg_catalog.unnest(insert_jobs.keys)
            ) with ordinality as u (id, key, ordinal)
            order by u.ordinal
        );
        exit when pg_catalog.array_position(v_found, null) is null;
        if v_inserted > 0 then
            raise exception using
                errcode = 'DV010',
                message = 'a key was freed while the batch was inserted',
                hint = 'dever.enqueue_under inserts it again';
        end if;
        v_round := v_round + 1;
        if v_round > 1000 then
            perform dever.raise_unsettled();
        end if;
    end loop;

    if v_inserted = v_count then
        return query
        select u.ordinal::integer, u.id, true
        from pg_catalog.unnest(v_ids) with ordinality as u (id, ordinal);
    else
        -- An id of ours under the key means that this call inserted it.
        return query
        select u.ordinal::integer, u.found_id, u.found_id = u.id
        from rows from (
            pg_catalog.unnest(v_ids),
            pg_catalog.unnest(v_found)
        ) with ordinality as u (id, found_id, ordinal)
        order by u.ordinal;
    end if;
    if exists (
        select
        from pg_catalog.unnest(insert_jobs.run_ats) as r (run_at)
        where r.run_at <= insert_jobs.created_at
    ) then
        perform dever.wake(insert_jobs.queue_id);
    end if;
end
$$;

create or replace function dever.claim(
    queue text,
    worker text,
    n integer,
    lease interval default null,
    contracts integer[] default null
)
returns table (
    id bigint,
    token bigint,
    target text,
    key text,
    attempt integer,
    max_attempts integer,
    fingerprint text,
    payload jsonb,
    run_at timestamptz,
    lease_until timestamptz
)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_lease bigint := dever.positive_microseconds(claim.lease, 'lease');
    v_worker text;
    v_queue_id bigint;
    v_now timestamptz;
    v_setting text;
    v_contracts_hash bigint;
    v_hint bigint[];
    v_started bigint;
    v_finished bigint;
    v_index pg_catalog.oid := 'dever.job_claim_idx'::pg_catalog.regclass;
    v_entries bigint;
    v_pages bigint;
    v_dear boolean;
    v_full boolean := true;
    v_bound_run_at timestamptz := '-infinity';
    v_bound_id bigint := 0;
    v_ctids tid[];
    v_found_contracts integer[];
    v_head_run_at timestamptz;
    v_head_id bigint;
begin
    if claim.n is null or claim.n <= 0 then
        return;
    end if;
    if claim.n > 10000 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('n is %s, at most 10,000 jobs can be claimed in one call', claim.n),
            hint = 'claim what you have free slots for';
    end if;
    select q.id into v_queue_id
    from dever.queue as q
    where q.name = claim.queue and not q.paused;
    -- Schedules and outboxes claim from reserved queues, so only the form of the name is checked.
    if v_queue_id is null and (claim.queue is null or not pg_catalog.starts_with(claim.queue, '__dever_')) then
        perform dever.check_name(claim.queue, 'queue');
    end if;
    v_worker := dever.check_name(claim.worker, 'worker');
    if v_queue_id is null then
        return;
    end if;

    v_setting := 'dever.head_' || v_queue_id;
    v_contracts_hash := pg_catalog.hashtextextended(
        coalesce(pg_catalog.array_to_string(claim.contracts, ','), 'messages'), 0
    ) & 9223372036854775807;
    -- Read into a variable: a volatile clock in the condition could not bound the index scan.
    v_now := dever.clock();
    v_started := (extract(epoch from v_now) * 1000000)::bigint;
    if pg_catalog.current_setting(v_setting, true) ~ '^[0-9]{1,18}( [0-9]{1,18}){3} [0-9]{1,10}$' then
        v_hint := pg_catalog.string_to_array(pg_catalog.current_setting(v_setting, true), ' ')::bigint[];
        if v_hint[1] = v_contracts_hash % 1000000000000000000
            and v_started >= v_hint[4]
            and v_started < v_hint[4] + 20 * v_hint[5]
        then
            v_full := false;
            v_bound_run_at := timestamptz '1970-01-01 00:00:00+00' + dever.as_interval(v_hint[2]);
            v_bound_id := v_hint[3];
        end if;
    end if;

    v_entries := pg_catalog.pg_stat_get_xact_tuples_returned(v_index);
    v_pages := pg_catalog.pg_stat_get_xact_blocks_fetched(v_index);
    select
        pg_catalog.array_agg(c.ctid),
        pg_catalog.array_agg(c.contract_id),
        (pg_catalog.array_agg(c.run_at))[1],
        (pg_catalog.array_agg(c.id))[1]
    into v_ctids, v_found_contracts, v_head_run_at, v_head_id
    from (
        select j.ctid, j.contract_id, j.run_at, j.id
        from dever.job as j
        where j.queue_id = v_queue_id
            and j.queue_id > 0
            and j.run_at <= v_now
            and (j.run_at, j.id) >= (v_bound_run_at, v_bound_id)
            and (j.lease_until is null or j.lease_until <= v_now)
            and j.attempt < j.max_attempts
            and (j.expires_at is null or j.expires_at > v_now)
            and case
                when claim.contracts is null then j.contract_id is null
                else j.contract_id = any (claim.contracts)
            end
        order by j.queue_id, j.run_at, j.id
        limit claim.n
        for update skip locked
    ) as c;

    v_entries := pg_catalog.pg_stat_get_xact_tuples_returned(v_index) - v_entries;
    v_pages := pg_catalog.pg_stat_get_xact_blocks_fetched(v_index) - v_pages;
    v_dear := v_entries > 250 + 10::bigint * claim.n
        or v_pages > 20 + claim.n / 50
        or (v_pages = 0 and dever.clock() - v_now > interval '2 milliseconds' + claim.n * interval '20 microseconds');
    -- Written only when it will be used: after a dear scan, or while a bound is in force.
    if not v_full or v_dear then
        v_finished := (extract(epoch from dever.clock()) * 1000000)::bigint;
        if coalesce(pg_catalog.cardinality(v_ctids), 0) < claim.n then
            -- Nothing more was due: start the next scan at this instant, less a lag for ordinary commits.
            v_head_run_at := greatest(v_bound_run_at, v_now - interval '100 milliseconds');
            v_head_id := 0;
        end if;
        perform pg_catalog.set_config(
            v_setting,
            pg_catalog.concat_ws(
                ' ',
                v_contracts_hash % 1000000000000000000,
                greatest((extract(epoch from v_head_run_at) * 1000000)::bigint, 0),
                v_head_id,
                case when v_full then v_finished else v_hint[4] end,
                case when v_full then least(v_finished - v_started, 1000000) else v_hint[5] end
            ),
            false
        );
    end if;
    if v_ctids is null then
        return;
    end if;

    v_now := dever.clock();
    return query
    with claimed as (
        update dever.job as j
        set
            attempt = j.attempt + 1,
            token = pg_catalog.nextval('dever.token_seq'),
            lease_until = v_now + coalesce(v_lease, j.visibility_us) * interval '1 microsecond',
            worker = v_worker
        where j.ctid = any (v_ctids)
        returning
            j.id, j.token, j.target, j.key, j.attempt, j.max_attempts, j.contract_id, j.payload,
            j.run_at, j.lease_until
    )
    select
        c.id,
        c.token,
        c.target,
        c.key,
        c.attempt,
        c.max_attempts,
        k.fingerprint,
        c.payload,
        c.run_at,
        c.lease_until
    from claimed as c
    left join (
        select i.id, i.fingerprint from dever.contract as i where i.id = any (v_found_contracts)
    ) as k on k.id = c.contract_id
    order by c.run_at, c.id;
end
$$;

create or replace function dever.lock_claims(
    ids bigint[],
    tokens bigint[],
    out held bigint[],
    out places tid[],
    out busy bigint[]
)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(lock_claims.ids), 0);
    v_leases timestamptz[];
    v_first_end timestamptz;
    v_now timestamptz;
begin
    -- Not asked about a usual batch: a call of a function is a good part of what is paid here per batch.
    if v_count > 1000 or v_count <> coalesce(pg_catalog.cardinality(lock_claims.tokens), 0) then
        perform dever.check_lengths(v_count, array[coalesce(pg_catalog.cardinality(lock_claims.tokens), 0)]);
    end if;
    select
        pg_catalog.array_agg(l.id),
        pg_catalog.array_agg(l.place),
        pg_catalog.array_agg(l.lease_until),
        pg_catalog.min(l.lease_until)
    into held, places, v_leases, v_first_end
    from (
        select j.id, j.place, j.lease_until
        from rows from (
            pg_catalog.unnest(lock_claims.ids),
            pg_catalog.unnest(lock_claims.tokens)
        ) as u (id, token)
        cross join lateral (
            select i.id, i.ctid as place, i.lease_until
            from dever.job as i
            where i.id = u.id and i.token = u.token
            for update skip locked
        ) as j
    ) as l;
    v_now := dever.clock();
    busy := '{}';
    if coalesce(pg_catalog.cardinality(held), 0) < v_count then
        busy := array(
            select j.id
            from rows from (
                pg_catalog.unnest(lock_claims.ids),
                pg_catalog.unnest(lock_claims.tokens)
            ) as u (id, token)
            cross join lateral (
                select i.id from dever.job as i where i.id = u.id and i.token = u.token limit 1
            ) as j
            where j.id <> all (coalesce(held, '{}'))
        );
    end if;
    -- A row without a lease has no claim either, although its token is the last one.
    if v_first_end > v_now and pg_catalog.array_position(v_leases, null) is null then
        return;
    end if;
    select
        coalesce(pg_catalog.array_agg(l.id), '{}'),
        coalesce(pg_catalog.array_agg(l.place), '{}')
    into held, places
    from rows from (
        pg_catalog.unnest(held),
        pg_catalog.unnest(places),
        pg_catalog.unnest(v_leases)
    ) as l (id, place, lease_until)
    where l.lease_until > v_now;
end
$$;

create or replace function dever.move_to_finished(places tid[], outcome text, reasons text[], errors text[])
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
    v_places tid[] := move_to_finished.places;
    v_each boolean := move_to_finished.errors is not null
        or coalesce(move_to_finished.reasons[1] <> any (move_to_finished.reasons), false);
    v_moved bigint;
begin
    if v_each then
        -- What is of each row is told to the row first: a join with it while the rows move would be paid by
        -- every success. One reason for all needs neither.
        with told as (
            update dever.job as j
            set
                reason = pg_catalog.left(r.reason, 255),
                -- An end without an error of its own keeps the one of the attempt before.
                error = coalesce(pg_catalog.left(r.error, 10000), j.error)
            from (
                select distinct on (u.place) u.place, u.reason, u.error
                from rows from (
                    pg_catalog.unnest(move_to_finished.places),
                    pg_catalog.unnest(move_to_finished.reasons),
                    pg_catalog.unnest(move_to_finished.errors)
                ) as u (place, reason, error)
            ) as r
            where j.ctid = r.place
            returning j.ctid as place
        )

        select pg_catalog.array_agg(t.place) into v_places
        from told as t;
    end if;
    with gone as (
        delete from dever.job as j
        where j.ctid = any (v_places)
        returning j.*
    ),

    -- Once a queue, not once a row.
    keeping as (
        select q.id
        from (select distinct g.queue_id from gone as g) as d
        inner join dever.queue as q on q.id = d.queue_id
        where case move_to_finished.outcome
            when 'succeeded' then q.keep_succeeded_us
            when 'dead' then q.keep_dead_us
            else q.keep_cancelled_us
        end > 0
    ),

    kept as (
        insert into dever.finished (
            id, queue_id, outcome, finished_at, attempt, max_attempts, token, contract_id, visibility_us,
            backoff_base_us, backoff_max_us, backoff_jitter, expires_at, run_at, created_at, target, key,
            worker, reason, error, payload
        )
        select
            g.id,
            g.queue_id,
            move_to_finished.outcome,
            v_now,
            g.attempt,
            g.max_attempts,
            g.token,
            g.contract_id,
            g.visibility_us,
            g.backoff_base_us,
            g.backoff_max_us,
            g.backoff_jitter,
            g.expires_at,
            coalesce(g.due_at, g.run_at),
            g.created_at,
            g.target,
            g.key,
            g.worker,
            case when v_each then g.reason else pg_catalog.left(move_to_finished.reasons[1], 255) end,
            case when move_to_finished.outcome <> 'succeeded' then g.error end,
            g.payload
        from gone as g
        inner join keeping as k on k.id = g.queue_id
    )

    select pg_catalog.count(*) into v_moved
    from gone;
    return v_moved;
end
$$;

update dever.installation
set version = '0.3.0', protocol_min = 1, protocol_max = 1,
    upgraded_at = dever.clock();

do $$
declare
    v_relation text;
begin
    if exists (select from pg_catalog.pg_extension as e where e.extname = 'dever') then
        foreach v_relation in array array[
            'dever.queue', 'dever.queue_id_seq',
            'dever.contract', 'dever.contract_id_seq',
            'dever.policy', 'dever.policy_id_seq',
            'dever.worker', 'dever.worker_policy',
            'dever.token_seq',
            'dever.job', 'dever.job_id_seq',
            'dever.finished',
            'dever.schedule', 'dever.lock'
        ] loop
            perform pg_catalog.pg_extension_config_dump(v_relation::pg_catalog.regclass, '');
        end loop;
    end if;
end
$$;
