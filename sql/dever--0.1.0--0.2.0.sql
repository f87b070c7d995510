-- Upgrades Dever SQL 0.1.0 to 0.2.0. Built by scripts/build-sql; do not edit.

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
            message = 'Dever SQL is not installed in this database, this file upgrades 0.1.0 to 0.2.0',
            hint = 'run the install script of 0.2.0';
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
    if v_installed <> '0.1.0' then
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s, this file upgrades 0.1.0 to 0.2.0', v_installed
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

comment on function dever.check_keys(text[]) is 'The one rule for idempotency keys, of jobs and of messages';

create or replace function dever.store_declarations(contracts jsonb)
returns table (target text, fingerprint text, contract_id integer, policy_id bigint)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_declaration jsonb;
    v_queue_id bigint;
begin
    if pg_catalog.jsonb_typeof(store_declarations.contracts) is distinct from 'array' then
        raise exception using
            errcode = 'DV007',
            message = 'contracts must be a JSON array of declarations',
            hint = 'see docs/wire.md for the form';
    end if;
    for v_declaration in
        select d.value
        from pg_catalog.jsonb_array_elements(store_declarations.contracts) as d
        order by (d.value ->> 'target') collate "C", (d.value ->> 'fingerprint') collate "C"
    loop
        perform dever.check_declaration(v_declaration);
        if v_declaration #>> '{schedule,spec}' is not null then
            perform dever.cron_rule(v_declaration #>> '{schedule,spec}');
        end if;
        v_queue_id := dever.queue_for(v_declaration ->> 'queue');
        target := v_declaration ->> 'target';
        fingerprint := v_declaration ->> 'fingerprint';

        loop
            select c.id into contract_id
            from dever.contract as c
            where c.target = store_declarations.target and c.fingerprint = store_declarations.fingerprint;
            exit when found;
            insert into dever.contract (target, fingerprint, wire_schema)
            values (store_declarations.target, store_declarations.fingerprint, v_declaration -> 'schema')
            on conflict (target, fingerprint) do nothing;
        end loop;

        loop
            select p.id into policy_id
            from dever.policy as p
            where p.target = store_declarations.target
                and p.contract_id = store_declarations.contract_id
                and p.queue_id = v_queue_id
                and p.max_attempts = (v_declaration ->> 'retry')::integer
                and p.timeout_us = (v_declaration ->> 'timeout_ms')::bigint * 1000
                and p.backoff_base_us = (v_declaration ->> 'backoff_base_ms')::bigint * 1000
                and p.backoff_max_us = (v_declaration ->> 'backoff_max_ms')::bigint * 1000
                and p.backoff_jitter = coalesce((v_declaration ->> 'backoff_jitter')::double precision, 0)
                and p.schedule_spec is not distinct from v_declaration #>> '{schedule,spec}'
                and p.schedule_missed is not distinct from case
                    when v_declaration #>> '{schedule,spec}' is not null
                        then coalesce(v_declaration #>> '{schedule,missed}', 'catch_up')
                end;
            exit when found;
            insert into dever.policy (
                contract_id, target, queue_id, max_attempts, timeout_us, backoff_base_us,
                backoff_max_us, backoff_jitter, schedule_spec, schedule_missed
            )
            values (
                store_declarations.contract_id,
                store_declarations.target,
                v_queue_id,
                (v_declaration ->> 'retry')::integer,
                (v_declaration ->> 'timeout_ms')::bigint * 1000,
                (v_declaration ->> 'backoff_base_ms')::bigint * 1000,
                (v_declaration ->> 'backoff_max_ms')::bigint * 1000,
                coalesce((v_declaration ->> 'backoff_jitter')::double precision, 0),
                v_declaration #>> '{schedule,spec}',
                case
                    when v_declaration #>> '{schedule,spec}' is not null
                        then coalesce(v_declaration #>> '{schedule,missed}', 'catch_up')
                end
            )
            on conflict do nothing;
        end loop;
        return next;
    end loop;
end
$$;

create or replace function dever.enlist_worker(worker text, policies bigint[], alive interval, about jsonb)
returns void
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_alive bigint := dever.positive_microseconds(enlist_worker.alive, 'alive');
    v_now timestamptz;
begin
    perform dever.check_name(enlist_worker.worker, 'worker');
    if v_alive is null then
        raise exception using
            errcode = 'DV007',
            message = 'alive is missing',
            hint = 'say how long the worker counts as live without a sign of life';
    end if;
    v_now := dever.clock();
    insert into dever.worker as w (name, about, started_at, alive_until)
    values (
        enlist_worker.worker,
        coalesce(enlist_worker.about, '{}'),
        v_now,
        v_now + dever.as_interval(v_alive)
    )
    on conflict (name) do update
    set
        about = excluded.about,
        started_at = excluded.started_at,
        alive_until = excluded.alive_until,
        left_at = null;
    delete from dever.worker_policy as wp
    where wp.worker = enlist_worker.worker and wp.policy_id <> all (enlist_worker.policies);
    insert into dever.worker_policy (policy_id, worker)
    select distinct p.id, enlist_worker.worker
    from pg_catalog.unnest(enlist_worker.policies) as p (id)
    on conflict (policy_id, worker) do nothing;
    -- A declared cron gets its cursor now, not at the first tick: its first window may come before that.
    perform dever.declare_schedules();
end
$$;

create or replace function dever.register(
    worker text,
    contracts jsonb,
    alive interval,
    about jsonb default '{}'
)
returns table (target text, fingerprint text, contract_id integer)
language plpgsql
volatile
parallel unsafe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_policy_id bigint;
    v_policies bigint[] := '{}';
begin
    perform dever.positive_microseconds(register.alive, 'alive');
    for target, fingerprint, contract_id, v_policy_id in
        select s.target, s.fingerprint, s.contract_id, s.policy_id
        from dever.store_declarations(register.contracts) as s
    loop
        v_policies := v_policies || v_policy_id;
        return next;
    end loop;
    if register.worker is not null then
        perform dever.enlist_worker(register.worker, v_policies, register.alive, register.about);
    elsif pg_catalog.has_function_privilege('dever.declare_schedules()', 'execute') then
        -- Not for a role that may only enqueue: it could move the cursor of a cron, and windows be missed.
        perform dever.declare_schedules();
    end if;
end
$$;

create or replace function dever.unfinished_id(target text, queue_id bigint, key text)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    -- The newest: a stricter isolation may still show a job that has finished since, beside the row that
    -- this transaction has inserted under the freed key. max() over an expression, because an order by
    -- id, or max(id), could be answered by walking the primary key.
    if unfinished_id.target is not null then
        return (
            select pg_catalog.max(j.id + 0) from dever.job as j
            where j.target = unfinished_id.target and j.key = unfinished_id.key
        );
    end if;
    return (
        select pg_catalog.max(j.id + 0) from dever.job as j
        where j.queue_id = unfinished_id.queue_id and j.key = unfinished_id.key and j.target is null
    );
end
$$;

create or replace function dever.raise_unsettled()
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = '40001',
        message = 'could not settle an idempotency key that others keep finishing and enqueuing again',
        hint = 'run the transaction again';
end
$$;

comment on function dever.raise_unsettled() is 'Raises 40001: the transaction can be run again';

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
                u.id, u.key, coalesce(u.payload, 'null') as payload, u.run_at, u.ordinal
            from rows from (
                pg_catalog.unnest(v_ids),
                pg_catalog.unnest(insert_jobs.keys),
                pg_catalog.unnest(insert_jobs.payloads),
                pg_catalog.unnest(insert_jobs.run_ats)
            ) with ordinality as u (id, key, payload, run_at, ordinal)
            order by u.key collate "C", case when u.key is null then u.ordinal end, u.ordinal
        ) as i
        order by i.key collate "C", i.ordinal
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

create or replace function dever.insert_under(
    policy dever.policy,
    visibility_us bigint,
    keys text[],
    payloads jsonb[],
    run_ats timestamptz[],
    created_at timestamptz
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select i.ordinal, i.id, i.created
    from dever.insert_jobs(
        (insert_under.policy).target,
        (insert_under.policy).contract_id,
        (insert_under.policy).queue_id,
        (insert_under.policy).max_attempts,
        insert_under.visibility_us,
        (insert_under.policy).backoff_base_us,
        (insert_under.policy).backoff_max_us,
        (insert_under.policy).backoff_jitter,
        insert_under.keys,
        insert_under.payloads,
        insert_under.run_ats,
        null,
        insert_under.created_at
    ) as i;
end
$$;

comment on function dever.insert_under(dever.policy, bigint, text[], jsonb[], timestamptz[], timestamptz) is
'dever.insert_jobs for jobs of a policy';

create or replace function dever.enqueue_under(
    policy dever.policy,
    keys text[],
    payloads jsonb[],
    run_ats timestamptz[]
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_count integer := pg_catalog.cardinality(enqueue_under.keys);
    v_instant timestamptz;
    v_visibility bigint;
    v_payloads jsonb[];
    v_run_ats timestamptz[];
    v_now timestamptz := dever.clock();
begin
    perform dever.check_keys(enqueue_under.keys);
    if enqueue_under.run_ats is not null then
        foreach v_instant in array enqueue_under.run_ats loop
            if v_instant is not null then
                v_instant := dever.check_instant(v_instant, 'run_at');
            end if;
        end loop;
    end if;
    select q.visibility_us into strict v_visibility
    from dever.queue as q
    where q.id = (enqueue_under.policy).queue_id;
    v_payloads := coalesce(enqueue_under.payloads, pg_catalog.array_fill('null'::jsonb, array[v_count]));
    v_run_ats := coalesce(
        (
            select pg_catalog.array_agg(coalesce(r.run_at, v_now) order by r.ordinal)
            from pg_catalog.unnest(enqueue_under.run_ats) with ordinality as r (run_at, ordinal)
        ),
        pg_catalog.array_fill(v_now, array[v_count])
    );
    if v_count = 1 then
        return query
        select i.ordinal, i.id, i.created
        from dever.insert_under(
            enqueue_under.policy, v_visibility, enqueue_under.keys, v_payloads, v_run_ats, v_now
        ) as i;
        return;
    end if;
    -- In a subtransaction, so that a batch which has to begin again gives back the keys it inserted.
    for v_round in 1 .. 1000 loop
        begin
            return query
            select i.ordinal, i.id, i.created
            from dever.insert_under(
                enqueue_under.policy, v_visibility, enqueue_under.keys, v_payloads, v_run_ats, v_now
            ) as i;
            return;
        exception
            when sqlstate 'DV010' then
                null;
        end;
    end loop;
    perform dever.raise_unsettled();
end
$$;

create or replace function dever.send_under(
    queue text,
    payload jsonb,
    key text,
    delay interval,
    run_at timestamptz,
    expires interval,
    max_attempts integer
)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_delay bigint := dever.microseconds(send_under.delay, 'delay');
    v_expires bigint := dever.positive_microseconds(send_under.expires, 'expires');
    v_payload jsonb := coalesce(send_under.payload, 'null');
    v_queue_id bigint;
    v_queue dever.queue;
    v_now timestamptz;
    v_run_at timestamptz;
    v_id bigint;
begin
    if send_under.key is not null then
        perform dever.check_keys(array[send_under.key]);
    end if;
    if send_under.max_attempts < 1 then
        raise exception using
            errcode = 'DV007',
            message = 'max_attempts is below 1',
            hint = 'it is the total number of deliveries, the first included';
    end if;
    perform dever.check_instant(send_under.run_at, 'run_at');
    perform dever.check_payload_limits(v_payload, 'payload');
    if dever.json_fault(v_payload) is not null then
        raise exception using
            errcode = 'DV005',
            message = 'payload ' || dever.json_fault(v_payload),
            hint = 'send large numbers as text';
    end if;
    v_queue_id := dever.queue_for(send_under.queue);
    select q.* into strict v_queue
    from dever.queue as q
    where q.id = v_queue_id;
    v_now := dever.clock();
    v_run_at := case
        when v_delay is null then coalesce(send_under.run_at, v_now)
        else v_now + dever.as_interval(greatest(v_delay, 0))
    end;
    select i.id into strict v_id
    from dever.insert_jobs(
        null,
        null,
        v_queue.id,
        coalesce(send_under.max_attempts, v_queue.max_attempts),
        v_queue.visibility_us,
        v_queue.backoff_base_us,
        v_queue.backoff_max_us,
        0,
        array[send_under.key],
        array[v_payload],
        array[v_run_at],
        v_now + dever.as_interval(v_expires),
        v_now
    ) as i;
    return v_id;
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
    v_started := (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint;
    if pg_catalog.current_setting(v_setting, true) ~ '^[0-9]{1,18}( [0-9]{1,18}){3} [0-9]{1,10}$' then
        v_hint := pg_catalog.string_to_array(pg_catalog.current_setting(v_setting, true), ' ')::bigint[];
        if v_hint[1] = v_contracts_hash % 1000000000000000000
            and v_started between v_hint[4] and v_hint[4] + 20 * v_hint[5]
        then
            v_full := false;
            v_bound_run_at := timestamptz '1970-01-01 00:00:00+00' + dever.as_interval(v_hint[2]);
            v_bound_id := v_hint[3];
        end if;
    end if;

    -- Read into a variable: a volatile clock in the condition could not bound the index scan.
    v_entries := pg_catalog.pg_stat_get_xact_tuples_returned(v_index);
    v_pages := pg_catalog.pg_stat_get_xact_blocks_fetched(v_index);
    v_now := dever.clock();
    select pg_catalog.array_agg(c.ctid), (pg_catalog.array_agg(c.run_at))[1], (pg_catalog.array_agg(c.id))[1]
    into v_ctids, v_head_run_at, v_head_id
    from (
        select j.ctid, j.run_at, j.id
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

    v_finished := (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint;
    if coalesce(pg_catalog.cardinality(v_ctids), 0) < claim.n then
        -- Nothing more was due: start the next scan at this instant, less a lag for ordinary commits.
        v_head_run_at := greatest(v_bound_run_at, v_now - interval '100 milliseconds');
        v_head_id := 0;
    end if;
    v_entries := pg_catalog.pg_stat_get_xact_tuples_returned(v_index) - v_entries;
    v_pages := pg_catalog.pg_stat_get_xact_blocks_fetched(v_index) - v_pages;
    v_dear := v_entries > 1000 + 10::bigint * claim.n
        or v_pages > 20 + claim.n / 50
        or (v_pages = 0 and v_finished - v_started > 2000 + 20::bigint * claim.n);
    -- Written only when it will be used: after a dear scan, or while a bound is in force.
    if not v_full or v_dear then
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
        select i.id, i.fingerprint from dever.contract as i where i.id = any (claim.contracts)
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
    perform dever.check_lengths(v_count, array[coalesce(pg_catalog.cardinality(lock_claims.tokens), 0)]);
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

comment on function dever.lock_claims(bigint[], bigint[]) is
'Locks the rows whose claim is in force; tells them from those that another transaction holds';

create or replace function dever.move_to_finished(places tid[], outcome text, reasons text[], errors text[])
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_nestloop = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
    v_moved bigint;
begin
    with gone as (
        delete from dever.job as j
        where j.ctid = any (move_to_finished.places)
        returning j.ctid as place, j.*
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
            pg_catalog.left(r.reason, 255),
            -- An end without an error of its own keeps the one of the attempt before.
            case when move_to_finished.outcome <> 'succeeded' then coalesce(pg_catalog.left(r.error, 10000), g.error) end,
            g.payload
        from gone as g
        left join (
            select distinct on (u.place) u.place, u.reason, u.error
            from rows from (
                pg_catalog.unnest(move_to_finished.places),
                pg_catalog.unnest(move_to_finished.reasons),
                pg_catalog.unnest(move_to_finished.errors)
            ) as u (place, reason, error)
            where move_to_finished.reasons is not null
        ) as r on r.place = g.place
        where (
            select case move_to_finished.outcome
                when 'succeeded' then q.keep_succeeded_us
                when 'dead' then q.keep_dead_us
                else q.keep_cancelled_us
            end
            from dever.queue as q
            where q.id = g.queue_id
        ) > 0
    )

    select pg_catalog.count(*) into v_moved
    from gone;
    return v_moved;
end
$$;

comment on function dever.move_to_finished(tid[], text, text[], text[]) is
'Moves locked rows from dever.job to dever.finished with an outcome; how many there were';

create or replace function dever.renew(ids bigint[], tokens bigint[], lease interval)
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_lease bigint := dever.positive_microseconds(renew.lease, 'lease');
    v_hold record;
    v_now timestamptz;
begin
    v_hold := dever.lock_claims(renew.ids, renew.tokens);
    v_now := dever.clock();
    update dever.job as j
    set lease_until = v_now + coalesce(v_lease, j.visibility_us) * interval '1 microsecond'
    where j.ctid = any (v_hold.places);
    return query select v.id, v.ok from dever.verdicts(renew.ids, v_hold.held, v_hold.busy) as v;
end
$$;

create or replace function dever.complete(ids bigint[], tokens bigint[])
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_hold record;
begin
    v_hold := dever.lock_claims(complete.ids, complete.tokens);
    if dever.move_to_finished(v_hold.places, 'succeeded', null, null) = pg_catalog.cardinality(complete.ids) then
        -- As many as there are ids: all of them, and none twice. The common case needs no comparing.
        return query select u.id, true from pg_catalog.unnest(complete.ids) as u (id);
        return;
    end if;
    return query select v.id, v.ok from dever.verdicts(complete.ids, v_hold.held, v_hold.busy) as v;
end
$$;

create or replace function dever.retry(
    ids bigint[],
    tokens bigint[],
    reasons text[],
    errors text[] default null,
    delays interval[] default null
)
returns table (id bigint, outcome text)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(retry.ids), 0);
    v_hold record;
    v_now timestamptz;
    v_delays bigint[];
    v_dead bigint[];
    v_places tid[];
    v_reasons text[];
    v_errors text[];
begin
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(retry.tokens), 0),
        coalesce(pg_catalog.cardinality(retry.reasons), 0),
        coalesce(pg_catalog.cardinality(retry.errors), v_count),
        coalesce(pg_catalog.cardinality(retry.delays), v_count)
    ]);
    v_delays := array(
        select dever.microseconds(d.delay, 'delay')
        from pg_catalog.unnest(retry.delays) with ordinality as d (delay, ordinal)
        order by d.ordinal
    );
    v_hold := dever.lock_claims(retry.ids, retry.tokens);
    v_now := dever.clock();

    select
        pg_catalog.array_agg(j.id),
        pg_catalog.array_agg(j.place),
        pg_catalog.array_agg(coalesce(u.reason, 'handler_failed')),
        pg_catalog.array_agg(u.error)
    into v_dead, v_places, v_reasons, v_errors
    from rows from (
        pg_catalog.unnest(retry.ids),
        pg_catalog.unnest(retry.tokens),
        pg_catalog.unnest(retry.reasons),
        pg_catalog.unnest(retry.errors)
    )
        as u (id, token, reason, error)
    cross join lateral (
        select i.id, i.ctid as place
        from dever.job as i
        where i.id = u.id and i.token = u.token and i.attempt >= i.max_attempts
        limit 1
    ) as j
    where u.id = any (v_hold.held);

    update dever.job as j
    set
        run_at = v_now + dever.as_interval(
            case
                when u.delay is not null then greatest(u.delay, 0)
                else (
                    dever.backoff(j.attempt, j.backoff_base_us, j.backoff_max_us)
                    * (1 - j.backoff_jitter * pg_catalog.random())
                )::bigint
            end
        ),
        lease_until = null,
        worker = null,
        reason = pg_catalog.left(coalesce(u.reason, 'handler_failed'), 255),
        error = pg_catalog.left(u.error, 10000)
    from rows from (
        pg_catalog.unnest(retry.ids),
        pg_catalog.unnest(retry.tokens),
        pg_catalog.unnest(retry.reasons),
        pg_catalog.unnest(retry.errors),
        pg_catalog.unnest(v_delays)
    )
        as u (id, token, reason, error, delay)
    cross join lateral (
        select i.ctid as place
        from dever.job as i
        where i.id = u.id and i.token = u.token and i.attempt < i.max_attempts
        limit 1
    ) as k
    where j.ctid = k.place and u.id = any (v_hold.held);

    perform dever.move_to_finished(v_places, 'dead', v_reasons, v_errors);

    return query
    select
        v.id,
        case
            when v.ok is null then 'busy'
            when not v.ok then 'lost'
            when v.id = any (coalesce(v_dead, '{}')) then 'dead'
            else 'retried'
        end
    from dever.verdicts(retry.ids, v_hold.held, v_hold.busy) as v;
end
$$;

create or replace function dever.bury(
    ids bigint[],
    tokens bigint[],
    reasons text[],
    errors text[] default null
)
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(bury.ids), 0);
    v_hold record;
begin
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(bury.tokens), 0),
        coalesce(pg_catalog.cardinality(bury.reasons), 0),
        coalesce(pg_catalog.cardinality(bury.errors), v_count)
    ]);
    v_hold := dever.lock_claims(bury.ids, bury.tokens);
    perform dever.move_to_finished(
        pg_catalog.array_agg(j.place),
        'dead',
        pg_catalog.array_agg(coalesce(u.reason, 'handler_failed')),
        pg_catalog.array_agg(u.error)
    )
    from rows from (
        pg_catalog.unnest(bury.ids),
        pg_catalog.unnest(bury.tokens),
        pg_catalog.unnest(bury.reasons),
        pg_catalog.unnest(bury.errors)
    )
        as u (id, token, reason, error)
    cross join lateral (
        select i.ctid as place from dever.job as i where i.id = u.id and i.token = u.token limit 1
    ) as j
    where u.id = any (v_hold.held);
    return query select v.id, v.ok from dever.verdicts(bury.ids, v_hold.held, v_hold.busy) as v;
