-- Operate: settings of queues, and what an operator does with jobs.

-- configure_queue creates or changes a queue; null leaves a value as it is. Rows already sent keep what
-- was stamped on them. keep_*: 0 keeps nothing, 36,500 days keep for ever. One transaction. Raises DV001,
-- DV002, DV007.

-- name: configure_check
insert into dever_raise (message)
select case
    when :max_attempts not between 1 and 2147483647
        then 'DV007 InvalidArgument: max_attempts is below 1
hint: it is the total number of deliveries, the first included'
    when :keep_succeeded_us < 0 or :keep_dead_us < 0 or :keep_cancelled_us < 0
        then 'DV007 InvalidArgument: a time to keep finished jobs is negative
hint: give 0 to keep none, 36,500 days to keep them for ever'
end;

-- name: configure_update
update dever_queue
set
    visibility_us = coalesce(:visibility_us, visibility_us),
    max_attempts = coalesce(:max_attempts, max_attempts),
    backoff_base_us = coalesce(:backoff_base_us, backoff_base_us),
    backoff_max_us = coalesce(:backoff_max_us, backoff_max_us),
    keep_succeeded_us = coalesce(:keep_succeeded_us, keep_succeeded_us),
    keep_dead_us = coalesce(:keep_dead_us, keep_dead_us),
    keep_cancelled_us = coalesce(:keep_cancelled_us, keep_cancelled_us),
    block_after_us = coalesce(:block_after_us, block_after_us)
where name = :queue;

-- name: configure_check_backoff
insert into dever_raise (message)
select 'DV007 InvalidArgument: backoff_base is longer than backoff_max
hint: raise backoff_max too'
from dever_queue as q
where q.name = :queue and q.backoff_base_us > q.backoff_max_us;

-- Nothing of a paused queue is claimed until it is resumed; running jobs go on.

-- name: pause_queue
update dever_queue
set paused = true
where name = :queue
returning id;

-- name: resume_queue
update dever_queue
set paused = false
where name = :queue
returning id;

-- Cancels unfinished jobs; a running one loses its lease, its late result is refused. outcome:
-- cancelled, finished, not_found. The cancelled ones go through finish_store and finish_remove.

-- name: cancel_outcomes
select i.value, case
    when exists (select 1 from dever_job as j where j.id = i.value) then 'cancelled'
    when exists (select 1 from dever_finished as f where f.id = i.value) then 'finished'
    else 'not_found'
end
from json_each(:ids) as i
group by i.value
order by min(i.key);

-- Dead and blocked jobs become pending again: same id, due now, attempts from zero, no expiry. A dead
-- one whose key is in use again is reported and stays; the others go on. outcome: pending, key_in_use,
-- not_found.

-- name: redrive_dead
insert into dever_job (
    id, queue_id, run_at, token, attempt, max_attempts, contract_id, visibility_us, backoff_base_us,
    backoff_max_us, backoff_jitter, created_at, target, key, payload
)
select
    f.id, f.queue_id, c.now, f.token, 0, f.max_attempts, f.contract_id, f.visibility_us,
    f.backoff_base_us, f.backoff_max_us, f.backoff_jitter, f.created_at, f.target, f.key, f.payload
from dever_finished as f
cross join dever_clock as c
where f.id in (select i.value from json_each(:ids) as i) and f.outcome = 'dead'
order by f.target, f.key, f.id
on conflict do nothing;

-- name: redrive_forget
delete from dever_finished
where id in (select i.value from json_each(:ids) as i)
    and id in (select j.id from dever_job as j);

-- name: redrive_blocked
update dever_job
set
    run_at = c.now,
    due_at = null,
    attempt = 0,
    expires_at = null,
    reason = null,
    error = null
from dever_clock as c
where id in (select i.value from json_each(:ids) as i) and run_at = 9223372036854775807
returning id;

-- What redrive is about to do, before it does it.

-- name: redrive_candidates
select i.value, case
    when exists (
        select 1
        from dever_job as j
        where j.id = i.value and j.run_at = 9223372036854775807
    ) then 'pending'
    when exists (select 1 from dever_finished as f where f.id = i.value and f.outcome = 'dead')
        then 'dead'
    else 'not_found'
end
from json_each(:ids) as i
group by i.value
order by min(i.key);

-- name: redrive_outcomes
select c.value ->> 0, case
    when c.value ->> 1 <> 'dead' then c.value ->> 1
    when exists (select 1 from dever_finished as f where f.id = c.value ->> 0) then 'key_in_use'
    else 'pending'
end
from json_each(:candidates) as c
order by c.key;

-- Removes dead and blocked jobs for good. outcome: dropped, not_found.

-- name: drop_outcomes
select i.value, iif(
    exists (
        select 1
        from dever_job as j
        where j.id = i.value and j.run_at = 9223372036854775807
    )
    or exists (select 1 from dever_finished as f where f.id = i.value and f.outcome = 'dead'),
    'dropped',
    'not_found'
)
from json_each(:ids) as i
group by i.value
order by min(i.key);

-- name: drop_blocked
delete from dever_job
where id in (select i.value from json_each(:ids) as i) and run_at = 9223372036854775807;

-- name: drop_dead
delete from dever_finished
where id in (select i.value from json_each(:ids) as i) and outcome = 'dead';
