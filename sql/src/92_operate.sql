-- Operate: settings of queues, and what an operator does with jobs.

create function dever.get_job(id bigint)
returns setof dever.jobs
language sql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    -- Invoker, so that the view decides by the caller's role whether the payload is shown.
    select j.* from dever.jobs as j where j.id = get_job.id
$$;

comment on function dever.get_job(bigint) is 'One job or message with its resolved settings, or no row';

create function dever.version()
returns text
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select i.version from dever.installation as i
$$;

comment on function dever.version() is 'The installed version of the schema';

create function dever.protocol(out min integer, out max integer)
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select i.protocol_min, i.protocol_max from dever.installation as i
$$;

comment on function dever.protocol() is 'The range of client protocols that this schema serves';

create function dever.installation_id()
returns uuid
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select i.id from dever.installation as i
$$;

comment on function dever.installation_id() is
'The identity of this installation; clients compare it before they join a caller''s transaction';

-- Creates or changes a queue; null leaves a value as it is. Rows already sent keep what was stamped on
-- them. keep_*: 0 keeps nothing, 36,500 days keep for ever. One short transaction. Raises DV001, DV002,
-- DV007.
create function dever.configure_queue(
    queue text,
    visibility interval default null,
    max_attempts integer default null,
    backoff_base interval default null,
    backoff_max interval default null,
    keep_succeeded interval default null,
    keep_dead interval default null,
    keep_cancelled interval default null,
    block_after interval default null
)
returns setof dever.queues
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_visibility bigint := dever.positive_microseconds(configure_queue.visibility, 'visibility');
    v_backoff_base bigint := dever.positive_microseconds(configure_queue.backoff_base, 'backoff_base');
    v_backoff_max bigint := dever.positive_microseconds(configure_queue.backoff_max, 'backoff_max');
    v_keep_succeeded bigint := dever.microseconds(configure_queue.keep_succeeded, 'keep_succeeded');
    v_keep_dead bigint := dever.microseconds(configure_queue.keep_dead, 'keep_dead');
    v_keep_cancelled bigint := dever.microseconds(configure_queue.keep_cancelled, 'keep_cancelled');
    v_block_after bigint := dever.positive_microseconds(configure_queue.block_after, 'block_after');
    v_queue dever.queue;
begin
    if configure_queue.max_attempts < 1 then
        raise exception using
            errcode = 'DV007',
            message = 'max_attempts is below 1',
            hint = 'it is the total number of deliveries, the first included';
    end if;
    if least(v_keep_succeeded, v_keep_dead, v_keep_cancelled) < 0 then
        raise exception using
            errcode = 'DV007',
            message = 'a time to keep finished jobs is negative',
            hint = 'give 0 to keep none, 36,500 days to keep them for ever';
    end if;
    perform dever.queue_for(dever.check_name(configure_queue.queue, 'queue'));
    update dever.queue as q
    set
        visibility_us = coalesce(v_visibility, q.visibility_us),
        max_attempts = coalesce(configure_queue.max_attempts, q.max_attempts),
        backoff_base_us = coalesce(v_backoff_base, q.backoff_base_us),
        backoff_max_us = coalesce(v_backoff_max, q.backoff_max_us),
        keep_succeeded_us = coalesce(v_keep_succeeded, q.keep_succeeded_us),
        keep_dead_us = coalesce(v_keep_dead, q.keep_dead_us),
        keep_cancelled_us = coalesce(v_keep_cancelled, q.keep_cancelled_us),
        block_after_us = coalesce(v_block_after, q.block_after_us)
    where q.name = configure_queue.queue
    returning q.* into v_queue;
    if v_queue.backoff_base_us > v_queue.backoff_max_us then
        raise exception using
            errcode = 'DV007',
            message = 'backoff_base is longer than backoff_max',
            hint = 'raise backoff_max too';
    end if;
    return query select v.* from dever.queues as v where v.queue = configure_queue.queue;
end
$$;

comment on function dever.configure_queue(
    text, interval, integer, interval, interval, interval, interval, interval, interval
) is 'Creates or changes a queue and returns its row of dever.queues; null leaves a value as it is';