end
$$;

create or replace function dever.block(
    ids bigint[],
    tokens bigint[],
    reasons text[],
    errors text[] default null
)
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(block.ids), 0);
    v_hold record;
    v_reason text;
begin
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(block.tokens), 0),
        coalesce(pg_catalog.cardinality(block.reasons), 0),
        coalesce(pg_catalog.cardinality(block.errors), v_count)
    ]);
    foreach v_reason in array coalesce(block.reasons, '{}') loop
        if v_reason is null
            or v_reason not in ('unknown_target', 'schema_mismatch', 'invalid_payload', 'invalid_policy')
        then
            raise exception using
                errcode = 'DV007',
                message = 'a job can be blocked as unknown_target, schema_mismatch, invalid_payload or invalid_policy',
                hint = 'a job that failed is retried or buried instead';
        end if;
    end loop;
    v_hold := dever.lock_claims(block.ids, block.tokens);
    update dever.job as j
    set
        due_at = j.run_at,
        run_at = 'infinity',
        lease_until = null,
        worker = null,
        reason = u.reason,
        error = pg_catalog.left(u.error, 10000)
    from rows from (
        pg_catalog.unnest(block.ids),
        pg_catalog.unnest(block.tokens),
        pg_catalog.unnest(block.reasons),
        pg_catalog.unnest(block.errors)
    )
        as u (id, token, reason, error)
    cross join lateral (
        select i.ctid as place from dever.job as i where i.id = u.id and i.token = u.token limit 1
    ) as k
    where j.ctid = k.place and u.id = any (v_hold.held);
    return query select v.id, v.ok from dever.verdicts(block.ids, v_hold.held, v_hold.busy) as v;
