-- Schedules: declared cron and schedule(...) in one table, fired by one tick.
--
-- next_at is the cursor: the first window that is neither fired nor skipped. A tick inserts the
-- occurrences of due rows and moves their cursors in one transaction, so a window is created at
-- most once however many tick; the key of an occurrence names its window. The cursor only moves on,
-- except by rewind_schedule.
--
-- A declared schedule follows the policy in force of its target (dever_declared_policy); register
-- and tick bring the table up to date, nothing is ever deleted there.
--
-- Differs by necessity: there is no compiled rule here and no 25_cron.sql. dever_sql/cron.py parses
-- specs and finds instants, dever_sql/sqlite_schedule.py runs the statements below.

create table dever_schedule (
    name text not null,
    declared integer not null default 0 check (declared in (0, 1)),
    spec text not null,
    queue_id integer,
    payload text not null default 'null',
    missed text not null default 'catch_up' check (missed in ('catch_up', 'latest', 'skip')),
    expires_us integer,
    max_attempts integer,
    paused integer not null default 0 check (paused in (0, 1)),
    next_at integer not null,
    last_at integer,
    fired integer not null default 0,
    skipped integer not null default 0,
    fault text,
    created_at integer not null,
    constraint schedule_pkey primary key (name, declared),
    constraint schedule_queue_fkey foreign key (queue_id) references dever_queue (id),
    constraint schedule_queue_check check (declared = (queue_id is null))
) strict, without rowid;

create index dever_schedule_next_at_idx on dever_schedule (next_at);

-- The policies that declared schedules fire under. A target without one is orphaned: some worker is
-- live and none of them runs what declares it. While no worker is live the newest declaration
-- stands.
create view dever_declared_policy as
select p.*
from dever_current_policy as p
where p.schedule_spec is not null
    and (
        p.id in (select l.policy_id from dever_live_policy as l)
        or not exists (
            select 1
            from dever_worker as w
            where w.alive_until > (select c.now from dever_clock as c)
        )
    );

-- status: active, paused, ahead, orphaned, damaged. Differs by necessity: a cursor that is ahead of
-- the clock shows as ahead in Python only, which knows the boundaries.
create view dever_schedules as
select
    s.name,
    s.spec,
    q.name as queue,
    iif(s.declared, s.name, null) as target,
    s.payload,
    s.next_at,
    s.last_at,
    s.fired,
    s.skipped,
    s.missed,
    s.paused,
    case
        when s.fault is not null then 'damaged'
        when s.declared and not exists (
            select 1
            from dever_declared_policy as d
            where d.target = s.name
        ) then 'orphaned'
        when s.paused then 'paused'
        else 'active'
    end as status
from dever_schedule as s
left join dever_current_policy as p on s.declared and p.target = s.name
left join dever_queue as q on q.id = coalesce(s.queue_id, p.queue_id);

-- What declare_schedules has to do: declarations in force that differ from what is stored.

-- name: schedule_undeclared
select p.target, p.schedule_spec, p.schedule_missed
from dever_declared_policy as p
left join dever_schedule as s on s.name = p.target and s.declared
where s.name is null or s.spec <> p.schedule_spec or s.missed <> p.schedule_missed
order by p.target;

-- name: schedule_find
select s.spec, s.next_at, s.paused, s.missed, s.fault
from dever_schedule as s
where s.name = :name and s.declared = :declared;

-- name: schedule_insert
insert into dever_schedule (
    name, declared, spec, queue_id, payload, missed, expires_us, max_attempts, next_at, created_at
)
values (
    :name,
    :declared,
    :spec,
    (select q.id from dever_queue as q where q.name = :queue),
    :payload,
    :missed,
    :expires_us,
    :max_attempts,
    :next_at,
    :now
);

-- name: schedule_update
update dever_schedule
set
    spec = :spec,
    queue_id = (select q.id from dever_queue as q where q.name = :queue),
    payload = :payload,
    missed = :missed,
    expires_us = :expires_us,
    max_attempts = :max_attempts,
    fault = null,
    next_at = :next_at,
    skipped = skipped + :skipped
where name = :name and declared = :declared;

-- name: schedule_check_message
insert into dever_check_message (key, payload, run_at) values (null, :payload, null);

-- name: schedule_queue
insert into dever_queue_for (name) values (:queue);

-- name: schedule_due
select s.name, s.declared, s.spec, s.next_at, s.paused, s.missed, s.fault
from dever_schedule as s
where s.next_at <= :now
    and (
        not s.declared
        or exists (select 1 from dever_declared_policy as d where d.target = s.name)
    )
order by s.fault is not null, s.next_at, s.name
limit :n;

-- Occurrences of one schedule, due now, under the defaults of now. windows: JSON array of
-- microseconds.

-- name: schedule_fire
insert into dever_job (
    queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
    backoff_jitter, expires_at, created_at, target, key, payload
)
select
    q.id,
    :now,
    coalesce(p.max_attempts, s.max_attempts, q.max_attempts),
    p.contract_id,
    q.visibility_us,
    coalesce(p.backoff_base_us, q.backoff_base_us),
    coalesce(p.backoff_max_us, q.backoff_max_us),
    coalesce(p.backoff_jitter, 0),
    :now + s.expires_us,
    :now,
    p.target,
    '__dever_cron:' || s.name || ':' || w.value,
    s.payload
from dever_schedule as s
left join dever_declared_policy as p on s.declared and p.target = s.name
inner join dever_queue as q on q.id = coalesce(p.queue_id, s.queue_id)
cross join json_each(:windows) as w
where s.name = :name and s.declared = :declared
order by w.key
on conflict do nothing
returning id, key;

-- name: schedule_move
update dever_schedule
set
    next_at = :next_at,
    last_at = coalesce(:last_at, last_at),
    fired = fired + :fired,
    skipped = skipped + :skipped,
    fault = null
where name = :name and declared = :declared;

-- name: schedule_damaged
update dever_schedule
set fault = 'the stored spec is damaged'
where name = :name and declared = :declared and fault is null
returning name;

-- name: next_tick_at
select min(s.next_at)
from dever_schedule as s
where s.fault is null
    and (
        not s.declared
        or exists (select 1 from dever_declared_policy as d where d.target = s.name)
    );

-- A declared schedule goes only when it is orphaned; declared again it starts at its next window.

-- name: unschedule
delete from dever_schedule
where name = :name
    and (
        not declared
        or not exists (
            select 1
            from dever_declared_policy as d
            where d.target = dever_schedule.name
        )
    )
returning name;

-- name: pause_schedule
update dever_schedule
set paused = 1
where name = :name
returning name;

-- name: schedules_named
select s.declared, s.spec, s.next_at, s.paused
from dever_schedule as s
where s.name = :name
order by s.declared;

-- name: schedule_cursor
update dever_schedule
set next_at = :next_at, paused = :paused, skipped = skipped + :skipped
where name = :name and declared = :declared;

-- name: schedules
select
    s.name, s.spec, s.queue, s.target, s.payload, s.next_at, s.last_at, s.fired, s.skipped,
    s.missed, s.paused, s.status
from dever_schedules as s
order by s.name, s.target is not null;
