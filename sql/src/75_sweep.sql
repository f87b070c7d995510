-- Sweep: everything that no claim may touch, in bounded passes.
--
-- It looks at due and at blocked rows in (queue, run_at, id) order, at most 10 n a call, from a cursor
-- it keeps, and moves: expired messages and exhausted jobs to dead, due jobs that no live worker has
-- been able to run for block_after to blocked, blocked jobs that a live worker can run back to pending,
-- jobs whose program moved them to another queue there. Then it prunes at most n finished rows.
-- Rows that others lock are left for the next pass.

-- The contracts a live worker runs.
create function dever.live_contracts(at_instant timestamptz)
returns integer[]
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct p.contract_id
        from dever.worker as w
        join dever.worker_policy as wp on wp.worker = w.name
        join dever.policy as p on p.id = wp.policy_id
        where w.alive_until > at_instant
    )
$$;

comment on function dever.live_contracts(timestamptz) is 'The contracts that live workers run';

-- The contracts that no live worker has run since an instant, though they were there by then.
create function dever.stale_contracts(since timestamptz)
returns integer[]
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select c.id
        from dever.contract as c
        where c.created_at <= since
            -- A subquery, so that it is computed once and not for every contract.
            and c.id <> all ((select dever.live_contracts(since))::integer[])
    )
$$;

comment on function dever.stale_contracts(timestamptz) is
'The contracts that no worker has been live for since an instant';

-- Locks those of the rows whose lease is not running and that nobody else locks; returns their ids.
-- In no order: an order by id would let the planner walk the whole index for it, and nothing waits here.
create function dever.lock_free(ids bigint[])
returns bigint[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    return array(
        select j.id
        from dever.job as j
        where j.id = any (lock_free.ids) and (j.lease_until is null or j.lease_until <= v_now)
        for update skip locked
    );
end
$$;

comment on function dever.lock_free(bigint[]) is 'Locks rows that no running lease protects, skipping locked ones';

-- One bounded pass. One short transaction; only one runs at a time, a second call returns at once.
-- Returns what was moved: exhausted, expired, blocked, unblocked, moved, pruned, workers. n <= 0:
-- nothing. Raises DV007.
create function dever.sweep(n integer default 1000)
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

comment on function dever.sweep(integer) is
'One bounded pass over rows that no claim may touch; returns what it moved. Every worker calls it';
