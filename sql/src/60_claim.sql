-- Claim: lease due rows to a worker. A claim is the only way to own a job.
--
-- The scan walks job_claim_idx in (run_at, id) order and takes what is free: never leased, or the lease
-- has run out, so recovery needs no other process. Rows that used their attempts, expired or belong to
-- contracts the worker does not run are passed over; dever.sweep moves them.
--
-- The head hint keeps the scan flat while some session holds an old snapshot and dead rows pile up in
-- front, or while many jobs run, which stay in front of those that wait: the setting
-- dever.head_<queue id> of the session keeps where the last claim started. Digits only: contract hash,
-- run_at and id of the bound, when the last full scan ran and what it cost, all in microseconds. A scan
-- was dear when it walked more than 250 index entries and 10 a row, which costs about what the rest of
-- the claim does, or 20 pages of the index and one for 50 rows: entries of finished jobs are counted by
-- their pages alone (time would also count a busy machine; without track_counts only time tells). After
-- a dear one the scans start at the bound until 20 times its cost has passed, 20 seconds at most (a
-- wait for a lock looks like cost), so a row that slips in below the bound (a late commit, a lease that
-- ran out) waits no longer. It is only ever a hint: anything else in the setting means no hint.

-- Returns up to n leased jobs in (run_at, id) order, each with a fresh token and its attempt counted.
-- One short transaction of its own; locks only the rows it takes, skipping rows that others lock.
-- n <= 0, a paused or unknown queue: nothing. contracts null: messages only, else jobs of these contracts.
-- lease null: the row's own visibility. Raises DV001, DV007.
create function dever.claim(
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

comment on function dever.claim(text, text, integer, interval, integer[]) is
'Leases up to n due jobs of a queue to a worker, oldest first, each with a fresh fencing token';
