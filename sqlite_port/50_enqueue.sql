-- Enqueue and send: check, deduplicate, insert. All of it joins the caller's transaction.
--
-- While (target, key) is unfinished no second row is inserted. There is one writer at a time, so
-- looking and inserting cannot be overtaken. Every path begins with an INSERT: that takes the write
-- lock before anything is read, so a transaction that has not read before cannot be told
-- SQLITE_BUSY_SNAPSHOT, and a legacy Python connection opens its transaction.

-- Inserts one checked job or message, unless its key is unfinished. run_at: null for now,
-- microseconds, or an RFC 3339 text that dever_check_run_at has let pass.
create view dever_insert_job (
    queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
    backoff_jitter, target, key, payload
) as
select null, null, null, null, null, null, null, null, null, null, null
where false;

create trigger dever_insert_job_call
instead of insert on dever_insert_job
begin
    insert into dever_job (
        queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
        backoff_jitter, created_at, target, key, payload
    )
    select
        new.queue_id,
        case typeof(new.run_at)
            when 'null' then c.now
            when 'integer' then new.run_at
            else
                unixepoch(
                    upper(substr(new.run_at, 1, 19))
                    || iif(upper(substr(new.run_at, -1)) = 'Z', '', substr(new.run_at, -6))
                ) * 1000000
                -- A cast reads the digits up to the zone.
                + iif(
                    substr(new.run_at, 20, 1) = '.',
                    cast(round(cast('0' || substr(new.run_at, 20) as real) * 1000000) as integer),
                    0
                )
        end,
        new.max_attempts,
        new.contract_id,
        new.visibility_us,
        new.backoff_base_us,
        new.backoff_max_us,
        new.backoff_jitter,
        c.now,
        new.target,
        new.key,
        json(new.payload)
    from dever_clock as c
    where not exists (
        select 1
        from dever_job as j
        where j.target = new.target and j.key = new.key
    )
    and not exists (
        select 1
        from dever_job as j
        where new.target is null
            and j.target is null
            and j.queue_id = new.queue_id
            and j.key = new.key
    );
end;

-- For any language: one job. Raises DV004, DV005, DV006, DV002, DV007. An unfinished (job, key) is left
-- as it is, without an error; the id is in dever_jobs.
create view dever_enqueue (job, key, payload, run_at) as
select null, null, null, null
where false;