end
$$;

create or replace function dever.release(ids bigint[], tokens bigint[])
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_hold record;
    v_dead tid[];
    v_queue_id bigint;
begin
    v_hold := dever.lock_claims(release.ids, release.tokens);
    v_dead := array(
        select j.ctid from dever.job as j
        where j.ctid = any (v_hold.places) and j.attempt >= j.max_attempts
    );
    perform dever.move_to_finished(
        v_dead, 'dead', pg_catalog.array_fill('interrupted'::text, array[pg_catalog.cardinality(v_dead)]), null
    );
    for v_queue_id in
        with freed as (
            update dever.job as j
            set lease_until = null, worker = null
            where j.ctid = any (v_hold.places)
            returning j.queue_id
        )
        select distinct f.queue_id from freed as f
    loop
        perform dever.wake(v_queue_id);
    end loop;
    return query select v.id, v.ok from dever.verdicts(release.ids, v_hold.held, v_hold.busy) as v;
end
$$;

create or replace function dever.sweep(n integer default 1000)
returns table (what text, rows bigint)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_cursor dever.sweep_cursor;
    v_start dever.sweep_cursor;
    v_queue dever.queue;
    v_left bigint;
    v_prune bigint;
    v_live integer[];
    v_stale integer[];
    v_elsewhere integer[];
    v_sample record;
    v_ids bigint[];
    v_places tid[];
    v_count bigint;
    v_exhausted bigint := 0;
    v_expired bigint := 0;
    v_blocked bigint := 0;
    v_unblocked bigint := 0;
    v_moved bigint := 0;
    v_pruned bigint := 0;
    v_keep record;
