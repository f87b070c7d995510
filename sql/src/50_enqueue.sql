-- Enqueue and send: check, deduplicate, insert. All of it joins the caller's transaction.
--
-- While (target, key) is unfinished no second row is inserted: the unique key decides, never a look
-- beforehand. A concurrent duplicate waits for the first transaction and then either inserts (it
-- rolled back) or finds its id (it committed). Items are inserted in key order, so that two batches
-- over the same keys cannot deadlock; their ids follow the caller's order.

-- The id of the unfinished job of a target, or message of a queue, that holds a key. Reads only.
-- Volatile for a reason: each call sees what committed before it.
create function dever.unfinished_id(target text, queue_id bigint, key text)
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

comment on function dever.unfinished_id(text, bigint, text) is
'Who holds a key: the id of the unfinished job or message, or null';

create function dever.raise_unsettled()
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

-- Inserts checked items of one target (null: messages of the queue) and returns one row per item, in the caller's order. Of equal
-- keys in one call the first is inserted. Keys may be null (messages). run_at is not null.
-- Locks only what it inserts. Raises 40001 in REPEATABLE READ when a key it cannot see exists, and DV010
-- when a batch has to begin again: a key that it met was freed before it was looked up, and to insert
-- it now, behind keys that are later in the order, could deadlock.
create function dever.insert_jobs(
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

comment on function dever.insert_jobs(
    text, integer, bigint, integer, bigint, bigint, bigint, double precision,
    text[], jsonb[], timestamptz[], timestamptz, timestamptz
) is 'Inserts checked jobs or messages of one target, deduplicated by key; one row per item';

-- dever.insert_jobs for jobs of a policy.
create function dever.insert_under(
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

-- What enqueue, enqueue_many and enqueue_as share: keys, instants, the queue's visibility, the insert.
create function dever.enqueue_under(
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

comment on function dever.enqueue_under(dever.policy, text[], jsonb[], timestamptz[]) is
'Inserts checked payloads under a policy, after checking keys and instants';

create function dever.raise_unknown_job(job text, fingerprint text)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    raise exception using
        errcode = 'DV004',
        message = pg_catalog.format(
            'no job is registered as %s%s',
            coalesce(pg_catalog.left(raise_unknown_job.job, 255), 'null'),
            coalesce(' with fingerprint ' || pg_catalog.left(raise_unknown_job.fingerprint, 128), '')
        ),
        hint = 'start a worker of the program that declares it, or run: dever sql contracts MODULE URL';
end
$$;

comment on function dever.raise_unknown_job(text, text) is 'Raises DV004';

-- Many jobs of one target, each with its own key, payload and run_at; one result per item. Joins the
-- caller's transaction; all are checked before one is inserted. Raises DV004, DV005, DV006, DV002, DV007.
create function dever.enqueue_many(
    job text,
    keys text[],
    payloads jsonb[] default null,
    run_ats timestamptz[] default null
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_policy dever.policy := dever.current_policy(enqueue_many.job);
    v_contract dever.contract;
    v_count integer := coalesce(pg_catalog.cardinality(enqueue_many.keys), 0);
    v_payloads jsonb[];
begin
    if v_policy.id is null then
        perform dever.raise_unknown_job(enqueue_many.job, null);
    end if;
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(enqueue_many.payloads), v_count),
        coalesce(pg_catalog.cardinality(enqueue_many.run_ats), v_count)
    ]);
    if v_count = 0 then
        return;
    end if;
    select c.* into strict v_contract
    from dever.contract as c
    where c.id = v_policy.contract_id;
    -- What is checked must be what is stored: an array of two dimensions, or one that does not start at
    -- 1, answers null to a subscript.
    v_payloads := array(
        select coalesce(u.payload, 'null')
        from pg_catalog.unnest(
            coalesce(enqueue_many.payloads, pg_catalog.array_fill('null'::jsonb, array[v_count]))
        ) with ordinality as u (payload, ordinal)
        order by u.ordinal
    );
    for v_index in 1 .. v_count loop
        perform dever.check_payload(
            v_contract,
            v_payloads[v_index],
            case when v_count > 1 then v_index end
        );
    end loop;
    return query
    select i.ordinal, i.id, i.created
    from dever.enqueue_under(
        v_policy, enqueue_many.keys, v_payloads, enqueue_many.run_ats
    ) as i;
end
$$;

comment on function dever.enqueue_many(text, text[], jsonb[], timestamptz[]) is
'Enqueues many jobs of one target in the caller''s transaction; one (ordinal, id, created) per item';

-- One job. Joins the caller's transaction. While (job, key) is unfinished nothing is inserted and
-- created is false; the first payload and run_at stay. Raises as enqueue_many does.
create function dever.enqueue(
    job text,
    key text,
    payload jsonb default null,
    run_at timestamptz default null
)
returns table (id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    select m.id, m.created into strict id, created
    from dever.enqueue_many(
        enqueue.job, array[enqueue.key], array[enqueue.payload], array[enqueue.run_at]
    ) as m;
    return next;
end
$$;

comment on function dever.enqueue(text, text, jsonb, timestamptz) is
'Enqueues one job in the caller''s transaction: select * from dever.enqueue(''shop.order.job.send_receipt'',
key => ''receipt:7'', payload => ''{"order_id": 7}'')';

-- For clients that encoded against this very schema (the Python layer): payloads are not checked again.
-- Otherwise as enqueue_many. An unknown fingerprint is DV004.
create function dever.enqueue_as(
    job text,
    fingerprint text,
    keys text[],
    payloads jsonb[] default null,
    run_ats timestamptz[] default null
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_policy dever.policy := dever.current_policy(enqueue_as.job, enqueue_as.fingerprint);
    v_count integer := coalesce(pg_catalog.cardinality(enqueue_as.keys), 0);
begin
    if v_policy.id is null or enqueue_as.fingerprint is null then
        perform dever.raise_unknown_job(enqueue_as.job, coalesce(enqueue_as.fingerprint, 'null'));
    end if;
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(enqueue_as.payloads), v_count),
        coalesce(pg_catalog.cardinality(enqueue_as.run_ats), v_count)
    ]);
    if v_count = 0 then
        return;
    end if;
    return query
    select i.ordinal, i.id, i.created
    from dever.enqueue_under(
        v_policy, enqueue_as.keys, enqueue_as.payloads, enqueue_as.run_ats
    ) as i;
