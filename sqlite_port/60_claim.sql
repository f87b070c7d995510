-- Claim: lease due rows to a worker. A claim is the only way to own a job.
--
-- The scan walks dever_job_claim_idx in (run_at, id) order and takes what is free: never leased, or the
-- lease has run out, so recovery needs no other process. Rows that used their attempts, expired or
-- belong to contracts the worker does not run are passed over; sweep moves them.
--
-- Differs by necessity: the head hint is kept by the engine object (dever_sql/sqlite_head.py), for SQLite
-- has no settings of a session, and guards against rows that the worker may not run, for it leaves no
-- dead rows; the index scan and the update are two statements, so that an idle worker writes nothing.

-- claim returns up to n leased jobs in (run_at, id) order, each with a fresh token and its attempt
-- counted. One transaction of its own. n <= 0, a paused or unknown queue: nothing. contracts null:
-- messages only, else jobs of these contracts (a JSON array). lease null: the row's own visibility.
-- Raises DV001, DV007.

-- name: claim_check
insert into dever_raise (message)
select 'DV007 InvalidArgument: n is ' || :n || ', at most 10,000 jobs can be claimed in one call
hint: claim what you have free slots for'
where :n > 10000;

-- Schedules and outboxes claim from reserved queues, so only the form of the name is checked.

-- name: claim_check_names
insert into dever_check_name (name)
select iif(substr(:queue, 1, 8) = '__dever_', 'reserved', :queue)
where :n > 0
union all
select :worker
where :n > 0;

-- from_run_at, from_id: where the scan starts.

-- name: claim_pick
select j.id
from dever_job as j
where j.queue_id = (select q.id from dever_queue as q where q.name = :queue and not q.paused)
    and j.run_at <= (select c.now from dever_clock as c)
    and (j.run_at, j.id) >= (:from_run_at, :from_id)
    and (j.lease_until is null or j.lease_until <= (select c.now from dever_clock as c))
    and j.attempt < j.max_attempts
    and (j.expires_at is null or j.expires_at > (select c.now from dever_clock as c))
    and case
        when :contracts is null then j.contract_id is null
        else j.contract_id in (select k.value from json_each(:contracts) as k)
    end
order by j.run_at, j.id
limit max(:n, 0);

-- name: claim_update
update dever_job
set
    attempt = attempt + 1,
    token = s.value + pick.key + 1,
    lease_until = c.now + coalesce(:lease_us, visibility_us),
    worker = :worker
from json_each(:ids) as pick, dever_sequence as s, dever_clock as c
where dever_job.id = pick.value and s.name = 'token'
returning
    id,
    token,
    target,
    dever_job.key,
    attempt,
    max_attempts,
    (select k.fingerprint from dever_contract as k where k.id = contract_id),
    payload,
    run_at,
    lease_until;

-- name: claim_tokens
update dever_sequence
set value = value + json_array_length(:ids)
where name = 'token';