begin
    if sweep.n is null or sweep.n <= 0 then
        return;
    end if;
    if sweep.n > 100000 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('n is %s, at most 100,000 rows can be swept in one call', sweep.n),
            hint = 'call it again instead';
    end if;
    select c.* into v_cursor from dever.sweep_cursor as c for update skip locked;
    if not found then
        return;
    end if;
    v_start := v_cursor;
    v_now := dever.clock();
    v_left := 10::bigint * sweep.n;
    v_prune := sweep.n;
    v_live := dever.live_contracts(v_now);

    for v_queue in
        select q.* from dever.queue as q where q.id >= v_start.queue_id order by q.id
    loop
        if v_queue.id <> v_cursor.queue_id then
            v_cursor.queue_id := v_queue.id;
            v_cursor.run_at := '-infinity';
            v_cursor.job_id := 0;
        end if;

        if v_cursor.run_at < 'infinity' then
            -- A paused queue blocks nothing: its workers may have been stopped on purpose.
            v_stale := '{}';
            v_elsewhere := '{}';
            -- Most of many queues are empty: these two are worth their cost only for due rows.
            if exists (
                select
                from dever.job as j
                where j.queue_id = v_queue.id and j.queue_id > 0 and j.run_at <= v_now
            ) then
                if not v_queue.paused then
                    v_stale := dever.stale_contracts(v_now - dever.as_interval(v_queue.block_after_us));
                end if;
                -- Live contracts whose programs all moved them to other queues.
                v_elsewhere := array(
                    select l.contract_id
                    from pg_catalog.unnest(v_live) as l (contract_id)
                    where not exists (
                        select
                        from dever.policy as p
                        where p.contract_id = l.contract_id
                            and p.queue_id = v_queue.id
                            and dever.is_policy_live(p.id, v_now)
                    )
                );
            end if;
            select
                pg_catalog.count(*) as examined,
                (pg_catalog.array_agg(s.run_at order by s.run_at desc, s.id desc))[1] as last_run_at,
                (pg_catalog.array_agg(s.id order by s.run_at desc, s.id desc))[1] as last_id,
                pg_catalog.array_agg(s.id) filter (where s.free and s.expires_at <= v_now) as expired,
                pg_catalog.array_agg(s.id) filter (where s.free and s.attempt >= s.max_attempts) as exhausted,
                pg_catalog.array_agg(s.id) filter (where s.free and s.contract_id = any (v_stale)) as stale,
                pg_catalog.array_agg(s.id) filter (where s.free and s.contract_id = any (v_elsewhere)) as elsewhere
            into v_sample
            from (
                select
                    j.id, j.run_at, j.attempt, j.max_attempts, j.expires_at, j.contract_id,
                    j.lease_until is null or j.lease_until <= v_now as free
                from dever.job as j
                where j.queue_id = v_queue.id
                    and j.queue_id > 0
                    and j.run_at <= v_now
                    and (j.run_at, j.id) > (v_cursor.run_at, v_cursor.job_id)
                order by j.queue_id, j.run_at, j.id
                limit v_left
            ) as s;

            if v_sample.expired is not null then
                v_ids := dever.lock_free(v_sample.expired);
                v_places := array(
                    select j.ctid from dever.job as j where j.id = any (v_ids) and j.expires_at <= v_now
                );
                v_expired := v_expired + dever.move_to_finished(
                    v_places, 'dead', pg_catalog.array_fill('expired'::text, array[pg_catalog.cardinality(v_places)]), null
                );
            end if;
            if v_sample.exhausted is not null then
                v_ids := dever.lock_free(v_sample.exhausted);
                v_places := array(
                    select j.ctid from dever.job as j where j.id = any (v_ids) and j.attempt >= j.max_attempts
                );
                v_exhausted := v_exhausted + dever.move_to_finished(
                    v_places,
                    'dead',
                    pg_catalog.array_fill('attempts_exhausted'::text, array[pg_catalog.cardinality(v_places)]),
                    null
                );
            end if;
            if v_sample.stale is not null then
                v_ids := dever.lock_free(v_sample.stale);
                update dever.job as j
                set
                    due_at = j.run_at,
                    run_at = 'infinity',
                    lease_until = null,
                    worker = null,
                    reason = case
                        when exists (
                            select
                            from dever.contract as c
                            where c.target = j.target and c.id = any (v_live)
                        ) then 'schema_mismatch'
                        else 'unknown_target'
                    end,
                    error = null
                where j.id = any (v_ids)
                    and j.attempt < j.max_attempts;
                get diagnostics v_count = row_count;
                v_blocked := v_blocked + v_count;
            end if;
            if v_sample.elsewhere is not null then
                v_ids := dever.lock_free(v_sample.elsewhere);
                update dever.job as j
                set queue_id = m.queue_id
                from (
                    select distinct on (p.contract_id) p.contract_id, p.queue_id
                    from pg_catalog.unnest(v_elsewhere) as e (contract_id)
                    join dever.policy as p on p.contract_id = e.contract_id
                    where dever.is_policy_live(p.id, v_now)
                    order by p.contract_id, p.id desc
                ) as m
                where m.contract_id = j.contract_id
                    and j.id = any (v_ids);
                get diagnostics v_count = row_count;
                v_moved := v_moved + v_count;
            end if;

            v_left := v_left - v_sample.examined;
            if v_left <= 0 then
                v_cursor.run_at := v_sample.last_run_at;
                v_cursor.job_id := v_sample.last_id;
                exit;
            end if;
            v_cursor.run_at := 'infinity';
            v_cursor.job_id := 0;
        end if;

        select
            pg_catalog.count(*) as examined,
            pg_catalog.max(s.id) as last_id,
            pg_catalog.array_agg(s.id) filter (
                where s.reason in ('unknown_target', 'schema_mismatch') and s.contract_id = any (v_live)
            ) as runnable
        into v_sample
        from (
            select j.id, j.reason, j.contract_id
            from dever.job as j
            where j.queue_id = v_queue.id
                and j.queue_id > 0
                and j.run_at = 'infinity'
                and j.id > v_cursor.job_id
            order by j.queue_id, j.run_at, j.id
            limit v_left
        ) as s;
        if v_sample.runnable is not null then
            v_ids := dever.lock_free(v_sample.runnable);
            update dever.job as j
            set
                run_at = coalesce(j.due_at, v_now),
                due_at = null,
                attempt = least(j.attempt, j.max_attempts - 1),
                reason = null
            where j.id = any (v_ids) and j.run_at = 'infinity';
            get diagnostics v_count = row_count;
            v_unblocked := v_unblocked + v_count;
            perform dever.wake(v_queue.id);
        end if;
        v_left := v_left - v_sample.examined;
        if v_left <= 0 then
            v_cursor.job_id := v_sample.last_id;
            exit;
        end if;
    end loop;

    if v_left > 0 then
        v_cursor.queue_id := 0;
        v_cursor.run_at := '-infinity';
        v_cursor.job_id := 0;
    end if;
    if v_cursor is distinct from v_start then
        update dever.sweep_cursor as c
        set queue_id = v_cursor.queue_id, run_at = v_cursor.run_at, job_id = v_cursor.job_id
        where c.one;
    end if;

    -- Kept for 36,500 days or more means for ever.
    for v_keep in
        select q.id as queue_id, k.outcome, k.keep_us
        from dever.queue as q
        cross join lateral (
            values
                ('succeeded', q.keep_succeeded_us),
                ('dead', q.keep_dead_us),
                ('cancelled', q.keep_cancelled_us)
        ) as k (outcome, keep_us)
        where k.keep_us < 3153600000000000
        order by q.id
    loop
        exit when v_prune <= 0;
        delete from dever.finished as f
        where f.ctid = any (
            array(
                select o.ctid
                from dever.finished as o
                where o.queue_id = v_keep.queue_id
                    and o.outcome = v_keep.outcome
                    and o.finished_at < v_now - dever.as_interval(v_keep.keep_us)
                order by o.queue_id, o.outcome, o.finished_at
                limit v_prune
                for update skip locked
            )
        );
        get diagnostics v_count = row_count;
        v_prune := v_prune - v_count;
        v_pruned := v_pruned + v_count;
    end loop;

    -- A worker's row stays for a day, and as long as block_after may still ask since when it is gone.
    delete from dever.worker as w
    where w.alive_until < v_now - dever.as_interval(
        greatest(86400000000, (select pg_catalog.max(q.block_after_us) from dever.queue as q))
    );
    get diagnostics v_count = row_count;

    return query
    select r.what, r.rows
    from (
        values
            ('expired', v_expired),
            ('exhausted', v_exhausted),
            ('blocked', v_blocked),
            ('unblocked', v_unblocked),
            ('moved', v_moved),
            ('pruned', v_pruned),
            ('workers', v_count)
    ) as r (what, rows)
    where r.rows > 0;