end
$$;

comment on function dever.enqueue_as(text, text, text[], jsonb[], timestamptz[]) is
'Enqueues jobs whose payloads the client encoded against the contract with this fingerprint';

-- One message under a checked name and the given defaults; send and outbox_enqueue share it.
-- Delay wins over run_at. Joins the caller's transaction. Raises DV005, DV006, DV002, DV007.
create function dever.send_under(
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

comment on function dever.send_under(text, jsonb, text, interval, timestamptz, interval, integer) is
'Inserts one message into a queue whose name the caller has checked';

-- One message. Joins the caller's transaction; a key that is unfinished in this queue gives the existing
-- id. Raises DV001, DV002, DV005, DV006, DV007.
create function dever.send(
    queue text,
    payload jsonb,
    key text default null,
    delay interval default null,
    run_at timestamptz default null,
    expires interval default null,
    max_attempts integer default null
)
returns bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return dever.send_under(
        dever.check_name(send.queue, 'queue'),
        send.payload, send.key, send.delay, send.run_at, send.expires, send.max_attempts
    );
end
$$;

comment on function dever.send(text, jsonb, text, interval, timestamptz, interval, integer) is
'Sends one message to a queue in the caller''s transaction and returns its id';

-- Many messages without keys, with the queue's defaults; ids in the order of payloads.
create function dever.send_many(queue text, payloads jsonb[])
returns setof bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(send_many.payloads), 0);
    v_queue_id bigint;
    v_queue dever.queue;
    v_payload jsonb;
    v_now timestamptz;
begin
    perform dever.check_name(send_many.queue, 'queue');
    perform dever.check_lengths(v_count, array[v_count]);
    if v_count = 0 then
        return;
    end if;
    foreach v_payload in array send_many.payloads loop
        perform dever.check_payload_limits(v_payload, 'payload');
        if dever.json_fault(v_payload) is not null then
            raise exception using
                errcode = 'DV005',
                message = 'payload ' || dever.json_fault(v_payload),
                hint = 'send large numbers as text';
        end if;
    end loop;
    v_queue_id := dever.queue_for(send_many.queue);
    select q.* into strict v_queue
    from dever.queue as q
    where q.id = v_queue_id;
    v_now := dever.clock();
    return query
    select i.id
    from dever.insert_jobs(
        null,
        null,
        v_queue.id,
        v_queue.max_attempts,
        v_queue.visibility_us,
        v_queue.backoff_base_us,
        v_queue.backoff_max_us,
        0,
        pg_catalog.array_fill(null::text, array[v_count]),
        send_many.payloads,
        pg_catalog.array_fill(v_now, array[v_count]),
        null,
        v_now
    ) as i
    order by i.ordinal;
end
$$;

comment on function dever.send_many(text, jsonb[]) is
'Sends many messages to a queue in the caller''s transaction and returns their ids in order';
