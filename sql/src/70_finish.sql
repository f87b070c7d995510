-- Renew and finish: what the holder of a claim may do with it.
--
-- Every verb takes parallel arrays of ids and tokens and gives one verdict per id: true, false (the
-- claim was lost: nothing was changed), null (another transaction holds the row: ask again). A row is
-- touched only while the token is the current one and the lease is running, judged by the clock read
-- after the row is locked. Locked rows are skipped, so a handler that keeps its own transaction open
-- delays no neighbour, and nothing waits, so nothing can deadlock.
--
-- Rows are found by a lateral look per id: a plain join may as well walk the whole index once, and does
-- when its plan was made while the table was empty.

-- Locks the rows whose claim is still in force. held and, beside it, places: their ids and where they lie,
-- which stays true while they are locked. busy: ids whose row another transaction holds. Everything else
-- is lost. Raises DV007 for arrays of unequal length.
create function dever.lock_claims(
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

comment on function dever.lock_claims(bigint[], bigint[]) is
'Locks the rows whose claim is in force; tells them from those that another transaction holds';

-- One verdict per distinct id: true when held, null when busy, false when lost.
create function dever.verdicts(ids bigint[], held bigint[], busy bigint[])
returns table (id bigint, ok boolean)
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select
        i.id,
        case
            when i.id = any (verdicts.held) then true
            when i.id = any (verdicts.busy) then null
            else false
        end
    from (
        select u.id, pg_catalog.min(u.ordinal) as ordinal
        from pg_catalog.unnest(verdicts.ids) with ordinality as u (id, ordinal)
        group by u.id
    ) as i
    order by i.ordinal;
end
$$;

comment on function dever.verdicts(bigint[], bigint[], bigint[]) is 'One verdict per distinct id, in the caller''s order';

-- Moves rows that the caller has locked to dever.finished, or away when the queue keeps none of that
-- outcome. reasons and errors run beside places; reasons null for an end that needs none. Returns how
-- many rows were moved.
create function dever.move_to_finished(places tid[], outcome text, reasons text[], errors text[])
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

comment on function dever.move_to_finished(tid[], text, text[], text[]) is
'Moves locked rows from dever.job to dever.finished with an outcome; how many there were';

-- A full new lease from now. One short transaction. See the head of this file for the verdicts.
create function dever.renew(ids bigint[], tokens bigint[], lease interval)
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

comment on function dever.renew(bigint[], bigint[], interval) is
'Extends claims to a full lease from now (null: the row''s own visibility); false: the claim was lost';

-- The jobs are done: they leave the live table as succeeded. One short transaction, or the handler's own
-- when its effects and the completion shall be one commit.
create function dever.complete(ids bigint[], tokens bigint[])
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

comment on function dever.complete(bigint[], bigint[]) is 'Completes claimed jobs; false: the claim was lost, nothing was changed';

-- min(base * 2^(attempt - 1), max) in microseconds, exact and without overflow for any attempt.
create function dever.backoff(attempt integer, base_us bigint, max_us bigint)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when attempt > 62 or base_us > (max_us >> (greatest(attempt, 1) - 1)) then max_us
        else base_us << (greatest(attempt, 1) - 1)
    end;
end
$$;

comment on function dever.backoff(integer, bigint, bigint) is
'The retry curve: min(base x 2^(attempt-1), max) in microseconds';

-- The attempt failed: due again after its delay (null: the curve of the row; zero or less: at once), or
-- dead with the reason at the last attempt. outcome: retried, dead, lost, busy. One short transaction.
create function dever.retry(
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

comment on function dever.retry(bigint[], bigint[], text[], text[], interval[]) is
'Fails attempts: each job is due again after a delay or the backoff curve, or dead at its last attempt';

-- Dead at once, whatever attempts are left. One short transaction.
create function dever.bury(
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

comment on function dever.bury(bigint[], bigint[], text[], text[]) is 'Gives up claimed jobs for good, with a reason';

-- The jobs cannot run as they are: set aside with a reason until redriven, or, for unknown_target and
-- schema_mismatch, until a worker that can run them is live. One short transaction.
create function dever.block(
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

comment on function dever.block(bigint[], bigint[], text[], text[]) is
'Sets claimed jobs aside that cannot run as they are, with one of the four reasons';

-- Gives claims back at shutdown: due again at once, the attempt stays used; at the last attempt the job
-- is dead as interrupted. One short transaction.
create function dever.release(ids bigint[], tokens bigint[])
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

comment on function dever.release(bigint[], bigint[]) is
'Gives claims back so that others can start the jobs at once; the attempts stay used';