end
$$;

create or replace function dever.cancel(ids bigint[])
returns table (id bigint, outcome text)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_ids bigint[];
    v_places tid[];
begin
    perform dever.check_lengths(coalesce(pg_catalog.cardinality(cancel.ids), 0), '{}');
    select coalesce(pg_catalog.array_agg(l.id), '{}'), coalesce(pg_catalog.array_agg(l.place), '{}')
    into v_ids, v_places
    from (
        select j.id, j.place
        from (select distinct u.id from pg_catalog.unnest(cancel.ids) as u (id) order by u.id) as u
        cross join lateral (
            select i.id, i.ctid as place from dever.job as i where i.id = u.id for update
        ) as j
    ) as l;
    perform dever.move_to_finished(
        v_places,
        'cancelled',
        pg_catalog.array_fill('cancelled'::text, array[pg_catalog.cardinality(v_places)]),
        null
    );
    return query
    select
        i.id,
        case
            when i.id = any (v_ids) then 'cancelled'
            when exists (select from dever.finished as f where f.id = i.id) then 'finished'
            else 'not_found'
        end
    from dever.verdicts(cancel.ids, v_ids, '{}') as i;
end
$$;

create or replace function dever.check_key(key text)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.check_keys(array[check_key.key]);
    return check_key.key;