create trigger dever_enqueue_call
instead of insert on dever_enqueue
begin
    insert into dever_check_job (job, fingerprint) values (new.job, null);
    insert into dever_check_payload (contract_id, target, payload)
    select p.contract_id, p.target, coalesce(new.payload, 'null')
    from dever_current_policy as p
    where p.target = new.job;
    insert into dever_check_key (key) values (new.key);
    select raise(abort, 'DV007 InvalidArgument: run_at is not RFC 3339 text
hint: write it like 2027-01-31T08:30:00Z')
    where typeof(new.run_at) not in ('text', 'null');
    insert into dever_check_run_at (run_at) values (new.run_at);
    insert into dever_insert_job (
        queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
        backoff_jitter, target, key, payload
    )
    select
        p.queue_id, new.run_at, p.max_attempts, p.contract_id, q.visibility_us, p.backoff_base_us,
        p.backoff_max_us, p.backoff_jitter, p.target, new.key, coalesce(new.payload, 'null')
    from dever_current_policy as p
    inner join dever_queue as q on q.id = p.queue_id
    where p.target = new.job;
end;

-- Raises DV004 unless the job is registered, with that fingerprint when it is not null.
create view dever_check_job (job, fingerprint) as
select null, null
where false;

create trigger dever_check_job_call
instead of insert on dever_check_job
begin
    insert into dever_raise (message)
    select
        'DV004 UnknownJob: no job is registered as ' || coalesce(substr(new.job, 1, 255), 'null')
        || coalesce(' with fingerprint ' || substr(new.fingerprint, 1, 128), '') || '
hint: start a worker of the program that declares it, or run: dever sql contracts MODULE URL'
    where not exists (
        select 1
        from dever_contract as k
        where k.target = new.job and k.fingerprint is coalesce(new.fingerprint, k.fingerprint)
    );
end;

-- For any language: one message. Raises DV001, DV002, DV005, DV006, DV007. A key that is unfinished
-- in this queue is left as it is, without an error.
create view dever_send (queue, payload, key, run_at) as
select null, null, null, null
where false;

create trigger dever_send_call
instead of insert on dever_send
begin
    insert into dever_check_name (name) values (new.queue);
    select raise(abort, 'DV007 InvalidArgument: run_at is not RFC 3339 text
hint: write it like 2027-01-31T08:30:00Z')
    where typeof(new.run_at) not in ('text', 'null');
    insert into dever_check_message (payload, key, run_at)
    values (coalesce(new.payload, 'null'), new.key, new.run_at);
    insert into dever_queue_for (name) values (new.queue);
    insert into dever_insert_job (
        queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
        backoff_jitter, target, key, payload
    )
    select
        q.id, new.run_at, q.max_attempts, null, q.visibility_us, q.backoff_base_us,
        q.backoff_max_us, 0, null, new.key, coalesce(new.payload, 'null')
    from dever_queue as q
    where q.name = new.queue;
end;

-- What every message has to pass. Raises DV005, DV006, DV002, DV007.
create view dever_check_message (payload, key, run_at) as
select null, null, null
where false;

create trigger dever_check_message_call
instead of insert on dever_check_message
begin
    insert into dever_check_key (key)
    select new.key
    where new.key is not null;
    insert into dever_check_run_at (run_at) values (new.run_at);
    insert into dever_check_payload_limits (payload, subject) values (new.payload, 'payload');
    insert into dever_check_json (payload, subject) values (new.payload, 'payload');
end;

-- The policy that enqueue uses: the current one of the target, or with a fingerprint that of its
-- contract.
create view dever_enqueue_policy (target, fingerprint, policy_id) as
select p.target, null, p.id
from dever_current_policy as p
union all
select p.target, p.fingerprint, p.id
from dever_current_policy_as as p;

-- enqueue_many (fingerprint null: payloads are checked) and enqueue_as, in three steps: check all,
-- insert, find the ids. items: JSON array of [key, payload, run_at], by ordinal. Raises DV004, DV005,
-- DV006, DV002, DV007.

-- name: enqueue_check_job
insert into dever_check_job (job, fingerprint) values (:job, :fingerprint);

-- name: enqueue_check_payloads
insert into dever_check_payload (contract_id, target, payload, item)
select p.contract_id, p.target, i.value ->> 1, iif(json_array_length(:items) > 1, i.key + 1, null)
from json_each(:items) as i
inner join dever_current_policy as p on p.target = :job
order by i.key;

-- name: enqueue_check_keys
insert into dever_check_key (key)
select i.value ->> 0
from json_each(:items) as i
order by i.key;

-- name: enqueue_check_run_ats
insert into dever_check_run_at (run_at)
select i.value ->> 2
from json_each(:items) as i
where i.value ->> 2 is not null
order by i.key;

-- name: enqueue_insert
insert into dever_job (
    queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
    backoff_jitter, created_at, target, key, payload
)
select
    p.queue_id,
    coalesce(i.value ->> 2, c.now),
    p.max_attempts,
    p.contract_id,
    q.visibility_us,
    p.backoff_base_us,
    p.backoff_max_us,
    p.backoff_jitter,
    c.now,
    p.target,
    i.value ->> 0,
    json(i.value ->> 1)
from json_each(:items) as i
cross join dever_clock as c
inner join dever_enqueue_policy as e on e.target = :job and e.fingerprint is :fingerprint
inner join dever_policy as p on p.id = e.policy_id
inner join dever_queue as q on q.id = p.queue_id
where true
order by i.key
on conflict do nothing
returning id, key;

-- name: enqueue_find
select i.key, j.id
from json_each(:items) as i
cross join dever_job as j on j.target = :job and j.key = i.value ->> 0
order by i.key;

-- send, send_many and outbox_enqueue: check, insert, find the id. items: JSON array of [payload, key].

-- name: send_check
insert into dever_check_message (payload, key, run_at)
select i.value ->> 0, i.value ->> 1, :run_at
from json_each(:items) as i
order by i.key;

-- name: send_check_max_attempts
insert into dever_raise (message)
select 'DV007 InvalidArgument: max_attempts is not between 1 and 2147483647
hint: it is the total number of deliveries, the first included'
where :max_attempts not between 1 and 2147483647;

-- name: queue_for
insert into dever_queue_for (name) values (:queue);

-- name: send_insert
insert into dever_job (
    queue_id, run_at, max_attempts, visibility_us, backoff_base_us, backoff_max_us, expires_at,
    created_at, key, payload
)
select
    q.id,
    -- Delay wins over run_at.
    iif(:delay_us is null, coalesce(:run_at, c.now), c.now + max(:delay_us, 0)),
    coalesce(:max_attempts, q.max_attempts),
    q.visibility_us,
    q.backoff_base_us,
    q.backoff_max_us,
    c.now + :expires_us,
    c.now,
    i.value ->> 1,
    json(i.value ->> 0)
from json_each(:items) as i
cross join dever_clock as c
inner join dever_queue as q on q.name = :queue
where true
order by i.key
on conflict do nothing
returning id;

-- name: send_find
select j.id
from json_each(:items) as i
cross join dever_queue as q on q.name = :queue
cross join dever_job as j
    on j.target is null and j.queue_id = q.id and j.key = i.value ->> 1;
