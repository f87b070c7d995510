-- Views: what everybody sees of a job, and the state of the house. Each is of bounded cost.
--
-- dever_jobs is two plain scans without a join, so that "the last 20 ids", one id, or one (target, key)
-- is an index scan however many rows there are; every column is cast to the same type in both, or
-- SQLite would build the whole view first. Counts stop at 10,000. Differs by necessity: instants are
-- RFC 3339 text and durations microseconds, because SQLite has no types for them; there are no roles,
-- so payloads are shown to everybody who can open the file.

-- Every job and message, unfinished and finished; state is scheduled, ready, running, blocked,
-- succeeded, dead or cancelled.
create view dever_jobs as
select
    j.id,
    (select q.name from dever_queue as q where q.id = j.queue_id) as queue,
    j.target,
    j.key,
    cast(case
        when j.run_at = 9223372036854775807 then 'blocked'
        when j.lease_until > (select c.now from dever_clock as c) then 'running'
        when j.run_at > (select c.now from dever_clock as c) then 'scheduled'
        else 'ready'
    end as text) as state,
    j.attempt,
    j.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (coalesce(j.due_at, j.run_at) + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (coalesce(j.due_at, j.run_at) + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.lease_until + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.lease_until + 62135596800000000) % 1000000) as text) as lease_until,
    j.worker,
    j.token,
    (select k.fingerprint from dever_contract as k where k.id = j.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(null as text) as finished_at,
    j.reason,
    j.error,
    j.payload
from dever_job as j
union all
select
    f.id,
    (select q.name from dever_queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.run_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.run_at + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(null as text) as lease_until,
    f.worker,
    f.token,
    (select k.fingerprint from dever_contract as k where k.id = f.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.finished_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.finished_at + 62135596800000000) % 1000000) as text) as finished_at,
    f.reason,
    f.error,
    f.payload
from dever_finished as f;

-- Dead jobs and messages, found through an index.
create view dever_dead as
select
    f.id,
    (select q.name from dever_queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.run_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.run_at + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(null as text) as lease_until,
    f.worker,
    f.token,
    (select k.fingerprint from dever_contract as k where k.id = f.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.finished_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.finished_at + 62135596800000000) % 1000000) as text) as finished_at,
    f.reason,
    f.error,
    f.payload
from dever_finished as f
where f.outcome = 'dead';

-- Blocked jobs, found through an index.
create view dever_blocked as
select
    j.id,
    (select q.name from dever_queue as q where q.id = j.queue_id) as queue,
    j.target,
    j.key,
    'blocked' as state,
    j.attempt,
    j.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (coalesce(j.due_at, j.run_at) + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (coalesce(j.due_at, j.run_at) + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.lease_until + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.lease_until + 62135596800000000) % 1000000) as text) as lease_until,
    j.worker,
    j.token,
    (select k.fingerprint from dever_contract as k where k.id = j.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(null as text) as finished_at,
    j.reason,
    j.error,
    j.payload
from dever_job as j
where j.run_at = 9223372036854775807;

-- Depth, age and settings of every queue; counts are exact up to 10,000, beyond that exact is 0.
create view dever_queues as
with counted as materialized (
    select
        q.id,
        -- One look at the oldest due rows counts both ready and running.
        (
            select json_array(
                count(*),
                count(*) filter (where h.leased is not true),
                count(*) filter (where h.leased),
                min(h.run_at) filter (where h.leased is not true)
            )
            from (
                select j.run_at, j.lease_until > (select c.now from dever_clock as c) as leased
                from dever_job as j
                where j.queue_id = q.id and j.run_at <= (select c.now from dever_clock as c)
                order by j.run_at, j.id
                limit 10001
            ) as h
        ) as due,
        (
            select count(*)
            from (
                select 1
                from dever_job as j
                where j.queue_id = q.id
                    and j.run_at > (select c.now from dever_clock as c)
                    and j.run_at < 9223372036854775807
                limit 10001
            ) as h
        ) as scheduled,
        (
            select count(*)
            from (
                select 1
                from dever_job as j
                where j.queue_id = q.id and j.run_at = 9223372036854775807
                limit 10001
            ) as h
        ) as blocked,
        (
            select count(*)
            from (
                select 1
                from dever_finished as f
                where f.queue_id = q.id and f.outcome = 'dead'
                limit 10001
            ) as h
        ) as dead
    from dever_queue as q
)
select
    q.name as queue,
    q.paused,
    min(d.due ->> 1, 10000) as ready,
    min(d.scheduled, 10000) as scheduled,
    min(d.due ->> 2, 10000) as running,
    min(d.blocked, 10000) as blocked,
    min(d.dead, 10000) as dead,
    (d.due ->> 0) <= 10000 and d.scheduled <= 10000 and d.blocked <= 10000 and d.dead <= 10000
        as exact,
    ((select c.now from dever_clock as c) - (d.due ->> 3)) / 1000000.0 as oldest_ready_seconds,
    q.visibility_us,
    q.max_attempts,
    q.backoff_base_us,
    q.backoff_max_us,
    q.keep_succeeded_us,
    q.keep_dead_us,
    q.keep_cancelled_us,
    q.block_after_us
from dever_queue as q
inner join counted as d on d.id = q.id;

-- Workers that have not left: live while alive_until is in the future, lapsed otherwise; jobs is what
-- each runs now, among the 10,000 oldest due rows of all queues.
create view dever_workers as
select
    w.name as worker,
    w.about ->> 'host' as host,
    w.about ->> 'pid' as pid,
    w.about ->> 'version' as version,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (w.started_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (w.started_at + 62135596800000000) % 1000000) as text) as started_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (w.alive_until + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (w.alive_until + 62135596800000000) % 1000000) as text) as alive_until,
    coalesce(l.jobs, 0) as jobs
from dever_worker as w
left join (
    select h.worker, count(*) as jobs
    from (
        select j.worker, j.lease_until
        from dever_queue as q
        cross join dever_job as j
        where j.queue_id = q.id and j.run_at <= (select c.now from dever_clock as c)
        limit 10001
    ) as h
    where h.lease_until > (select c.now from dever_clock as c)
    group by h.worker
) as l on l.worker = w.name
where w.left_at is null;

-- Listings for the engine, newest first. before: only ids below it. A dead or a blocked one is found
-- through the index of its state.

-- name: get_job
select *
from dever_jobs
where id = :id;

-- name: jobs
select *
from dever_jobs
where id < coalesce(:before, 9223372036854775807)
    and (:state is null or state = :state)
    and (:queue is null or queue = :queue)
    and (:target is null or target = :target)
    and (:key is null or key = :key)
order by id desc
limit max(:limit, 0);

-- name: jobs_of_target
select *
from dever_jobs
where target = :target
    and id < coalesce(:before, 9223372036854775807)
    and (:state is null or state = :state)
    and (:queue is null or queue = :queue)
    and (:key is null or key = :key)
order by id desc
limit max(:limit, 0);

-- name: jobs_dead
select *
from dever_dead
where id < coalesce(:before, 9223372036854775807)
    and (:queue is null or queue = :queue)
    and (:target is null or target = :target)
    and (:key is null or key = :key)
order by id desc
limit max(:limit, 0);

-- name: jobs_blocked
select *
from dever_blocked
where id < coalesce(:before, 9223372036854775807)
    and (:queue is null or queue = :queue)
    and (:target is null or target = :target)
    and (:key is null or key = :key)
order by id desc
limit max(:limit, 0);

-- name: queues
select *
from dever_queues
where queue = coalesce(:queue, queue)
order by queue;

-- name: workers
select *
from dever_workers
order by worker;
