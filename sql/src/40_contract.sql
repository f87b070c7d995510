-- Contracts and policies: what programs declared, which of it is in force, and who can run it.

-- Whether a live worker runs this policy. Reads only.
create function dever.is_policy_live(policy_id bigint, at_instant timestamptz)
returns boolean
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return exists (
        select
        from dever.worker_policy as wp
        join dever.worker as w on w.name = wp.worker
        where wp.policy_id = is_policy_live.policy_id
            and w.alive_until > is_policy_live.at_instant
    );
end
$$;

comment on function dever.is_policy_live(bigint, timestamptz) is
'Whether some live worker declares this policy';

-- The policy in force for a target: the newest one that a live worker runs, else the newest. With a
-- fingerprint only policies of that contract count. Null when there is none. Reads only; computed
-- afresh each time, so no flag flaps while old and new processes restart in any order.
create function dever.current_policy(target text, fingerprint text default null)
returns dever.policy
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
    v_policy dever.policy;
    v_newest dever.policy;
begin
    for v_policy in
        select p.*
        from dever.policy as p
        join dever.contract as c on c.id = p.contract_id
        where p.target = current_policy.target
            and (current_policy.fingerprint is null or c.fingerprint = current_policy.fingerprint)
        order by p.id desc
    loop
        if v_newest.id is null then
            v_newest := v_policy;
        end if;
        if dever.is_policy_live(v_policy.id, v_now) then
            return v_policy;
        end if;
    end loop;
    return v_newest;
end
$$;

comment on function dever.current_policy(text, text) is
'The policy in force of a target: the newest that a live worker runs, else the newest';

-- One element of register's contracts, checked. Raises DV007, DV001, DV002; a cron spec DV003.
create function dever.check_declaration(declaration jsonb)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_target text := check_declaration.declaration ->> 'target';
    v_fault text;
begin
    if pg_catalog.jsonb_typeof(check_declaration.declaration -> 'target') not in ('string', 'null')
        or pg_catalog.jsonb_typeof(check_declaration.declaration -> 'queue') not in ('string', 'null')
    then
        raise exception using
            errcode = 'DV001',
            message = 'the job or queue name of a declaration is not text',
            hint = 'give names of 1 to 255 bytes';
    end if;
    perform dever.check_name(v_target, 'job');
    perform dever.check_name(check_declaration.declaration ->> 'queue', 'queue');
    v_fault := case
        when pg_catalog.strpos(v_target, ':') > 0
            then 'the target contains a colon'
        when coalesce(check_declaration.declaration ->> 'fingerprint', '') !~ '^[!-~]{1,128}$'
            then 'fingerprint must be 1 to 128 visible ASCII characters'
        when coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schema'), '') <> 'object'
            or coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration #> '{schema,kind}'), '') <> 'string'
            then 'schema must be an object (a node of the wire schema)'
        when not dever.is_integer_between(check_declaration.declaration -> 'retry', 1, 100)
            then 'retry must be an integer from 1 to 100'
        when not dever.is_integer_between(check_declaration.declaration -> 'timeout_ms', 1, 3600000)
            then 'timeout_ms must be an integer from 1 to 3,600,000'
        when not dever.is_integer_between(check_declaration.declaration -> 'backoff_max_ms', 1, 86400000)
            then 'backoff_max_ms must be an integer from 1 to 86,400,000'
        when not dever.is_integer_between(
            check_declaration.declaration -> 'backoff_base_ms', 1,
            (check_declaration.declaration ->> 'backoff_max_ms')::bigint
        )
            then 'backoff_base_ms must be an integer from 1 to backoff_max_ms'
        when coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration -> 'backoff_jitter'), 'number') <> 'number'
            or not coalesce((check_declaration.declaration ->> 'backoff_jitter')::numeric, 0) between 0 and 1
            then 'backoff_jitter must be a number from 0 to 1'
        when coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule'), 'null')
            not in ('null', 'object')
            then 'schedule must be null or an object with spec and missed'
        when pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule') = 'object'
            and check_declaration.declaration #>> '{schedule,spec}' is null
            then 'schedule.spec is missing'
        when pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule') = 'object'
            and check_declaration.declaration #>> '{schema,kind}' is distinct from 'null'
            then 'a job with a schedule takes no input, its schema must be of kind null'
        when pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule') = 'object'
            and coalesce(check_declaration.declaration #>> '{schedule,missed}', 'catch_up')
                not in ('catch_up', 'latest', 'skip')
            then 'schedule.missed must be catch_up, latest or skip'
    end;
    if v_fault is not null then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('the declaration of job %s is not valid: %s', v_target, v_fault),
            hint = 'register what the program declares, see docs/wire.md for the form';
    end if;
end
$$;

comment on function dever.check_declaration(jsonb) is 'Refuses a declaration that register must not store';

-- Inserts what it does not find of a program's declarations: contracts, policies, queues; updates none.
-- One row per declaration. In target order, so that two programs that start at the same time cannot
-- deadlock. Joins the caller's transaction. Raises DV001, DV002, DV003, DV007.
create function dever.store_declarations(contracts jsonb)
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

comment on function dever.store_declarations(jsonb) is
'Stores the contracts and policies that a program declares; part of dever.register';

-- Makes a worker live and says which policies it runs. Joins the caller's transaction. Apart from
-- store_declarations because only the right to work may pose as a worker: a live worker decides which
-- policy is in force and what is blocked. Raises DV001, DV002, DV007.
create function dever.enlist_worker(worker text, policies bigint[], alive interval, about jsonb)
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

comment on function dever.enlist_worker(text, bigint[], interval, jsonb) is
'Makes a worker live with the policies it runs; part of dever.register, for the right to work';

-- Stores what a program declares and, with a worker name, that this worker is live and runs it.
-- One transaction of the caller. Invoker, so that an enqueue-only role can register contracts but no
-- worker. Raises DV001, DV002, DV003, DV007.
create function dever.register(
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

comment on function dever.register(text, jsonb, interval, jsonb) is
'Stores the contracts and policies of a program; with a worker name also that this worker runs them.
A null worker registers contracts only (API process, command line)';

-- Extends a worker's liveness from now. One short transaction. False: unknown or already lapsed (it was
-- frozen or has left), then it must register again before it claims.
create function dever.alive(worker text, alive interval)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_alive bigint := dever.positive_microseconds(alive.alive, 'alive');
    v_now timestamptz;
begin
    if v_alive is null then
        raise exception using
            errcode = 'DV007',
            message = 'alive is missing',
            hint = 'say how long the worker counts as live without a sign of life';
    end if;
    perform from dever.worker as w where w.name = alive.worker for no key update;
    v_now := dever.clock();
    update dever.worker as w
    set alive_until = v_now + dever.as_interval(v_alive)
    where w.name = alive.worker and w.alive_until > v_now;
    return found;
end
$$;

comment on function dever.alive(text, interval) is
'A worker''s sign of life; false when it is unknown or has lapsed and must register again';

-- Ends a worker's liveness at a clean shutdown. One short transaction. False: it was not live.
create function dever.leave(worker text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    update dever.worker as w
    set alive_until = least(w.alive_until, v_now), left_at = v_now
    where w.name = leave.worker and w.left_at is null;
    return found;
end
$$;

comment on function dever.leave(text) is 'A worker says that it stops; its leases are released separately';
