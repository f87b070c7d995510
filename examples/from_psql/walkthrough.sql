-- Run with: psql -f walkthrough.sql URL
\set ON_ERROR_STOP on
\pset footer off
set timezone = 'UTC';
begin;

\echo '== Send: one now, one later that expires, one with a key (twice: the second is the first)'
select dever.send('mail', '{"to": "ada@example.org"}') as ada;
select dever.send(
    'mail', '{"to": "bob@example.org"}', delay => '10 minutes', expires => '1 hour'
) as bob;
select dever.send('mail', '{"to": "cid@example.org"}', key => 'welcome:3') as cid;
select dever.send('mail', '{"to": "cid@example.org"}', key => 'welcome:3') as cid_again;

\echo '== Claim one and finish it; claim the next and give it back for 30 seconds'
select id, token, payload from dever.claim('mail', worker => 'psql', n => 1) \gset
select :'payload' as payload, ok from dever.complete(array[:id], array[:token]);
select id, token, payload from dever.claim('mail', worker => 'psql', n => 1) \gset
select :'payload' as payload, outcome
from dever.retry(
    array[:id], array[:token], array['no answer'], delays => array['30 seconds'::interval]
);

\echo '== The queue, and what became of its messages'
select queue, ready, scheduled, running, dead from dever.queues where queue = 'mail';
select key, state, attempt, reason from dever.jobs where queue = 'mail' order by id;

\echo '== When does a spec fire? In UTC, whatever the session says'
select * from dever.cron_preview('*/20 8-9 * * mon-fri', '2027-01-01 09:30+00', 3);

\echo '== Two schedules: UTC cron, and an interval with options over the defaults of the queue'
select name, spec, queue, missed, status
from dever.schedule('report', '0 3 * * mon-fri', queue => 'reports', payload => '{"kind": "daily"}');
select name, spec, queue, missed, status
from dever.schedule(
    'beat', '@every 15m', queue => 'beats', missed => 'latest', expires => '5 minutes', max_attempts => 1
);
select dever.pause_schedule('report') as paused;

\echo '== What a worker does every second; nothing is due yet'
select * from dever.tick();
select name, status, fired, skipped, next_at > dever.clock() as ahead_of_us from dever.schedules;
select dever.unschedule('report') as removed;

\echo '== A spec that is refused says what to write instead'
savepoint before_the_error;
\set ON_ERROR_STOP off
select dever.cron_next('5/15 * * * *', now());
\set ON_ERROR_STOP on
rollback to before_the_error;

\echo '== A lock: null while anyone holds it; the token grows with every holder'
select dever.lock_acquire('import', owner => 'psql', ttl => '30 seconds') as token \gset
select dever.lock_acquire('import', owner => 'psql', ttl => '30 seconds') is null as refused;
select name, owner from dever.locks;
select dever.lock_release('import', 'psql', :token) as released;

\echo '== An outbox: the message is there if and only if the order is'
create temporary table orders (id integer primary key) on commit drop;
insert into orders (id) values (7);
select dever.outbox_enqueue('notify', '{"order": 7}', key => 'order:7') is not null as stored;
select queue, key, state, max_attempts from dever.jobs where key = 'order:7';

rollback;
