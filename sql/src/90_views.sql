-- Views: what everybody sees of a job, and the state of the house. Each is of bounded cost.
--
-- jobs is two plain scans without a join, so that "the last 20 ids", one id, or one (target, key) is an
-- index scan however many rows there are. Counts stop at 10,000. A payload is shown only to those who
-- may work or administer.

create view dever.jobs as
select
    j.id,
    (select q.name from dever.queue as q where q.id = j.queue_id) as queue,
    j.target,
    j.key,
    case
        when j.run_at = 'infinity' then 'blocked'
        when j.lease_until > dever.clock() then 'running'
        when j.run_at > dever.clock() then 'scheduled'
        else 'ready'
    end as state,
    j.attempt,
    j.max_attempts,
    coalesce(j.due_at, j.run_at) as run_at,
    j.created_at,
    j.lease_until,
    j.worker,
    j.token,
    (select c.fingerprint from dever.contract as c where c.id = j.contract_id) as fingerprint,
    j.expires_at,
    null::timestamptz as finished_at,
    j.reason,
    j.error,
    case when dever.may_see_payload() then j.payload end as payload
from dever.job as j
union all
select
    f.id,
    (select q.name from dever.queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    f.run_at,
    f.created_at,
    null::timestamptz as lease_until,
    f.worker,
    f.token,
    (select c.fingerprint from dever.contract as c where c.id = f.contract_id) as fingerprint,
    f.expires_at,
    f.finished_at,
    f.reason,
    f.error,
    case when dever.may_see_payload() then f.payload end as payload
from dever.finished as f;

comment on view dever.jobs is
'Every job and message, unfinished and finished; state is scheduled, ready, running, blocked,
succeeded, dead or cancelled';

create view dever.dead as
select
    f.id,
    (select q.name from dever.queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    f.run_at,
    f.created_at,
    null::timestamptz as lease_until,
    f.worker,
    f.token,
    (select c.fingerprint from dever.contract as c where c.id = f.contract_id) as fingerprint,
    f.expires_at,
    f.finished_at,
    f.reason,
    f.error,
    case when dever.may_see_payload() then f.payload end as payload
from dever.finished as f
where f.outcome = 'dead';

comment on view dever.dead is 'Dead jobs and messages; newest ids first is a walk along an index of their own';

create view dever.blocked as
select
    b.id,
    (select q.name from dever.queue as q where q.id = b.queue_id) as queue,
    b.target,
    b.key,
    'blocked'::text as state,
    b.attempt,
    b.max_attempts,
    coalesce(b.due_at, b.run_at) as run_at,
    b.created_at,
    b.lease_until,
    b.worker,
    b.token,
    (select c.fingerprint from dever.contract as c where c.id = b.contract_id) as fingerprint,
    b.expires_at,
    null::timestamptz as finished_at,
    b.reason,
    b.error,
    case when dever.may_see_payload() then b.payload end as payload
from dever.job as b
where b.run_at = 'infinity';

comment on view dever.blocked is 'Blocked jobs; newest ids first is a walk along an index of their own';

-- The oldest due rows of a queue, at most 10,001: what the counts below are taken from. Like
-- dever.later_counts a function, because only a function can pin the plan: with statistics from when
-- the tables were empty a view sorts a million rows to find the first ten thousand.
create function dever.oldest_due(queue_id bigint)
returns table (run_at timestamptz, lease_until timestamptz, worker text)
language plpgsql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    return query
    select j.run_at, j.lease_until, j.worker
    from dever.job as j
    where j.queue_id = oldest_due.queue_id and j.queue_id > 0 and j.run_at <= v_now
    order by j.queue_id, j.run_at, j.id
    limit 10001;
end
$$;

comment on function dever.oldest_due(bigint) is 'The 10,001 oldest due rows of a queue, leased ones included';

-- How many rows of a queue are not due yet, blocked, or dead; each count stops at 10,001.
create function dever.later_counts(queue_id bigint, out scheduled bigint, out blocked bigint, out dead bigint)
language plpgsql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    scheduled := (
        select pg_catalog.count(*)
        from (
            select
            from dever.job as j
            where j.queue_id = later_counts.queue_id
                and j.queue_id > 0
                and j.run_at > v_now
                and j.run_at < 'infinity'
            order by j.queue_id, j.run_at, j.id
            limit 10001
        ) as h
    );
    blocked := (
        select pg_catalog.count(*)
        from (
            select
            from dever.job as j
            where j.queue_id = later_counts.queue_id
                and j.queue_id > 0
                and j.run_at = 'infinity'
            order by j.queue_id, j.run_at, j.id
            limit 10001
        ) as h
    );
    dead := (
        select pg_catalog.count(*)
        from (
            select
            from dever.finished as f
            where f.queue_id = later_counts.queue_id and f.outcome = 'dead'
            order by f.queue_id, f.outcome, f.finished_at
            limit 10001
        ) as h
    );
end
$$;

comment on function dever.later_counts(bigint) is
'Scheduled, blocked and dead rows of a queue, each counted to 10,001 at most';

create view dever.queues as
select
    q.name as queue,
    q.paused,
    least(d.ready, 10000) as ready,
    least(l.scheduled, 10000) as scheduled,
    least(d.running, 10000) as running,
    least(l.blocked, 10000) as blocked,
    least(l.dead, 10000) as dead,
    d.examined <= 10000 and l.scheduled <= 10000 and l.blocked <= 10000 and l.dead <= 10000 as exact,
    extract(epoch from dever.clock() - d.oldest_ready)::double precision as oldest_ready_seconds,
    dever.as_interval(q.visibility_us) as visibility,
    q.max_attempts,
    dever.as_interval(q.backoff_base_us) as backoff_base,
    dever.as_interval(q.backoff_max_us) as backoff_max,
    dever.as_interval(q.keep_succeeded_us) as keep_succeeded,
    dever.as_interval(q.keep_dead_us) as keep_dead,
    dever.as_interval(q.keep_cancelled_us) as keep_cancelled,
    dever.as_interval(q.block_after_us) as block_after
from dever.queue as q
cross join lateral (
    -- One look at the oldest due rows counts both ready and running.
    select
        pg_catalog.count(*) as examined,
        pg_catalog.count(*) filter (where not h.leased) as ready,
        pg_catalog.count(*) filter (where h.leased) as running,
        pg_catalog.min(h.run_at) filter (where not h.leased) as oldest_ready
    from (
        select j.run_at, coalesce(j.lease_until > dever.clock(), false) as leased
        from dever.oldest_due(q.id) as j
    ) as h
) as d
cross join lateral dever.later_counts(q.id) as l;

comment on view dever.queues is
'Depth, age and settings of every queue; counts are exact up to 10,000, beyond that exact is false';

create view dever.workers as
with leased as (
    select h.worker, pg_catalog.count(*) as jobs
    from dever.queue as q
    cross join lateral dever.oldest_due(q.id) as h
    where h.lease_until > dever.clock()
    group by h.worker
)
select
    w.name as worker,
    w.about ->> 'host' as host,
    w.about ->> 'pid' as pid,
    w.about ->> 'version' as version,
    w.started_at,
    w.alive_until,
    coalesce(l.jobs, 0) as jobs
from dever.worker as w
left join leased as l on l.worker = w.name
where w.left_at is null;

comment on view dever.workers is
'Workers that have not left: live while alive_until is in the future, lapsed otherwise; jobs is what
each runs now, among the 10,000 oldest due rows of each queue';
