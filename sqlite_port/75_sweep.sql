-- Sweep: everything that no claim may touch, in bounded passes.
--
-- It looks at due and at blocked rows in (queue, run_at, id) order, at most 10 n a call, from a cursor
-- it keeps, and moves: expired messages and exhausted jobs to dead, due jobs that no live worker has
-- been able to run for block_after to blocked, blocked jobs that a live worker can run back to pending,
-- jobs whose program moved them to another queue there. Then it prunes at most n finished rows. One
-- transaction; what was moved: exhausted, expired, blocked, unblocked, moved, pruned, workers. Raises
-- DV007.

-- The contracts a live worker runs.
create view dever_live_contract (contract_id) as
select distinct p.contract_id
from dever_live_policy as l
inner join dever_policy as p on p.id = l.policy_id;

-- The contracts that no live worker has run for a queue's block_after, though they were there by then.
-- A paused queue blocks nothing: its workers may have been stopped on purpose.
create view dever_stale_contract (queue_id, contract_id) as
select q.id, k.id
from dever_queue as q
cross join dever_contract as k
where not q.paused
    and k.created_at <= (select c.now from dever_clock as c) - q.block_after_us
    and not exists (
        select 1
        from dever_policy as p
        inner join dever_worker_policy as wp on wp.policy_id = p.id
        inner join dever_worker as w on w.name = wp.worker
        where p.contract_id = k.id
            and w.alive_until > (select c.now from dever_clock as c) - q.block_after_us
    );

-- Where live programs have moved a contract to: its newest live policy, for every queue in which no
-- live policy of it is.
create view dever_moved_contract (queue_id, contract_id, to_queue_id) as
select
    q.id,
    l.contract_id,
    (
        select p.queue_id
        from dever_policy as p
        where p.contract_id = l.contract_id
            and exists (select 1 from dever_live_policy as v where v.policy_id = p.id)
        order by p.id desc
        limit 1
    )
from dever_queue as q
cross join dever_live_contract as l
where not exists (
    select 1
    from dever_policy as p
    where p.contract_id = l.contract_id
        and p.queue_id = q.id
        and exists (select 1 from dever_live_policy as v where v.policy_id = p.id)
);

-- name: sweep_check
insert into dever_raise (message)
select 'DV007 InvalidArgument: n is ' || :n || ', at most 100,000 rows can be swept in one call
hint: call it again instead'
where :n > 100000;

-- Where a pass begins, and where the cursor goes when one came to the end.

-- name: sweep_start
select 0, -9223372036854775808, 0;

-- The parts of a pass that lie at or behind the cursor, in order: for each queue its due rows, then its
-- blocked rows. from_run_at and from_id: where in the part to go on.

-- name: sweep_parts
select
    q.id,
    part.blocked,
    iif(q.id = s.queue_id and part.blocked = (s.run_at = 9223372036854775807), s.run_at, -9223372036854775808),
    iif(q.id = s.queue_id and part.blocked = (s.run_at = 9223372036854775807), s.job_id, 0)
from dever_sweep_cursor as s
inner join dever_queue as q on q.id >= s.queue_id
cross join (select 0 as blocked union all select 1) as part
where q.id > s.queue_id or part.blocked >= (s.run_at = 9223372036854775807)
order by q.id, part.blocked;

-- One look at up to :n due rows of a queue: how many, the last one, and what to do with which. dead:
-- items for finish_store.