end
$$;

comment on function dever.check_key(text) is 'For calls of 0.1.0 under way during an upgrade: dever.check_keys';

create or replace function dever.hold(ids bigint[], tokens bigint[], out held bigint[], out busy bigint[])
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    select l.held, l.busy
    into held, busy
    from dever.lock_claims(hold.ids, hold.tokens) as l;
end
$$;

comment on function dever.hold(bigint[], bigint[]) is
'For calls of 0.1.0 under way during an upgrade: dever.lock_claims';

create or replace function dever.finish(ids bigint[], outcome text, reasons text[], errors text[])
returns void
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
begin
    perform dever.move_to_finished(
        pg_catalog.array_agg(j.place),
        finish.outcome,
        case when finish.reasons is not null then pg_catalog.array_agg(u.reason) end,
        pg_catalog.array_agg(u.error)
    )
    from rows from (
        pg_catalog.unnest(finish.ids),
        pg_catalog.unnest(finish.reasons),
        pg_catalog.unnest(finish.errors)
    ) as u (id, reason, error)
    cross join lateral (
        select i.ctid as place from dever.job as i where i.id = u.id limit 1
    ) as j;
end
$$;

comment on function dever.finish(bigint[], text, text[], text[]) is
'For calls of 0.1.0 under way during an upgrade: dever.move_to_finished';

update dever.installation
set version = '0.2.0', protocol_min = 1, protocol_max = 1,
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

revoke all on function dever.check_keys(text[]) from public;

revoke all on function dever.raise_unsettled() from public;

revoke all on function dever.insert_under(dever.policy, bigint, text[], jsonb[], timestamptz[], timestamptz) from public;

revoke all on function dever.lock_claims(bigint[], bigint[]) from public;

revoke all on function dever.move_to_finished(tid[], text, text[], text[]) from public;
