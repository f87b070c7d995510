-- Every statement that 0.2.0 documented for psql, with every parameter by its name. Frozen: what prints
-- something else, or fails, breaks a client. It prints nothing that two runs could differ in.
set timezone = 'UTC';
begin;

-- Worker
select target, fingerprint, contract_id > 0 from dever.register(
    worker => 'w', alive => '1 hour', about => '{"host": "h", "pid": 1, "version": "x"}',
    contracts => '[{
        "target": "shop.send", "queue": "shop", "retry": 3, "timeout_ms": 1000, "backoff_base_ms": 1000,
        "backoff_max_ms": 2000, "schedule": null,
        "fingerprint": "0000000000000000000000000000000000000000000000000000000000000000",
        "schema": {"kind": "record", "name": "Receipt", "fields": [
            {"name": "order_id", "type": {"kind": "int"}}, {"name": "email", "type": {"kind": "text"}}
        ]}
    }]'
);
select dever.alive(worker => 'w', alive => '1 hour');

-- Enqueue
select created from dever.enqueue('shop.send', key => 'r:1', payload => '{"order_id": 1, "email": "a"}');
select created from dever.enqueue('shop.send', key => 'r:1', payload => '{"order_id": 1, "email": "a"}');
select created from dever.enqueue(
    job => 'shop.send', key => 'r:2', payload => '{"order_id": 2, "email": "b"}', run_at => '2100-01-01 00:00+00'
);
select ordinal, created from dever.enqueue_many(
    job => 'shop.send', keys => array['r:3', 'r:1'],
    payloads => array['{"order_id": 3, "email": "c"}', '{"order_id": 1, "email": "a"}']::jsonb[],
    run_ats => array[null, null]::timestamptz[]
);
select ordinal, created from dever.enqueue_as(
    job => 'shop.send', fingerprint => repeat('0', 64), keys => array['r:4'],
    payloads => array['{"order_id": 4, "email": "d"}']::jsonb[], run_ats => null
);
savepoint s;
\set ON_ERROR_STOP off
select dever.enqueue('shop.nothing', key => 'k');
\echo :SQLSTATE
rollback to s;
select dever.enqueue('shop.send', key => 'k', payload => '{"order_id": "x", "email": "a"}');
\echo :SQLSTATE
rollback to s;
\set ON_ERROR_STOP on

-- Messages
select dever.send(queue => 'mail', payload => '{"to": "ada"}', key => 'm:1') > 0;
select dever.send('mail', '2', delay => '10 minutes', expires => '1 hour', max_attempts => 2) > 0;
select dever.send('mail', '3', run_at => '2100-01-01 00:00+00') > 0;
select count(*) from dever.send_many(queue => 'mail', payloads => array['4', '5', '6', '7']::jsonb[]);
select dever.outbox_enqueue(outbox => 'notify', payload => '{}', key => 'o:1', max_attempts => 3) > 0;

-- Claim and finish. The clock of a transaction does not stand still: leases of an hour.
select id as job, token as job_token, target, key, attempt, max_attempts, payload
from dever.claim(
    queue => 'shop', worker => 'w', n => 1, lease => '1 hour', contracts => array(select c.id from dever.contract as c)
) \gset
\echo :target :key :attempt :max_attempts :payload
select ok from dever.renew(ids => array[:job], tokens => array[:job_token], lease => '1 hour');
select ok from dever.complete(ids => array[:job], tokens => array[:job_token]);
select ok from dever.complete(array[:job], array[:job_token]);
select array_agg(id order by id) as ids, array_agg(token order by id) as tokens
from dever.claim('mail', worker => 'psql', n => 5) \gset
select outcome from dever.retry(
    ids => (:'ids'::bigint[])[1:1], tokens => (:'tokens'::bigint[])[1:1], reasons => array['no answer'],
    errors => array['details'], delays => array['30 seconds'::interval]
);
select outcome from dever.retry((:'ids'::bigint[])[2:2], (:'tokens'::bigint[])[2:2], array['no answer']);
select ok from dever.bury(
    ids => (:'ids'::bigint[])[3:3], tokens => (:'tokens'::bigint[])[3:3], reasons => array['no'], errors => array['e']
);
select ok from dever.block(
    ids => (:'ids'::bigint[])[4:4], tokens => (:'tokens'::bigint[])[4:4], reasons => array['invalid_payload'], errors => null
);
select ok from dever.release(ids => (:'ids'::bigint[])[5:5], tokens => (:'tokens'::bigint[])[5:5]);

-- Look
select queue, paused, ready, scheduled, running, blocked, dead, exact, visibility, max_attempts, backoff_base, backoff_max,
    keep_succeeded, keep_dead, keep_cancelled, block_after
from dever.queues order by queue;
select queue, target, key, state, attempt, max_attempts, worker, fingerprint, reason, error, payload, expires_at is null,
    finished_at is null, lease_until is null, run_at is null, created_at is null, token is null
from dever.jobs order by id;
select queue, key, reason, error from dever.dead order by id desc limit 50;
select queue, key, reason from dever.blocked order by id desc limit 50;
select state from dever.get_job(:job);
select worker, host, pid, version, jobs, started_at is null, alive_until is null from dever.workers;

-- Act
select outcome from dever.redrive(ids => (:'ids'::bigint[])[3:3] || 0::bigint);
select outcome from dever.cancel(ids => (:'ids'::bigint[])[3:3] || :job::bigint);
select outcome from dever.drop_jobs(ids => (:'ids'::bigint[])[4:4]);
select dever.pause_queue(queue => 'mail'), dever.resume_queue(queue => 'mail');
select queue, visibility, max_attempts, backoff_base, backoff_max, keep_succeeded, keep_dead, keep_cancelled, block_after
from dever.configure_queue(
    queue => 'mail', visibility => '1 minute', max_attempts => 4, backoff_base => '1 second', backoff_max => '1 minute',
    keep_succeeded => '2 days', keep_dead => '90 days', keep_cancelled => '2 days', block_after => '1 hour'
);

-- Schedules
select dever.cron_next(spec => '0 3 * * mon-fri', after => '2027-01-01 09:30+00');
select * from dever.cron_preview(spec => '*/20 8-9 * * mon-fri', after => '2027-01-01 09:30+00', n => 3);
select name, spec, queue, target, payload, fired, skipped, missed, paused, status, next_at > dever.clock(), last_at
from dever.schedule(
    name => 'report', spec => '0 3 * * mon-fri', queue => 'reports', payload => '{"kind": "daily"}', missed => 'latest',
    expires => '5 minutes', max_attempts => 1
);
select dever.pause_schedule(name => 'report'), dever.resume_schedule(name => 'report'), dever.rewind_schedule(name => 'report');
select count(*) from dever.tick(n => 100);
select name, status from dever.schedules;
select dever.unschedule(name => 'report');
select count(*) from dever.sweep(n => 1000);

-- Locks
select dever.lock_acquire(name => 'import', owner => 'psql', ttl => '1 hour') as token \gset
select dever.lock_acquire('import', owner => 'psql', ttl => '30 seconds') is null;
select dever.lock_renew(name => 'import', owner => 'psql', token => :token, ttl => '1 hour');
select name, owner, expires_at > dever.clock() from dever.locks;
select dever.lock_release(name => 'import', owner => 'psql', token => :token);

select dever.leave(worker => 'w');
select min, dever.version() <> '', dever.clock() is not null from dever.protocol();
rollback;
