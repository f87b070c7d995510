-- Every statement that 0.2.0 documented for the sqlite3 shell. Frozen: what answers something else, or
-- fails, breaks a client.

insert into dever_enqueue (job, key, payload)
values ('shop.send', 'r:1', '{"order_id": 1, "email": "a"}');

insert into dever_enqueue (job, key, payload)
values ('shop.send', 'r:1', '{"order_id": 1, "email": "a"}');

insert into dever_enqueue (job, key, payload, run_at)
values ('shop.send', 'r:2', '{"order_id": 2, "email": "b"}', '2100-01-01T00:00:00Z');

insert into dever_send (queue, payload, key, run_at) values ('mail', '1', 'm:1', null);

insert into dever_send (queue, payload) values ('mail', '2');

insert into dever_outbox_enqueue (outbox, payload, key) values ('notify', '{"order": 7}', 'o:1');

select id, state, reason from dever_jobs where target = 'shop.send';

select
    id, queue, target, key, state, attempt, max_attempts, worker, token, fingerprint, reason, error, payload,
    run_at is null, created_at is null, lease_until, expires_at, finished_at
from dever_jobs
order by id;

select id, target, key, reason, error from dever_dead order by id desc limit 50;

select id, target, reason from dever_blocked order by id desc limit 50;

select queue, paused, ready, scheduled, running, blocked, dead from dever_queues order by queue;

select name, spec, queue, status from dever_schedules;

select worker, host, pid, version from dever_workers;

select name, owner from dever_locks;