-- name: sweep_due
with sample as materialized (
    select
        j.id, j.run_at, j.contract_id,
        case
            when j.lease_until > c.now then null
            when j.expires_at <= c.now then 'expired'
            when j.attempt >= j.max_attempts then 'attempts_exhausted'
        end as reason,
        coalesce(j.lease_until <= c.now, true) as free
    from dever_job as j
    cross join dever_clock as c
    where j.queue_id = :queue_id
        and j.run_at between :run_at and (select c.now from dever_clock as c)
        and (j.run_at, j.id) > (:run_at, :job_id)
    order by j.run_at, j.id
    limit :n
),
last as (
    select s.run_at, s.id
    from sample as s
    order by s.run_at desc, s.id desc
    limit 1
)
select
    count(*),
    (select l.run_at from last as l),
    (select l.id from last as l),
    count(*) filter (where s.reason = 'expired'),
    count(*) filter (where s.reason = 'attempts_exhausted'),
    json_group_array(json_array(s.id, s.reason)) filter (where s.reason is not null),
    json_group_array(s.id) filter (
        where s.free
            and s.reason is null
            and s.contract_id in (
                select k.contract_id from dever_stale_contract as k where k.queue_id = :queue_id
            )
    ),
    json_group_array(s.id) filter (
        where s.free
            and s.reason is null
            and s.contract_id in (
                select k.contract_id from dever_moved_contract as k where k.queue_id = :queue_id
            )
    )
from sample as s;

-- name: sweep_block
update dever_job
set
    due_at = run_at,
    run_at = 9223372036854775807,
    lease_until = null,
    worker = null,
    reason = iif(
        exists (
            select 1
            from dever_contract as k
            inner join dever_live_contract as l on l.contract_id = k.id
            where k.target = dever_job.target
        ),
        'schema_mismatch',
        'unknown_target'
    ),
    error = null
where id in (select i.value from json_each(:ids) as i)
returning id;

-- name: sweep_move
update dever_job
set queue_id = m.to_queue_id
from dever_moved_contract as m
where id in (select i.value from json_each(:ids) as i)
    and m.contract_id = dever_job.contract_id
    and m.queue_id = dever_job.queue_id
returning id;

-- The same for up to :n blocked rows of a queue.

-- name: sweep_blocked
with sample as materialized (
    select j.id, j.run_at, j.reason, j.contract_id
    from dever_job as j
    where j.queue_id = :queue_id
        and j.run_at = 9223372036854775807
        and j.id > :job_id
    order by j.id
    limit :n
)
select
    count(*),
    9223372036854775807,
    max(s.id),
    json_group_array(s.id) filter (
        where s.reason in ('unknown_target', 'schema_mismatch')
            and s.contract_id in (select l.contract_id from dever_live_contract as l)
    )
from sample as s;

-- name: sweep_unblock
update dever_job
set
    run_at = coalesce(due_at, c.now),
    due_at = null,
    attempt = min(attempt, max_attempts - 1),
    reason = null
from dever_clock as c
where id in (select i.value from json_each(:ids) as i)
returning id;

-- name: sweep_cursor_update
update dever_sweep_cursor
set queue_id = :queue_id, run_at = :run_at, job_id = :job_id
where (queue_id, run_at, job_id) <> (:queue_id, :run_at, :job_id);

-- Kept for 36,500 days or more means for ever. Differs by necessity: pruned in transactions of their
-- own, a hundred rows each, because nobody can write while one lasts.

-- name: sweep_prune
with keep (queue_id, outcome, keep_us) as (
    select q.id, 'succeeded', q.keep_succeeded_us
    from dever_queue as q
    union all
    select q.id, 'dead', q.keep_dead_us
    from dever_queue as q
    union all
    select q.id, 'cancelled', q.keep_cancelled_us
    from dever_queue as q
)
delete from dever_finished
where id in (
    select f.id
    from keep as k
    -- In this order; the planner would rather read all of dever_finished.
    cross join dever_finished as f
        on f.queue_id = k.queue_id
            and f.outcome = k.outcome
            and f.finished_at < (select c.now from dever_clock as c) - k.keep_us
    where k.keep_us < 36500 * 86400000000
    limit :n
)
returning id;

-- A worker's row stays for a day, and as long as block_after may still ask since when it is gone.

-- name: sweep_workers
delete from dever_worker
where alive_until < (
    select c.now - max(86400000000, (select max(q.block_after_us) from dever_queue as q))
    from dever_clock as c
)
returning name;