-- Nothing of the queue is claimed until it is resumed; running jobs go on. False: no such queue.
create function dever.pause_queue(queue text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.check_name(pause_queue.queue, 'queue');
    update dever.queue as q set paused = true where q.name = pause_queue.queue;
    return found;
end
$$;

comment on function dever.pause_queue(text) is 'Stops claims from a queue; false when there is no such queue';

create function dever.resume_queue(queue text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_queue_id bigint;
begin
    perform dever.check_name(resume_queue.queue, 'queue');
    update dever.queue as q set paused = false where q.name = resume_queue.queue
    returning q.id into v_queue_id;
    if not found then
        return false;
    end if;
    perform dever.wake(v_queue_id);
    return true;
end
$$;

comment on function dever.resume_queue(text) is 'Lets a paused queue be claimed again; false when there is no such queue';

-- Cancels unfinished jobs; a running one loses its lease, its late result is refused. One short
-- transaction; waits for rows that others hold, in id order. outcome: cancelled, finished, not_found.
create function dever.cancel(ids bigint[])
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

comment on function dever.cancel(bigint[]) is 'Cancels unfinished jobs; outcome per id: cancelled, finished, not_found';

-- Dead and blocked jobs become pending again: same id, due now, attempts from zero, no expiry. A dead
-- one whose key is in use again is reported and stays; the others go on. One short transaction; waits
-- for rows that others hold, in id order. outcome: pending, key_in_use, not_found.
create function dever.redrive(ids bigint[])
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
    v_now timestamptz;
    v_ids bigint[];
    v_blocked bigint[];
    v_dead bigint[];
    v_revived bigint[];
    v_queue_id bigint;
begin
    perform dever.check_lengths(coalesce(pg_catalog.cardinality(redrive.ids), 0), '{}');
    v_ids := array(select distinct u.id from pg_catalog.unnest(redrive.ids) as u (id) order by u.id);
    v_blocked := array(
        select j.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.job as i where i.id = u.id and i.run_at = 'infinity' for update
        ) as j
    );
    v_dead := array(
        select f.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.finished as i where i.id = u.id and i.outcome = 'dead' for update
        ) as f
    );
    v_now := dever.clock();
    update dever.job as j
    set run_at = v_now, due_at = null, attempt = 0, expires_at = null, reason = null, error = null
    where j.id = any (v_blocked);

    with revived as (
        insert into dever.job (
            id, queue_id, run_at, token, attempt, max_attempts, contract_id, visibility_us,
            backoff_base_us, backoff_max_us, backoff_jitter, created_at, target, key, payload
        )
        overriding system value
        select
            f.id, f.queue_id, v_now, f.token, 0, f.max_attempts, f.contract_id, f.visibility_us,
            f.backoff_base_us, f.backoff_max_us, f.backoff_jitter, f.created_at, f.target, f.key, f.payload
        from dever.finished as f
        where f.id = any (v_dead)
        order by f.target, f.key, f.id
        on conflict do nothing
        returning id
    )
    select pg_catalog.array_agg(r.id) into v_revived from revived as r;
    delete from dever.finished as f where f.id = any (v_revived);

    for v_queue_id in
        select distinct j.queue_id from dever.job as j
        where j.id = any (v_blocked || v_revived)
    loop
        perform dever.wake(v_queue_id);
    end loop;
    return query
    select
        i.id,
        case
            when i.ok then 'pending'
            when i.id = any (v_dead) then 'key_in_use'
            else 'not_found'
        end
    from dever.verdicts(redrive.ids, v_blocked || v_revived, '{}') as i;
end
$$;

comment on function dever.redrive(bigint[]) is
'Runs dead and blocked jobs again; outcome per id: pending, key_in_use, not_found';

-- Removes dead and blocked jobs for good. One short transaction; waits for rows that others hold, in id
-- order. outcome: dropped, not_found.
create function dever.drop_jobs(ids bigint[])
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
    v_blocked bigint[];
    v_dead bigint[];
begin
    perform dever.check_lengths(coalesce(pg_catalog.cardinality(drop_jobs.ids), 0), '{}');
    v_ids := array(select distinct u.id from pg_catalog.unnest(drop_jobs.ids) as u (id) order by u.id);
    v_blocked := array(
        select j.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.job as i where i.id = u.id and i.run_at = 'infinity' for update
        ) as j
    );
    v_dead := array(
        select f.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.finished as i where i.id = u.id and i.outcome = 'dead' for update
        ) as f
    );
    delete from dever.job as j where j.id = any (v_blocked);
    delete from dever.finished as f where f.id = any (v_dead);
    return query
    select i.id, case when i.ok then 'dropped' else 'not_found' end
    from dever.verdicts(drop_jobs.ids, v_blocked || v_dead, '{}') as i;
end
$$;

comment on function dever.drop_jobs(bigint[]) is 'Removes dead and blocked jobs; outcome per id: dropped, not_found';
