-- Renew and finish: what the holder of a claim may do with it.
--
-- Every verb takes a list of ids and tokens and gives one verdict per id: true, or false (the claim
-- was lost: nothing was changed). A row is touched only while the token is the current one and the
-- lease is running, judged by the clock read after the write lock is held. Differs by necessity: there
-- is one writer, so no row is ever busy.

-- The rows whose claim is still in force, with what the caller said about each. items: JSON array of
-- [id, token, reason, error, delay]; of several for one id the first counts. last: the attempt was the
-- row's last.

-- name: hold
select
    j.id,
    i.value ->> 2,
    i.value ->> 3,
    i.value ->> 4,
    j.attempt >= j.max_attempts,
    min(i.key)
from json_each(:items) as i
cross join dever_job as j on j.id = i.value ->> 0 and j.token = i.value ->> 1
where j.lease_until > (select c.now from dever_clock as c)
group by j.id;

-- Moves rows to dever_finished, or away when the queue keeps none of that outcome. items: JSON array
-- of [id, reason, error]; an end without an error of its own keeps the one of the attempt before.

-- name: finish_store
insert into dever_finished (
    id, queue_id, outcome, finished_at, attempt, max_attempts, token, contract_id, visibility_us,
    backoff_base_us, backoff_max_us, backoff_jitter, expires_at, run_at, created_at, target, key,
    worker, reason, error, payload
)
select
    j.id,
    j.queue_id,
    :outcome,
    c.now,
    j.attempt,
    j.max_attempts,
    j.token,
    j.contract_id,
    j.visibility_us,
    j.backoff_base_us,
    j.backoff_max_us,
    j.backoff_jitter,
    j.expires_at,
    coalesce(j.due_at, j.run_at),
    j.created_at,
    j.target,
    j.key,
    j.worker,
    iif(
        :outcome = 'dead',
        coalesce(substr(i.value ->> 1, 1, 255), 'handler_failed'),
        substr(i.value ->> 1, 1, 255)
    ),
    iif(:outcome <> 'succeeded', coalesce(substr(i.value ->> 2, 1, 10000), j.error), null),
    j.payload
from json_each(:items) as i
cross join dever_job as j on j.id = i.value ->> 0
inner join dever_queue as q on q.id = j.queue_id
cross join dever_clock as c
where case :outcome
    when 'succeeded' then q.keep_succeeded_us
    when 'dead' then q.keep_dead_us
    else q.keep_cancelled_us
end > 0;

-- name: finish_remove
delete from dever_job
where id in (select i.value ->> 0 from json_each(:items) as i);

-- A full new lease from now; null: the row's own visibility.

-- name: renew
update dever_job
set lease_until = c.now + coalesce(:lease_us, dever_job.visibility_us)
from json_each(:items) as i, dever_clock as c
where dever_job.id = i.value ->> 0 and token = i.value ->> 1 and lease_until > c.now
returning id;

-- The attempt failed: due again after its delay (null: the curve of the row; zero or less: at once).
-- Rows at their last attempt are finished as dead instead. The curve is min(base x 2^(attempt-1), max),
-- exact and without overflow for any attempt. items: JSON array of [id, reason, error, delay].

-- name: retry_update
update dever_job
set
    run_at = c.now + coalesce(
        max(i.value ->> 3, 0),
        cast(
            round(
                case
                    when attempt > 62 or backoff_base_us > (backoff_max_us >> (max(attempt, 1) - 1))
                        then backoff_max_us
                    else backoff_base_us << (max(attempt, 1) - 1)
                end
                * (1 - backoff_jitter * ((random() & 1048575) / 1048576.0))
            ) as integer
        )
    ),
    lease_until = null,
    worker = null,
    reason = substr(coalesce(i.value ->> 1, 'handler_failed'), 1, 255),
    error = substr(i.value ->> 2, 1, 10000)
from json_each(:items) as i, dever_clock as c
where dever_job.id = i.value ->> 0;

-- name: block_check
insert into dever_raise (message)
select 'DV007 InvalidArgument: a job can be blocked as unknown_target, schema_mismatch, '
    || 'invalid_payload or invalid_policy
hint: a job that failed is retried or buried instead'
from json_each(:reasons) as r
where r.value is null
    or r.value not in ('unknown_target', 'schema_mismatch', 'invalid_payload', 'invalid_policy');

-- Set aside with a reason until redriven, or, for unknown_target and schema_mismatch, until a worker
-- that can run them is live.

-- name: block_update
update dever_job
set
    due_at = run_at,
    run_at = 9223372036854775807,
    lease_until = null,
    worker = null,
    reason = i.value ->> 1,
    error = substr(i.value ->> 2, 1, 10000)
from json_each(:items) as i
where dever_job.id = i.value ->> 0;

-- Gives claims back at shutdown: due again at once, the attempt stays used. Rows at their last attempt
-- are finished as dead, interrupted.

-- name: release_update
update dever_job
set lease_until = null, worker = null
where id in (select i.value ->> 0 from json_each(:items) as i);
