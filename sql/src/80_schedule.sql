-- Schedules: declared cron and dever.schedule(...) in one table, fired by one tick.
--
-- next_at is the cursor: the first window that is neither fired nor skipped. A tick locks due rows
-- with skip locked, inserts their occurrences and moves their cursors in one transaction, so a
-- window is created at most once however many tick at a time; the key of an occurrence names its
-- window. The cursor only moves on, except by rewind_schedule.
--
-- A declared schedule follows the policy in force of its target (dever.declared_policy); register
-- and tick bring the table up to date (dever.declare_schedules), nothing is ever deleted there.

create table dever.schedule (
    name text collate "C" not null,
    declared boolean not null default false,
    spec text not null,
    rule bigint[] not null,
    queue_id bigint,
    payload jsonb not null default 'null',
    missed text not null default 'catch_up',
    expires_us bigint,
    max_attempts integer,
    paused boolean not null default false,
    next_at timestamptz not null,
    last_at timestamptz,
    fired bigint not null default 0,
    skipped bigint not null default 0,
    fault text,
    created_at timestamptz not null default dever.clock(),
    constraint schedule_pkey primary key (name, declared),
    constraint schedule_queue_fkey foreign key (queue_id) references dever.queue (id),
    constraint schedule_queue_check check (declared = (queue_id is null)),
    constraint schedule_rule_check check (pg_catalog.cardinality(rule) in (1, 6)),
    constraint schedule_missed_check check (missed in ('catch_up', 'latest', 'skip')),
    constraint schedule_next_at_check check (pg_catalog.isfinite(next_at))
);

create index schedule_next_at_idx on dever.schedule (next_at);

comment on table dever.schedule is
'Schedules and their cursors. declared: the cron of the job whose target is the name, which brings
its own queue and options. rule: the compiled spec. fault: why the tick passes over the row';

-- The policy that a declared schedule fires under, null when it is orphaned: some worker is live
-- and none of them runs what declares it. While no worker is live the newest declaration stands.
create function dever.declared_policy(target text)
returns dever.policy
language plpgsql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_policy dever.policy := dever.current_policy(declared_policy.target);
    v_now timestamptz := dever.clock();
begin
    if v_policy.schedule_spec is null
        or (
            not dever.is_policy_live(v_policy.id, v_now)
            and exists (select from dever.worker as w where w.alive_until > v_now)
        )
    then
        return null;
    end if;
    return v_policy;
end
$$;

comment on function dever.declared_policy(text) is
'The policy under which a declared cron fires; null: nobody declares it any more';

-- The compiled spec, null when the spec is not one: for rows that somebody changed by hand.
create function dever.valid_rule(spec text)
returns bigint[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return dever.schedule_rule(valid_rule.spec);
exception
    when sqlstate 'DV003' then
        return null;
end
$$;

comment on function dever.valid_rule(text) is 'As dever.schedule_rule, null instead of DV003';

-- The first boundary after an instant. The phase of @every comes from any of its boundaries, before
-- or after the instant.
create function dever.rule_after(rule bigint[], boundary timestamptz, instant timestamptz)
returns timestamptz
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_us numeric := extract(epoch from rule_after.instant - rule_after.boundary) * 1000000;
begin
    if pg_catalog.cardinality(rule_after.rule) = 6 then
        return dever.rule_next(rule_after.rule, rule_after.instant);
    end if;
    return rule_after.boundary + dever.as_interval(
        (pg_catalog.floor(v_us / rule_after.rule[1])::bigint + 1) * rule_after.rule[1]
    );
end
$$;

comment on function dever.rule_after(bigint[], timestamptz, timestamptz) is
'The first boundary of a schedule after an instant, in the phase of a known boundary';

create function dever.is_ahead(rule bigint[], next_at timestamptz, instant timestamptz)
returns boolean
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select next_at > dever.rule_next(rule, dever.rule_after(rule, next_at, instant))
$$;

comment on function dever.is_ahead(bigint[], timestamptz, timestamptz) is
'Whether a cursor is ahead of the clock by more than one boundary: the clock was set back';

create function dever.schedule_state(
    name text,
    declared boolean,
    out queue text,
    out status text
)
returns record
language plpgsql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_schedule dever.schedule;
    v_policy dever.policy;
    v_now timestamptz := dever.clock();
begin
    select s.* into strict v_schedule
    from dever.schedule as s
    where s.name = schedule_state.name and s.declared = schedule_state.declared;
    if v_schedule.declared then
        v_policy := dever.declared_policy(v_schedule.name);
        v_schedule.queue_id := coalesce(
            v_policy.queue_id, (dever.current_policy(v_schedule.name)).queue_id
        );
    end if;
    select q.name into queue
    from dever.queue as q
    where q.id = v_schedule.queue_id;
    status := case
        when v_schedule.fault is not null then 'damaged'
        when v_schedule.declared and v_policy.id is null then 'orphaned'
        when v_schedule.paused then 'paused'
        when dever.is_ahead(v_schedule.rule, v_schedule.next_at, v_now) then 'ahead'
        else 'active'
    end;
end
$$;

comment on function dever.schedule_state(text, boolean) is
'The queue a schedule fires into and its status: active, paused, ahead, orphaned or damaged';

create view dever.schedules as
select
    s.name,
    s.spec,
    t.queue,
    case when s.declared then s.name end as target,
    case when dever.may_see_payload() then s.payload end as payload,
    s.next_at,
    s.last_at,
    s.fired,
    s.skipped,
    s.missed,
    s.paused,
    t.status
from dever.schedule as s
cross join lateral dever.schedule_state(s.name, s.declared) as t;

comment on view dever.schedules is
'Schedules. target: the job of a declared cron, null for schedule(...). next_at: the first window
neither fired nor skipped. missed: what happens to missed windows. skipped: windows that were
neither fired nor are pending. status: active, paused, ahead (the clock was set back, see
rewind_schedule), orphaned (no current program declares it), damaged (store it again)';

-- How many windows a cursor has behind it at an instant, its own included.
create function dever.pending_windows(rule bigint[], next_at timestamptz, instant timestamptz)
returns bigint
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select case
        when next_at <= instant then 1 + dever.rule_count(rule, next_at, instant)
        else 0
    end
$$;

comment on function dever.pending_windows(bigint[], timestamptz, timestamptz) is
'How many windows from the cursor on lie at or before an instant';

-- Brings the table up to what the programs in force declare. An unchanged rule keeps its cursor, a
-- new or changed one starts at the first window after now. Joins the caller's transaction; passes
-- over rows that others lock.
create function dever.declare_schedules()
returns void
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_target text;
    v_policy dever.policy;
    v_schedule dever.schedule;
    v_rule bigint[];
begin
    for v_target in
        select distinct p.target
        from dever.policy as p
        where p.schedule_spec is not null
        order by p.target
    loop
        v_policy := dever.declared_policy(v_target);
        continue when v_policy.id is null;
        select s.* into v_schedule
        from dever.schedule as s
        where s.name = v_target and s.declared;
        continue when found
            and v_schedule.spec = v_policy.schedule_spec
            and v_schedule.missed = v_policy.schedule_missed;

        v_rule := dever.valid_rule(v_policy.schedule_spec);
        continue when v_rule is null;
        v_now := dever.clock();
        if v_schedule.name is null then
            insert into dever.schedule (name, declared, spec, rule, missed, next_at)
            values (
                v_target,
                true,
                v_policy.schedule_spec,
                v_rule,
                v_policy.schedule_missed,
                dever.rule_next(v_rule, v_now)
            )
            on conflict (name, declared) do nothing;
            continue;
        end if;
        select s.* into v_schedule
        from dever.schedule as s
        where s.name = v_target and s.declared
        for no key update skip locked;
        continue when not found;
        update dever.schedule as s
        set
            spec = v_policy.schedule_spec,
            missed = v_policy.schedule_missed,
            rule = v_rule,
            fault = null,
            next_at = case
                when s.rule = v_rule then s.next_at
                else dever.rule_next(v_rule, v_now)
            end,
            skipped = s.skipped + case
                when s.rule = v_rule then 0
                else dever.pending_windows(s.rule, s.next_at, v_now)
            end
        where s.name = v_target and s.declared;
    end loop;
end
$$;

comment on function dever.declare_schedules() is
'Gives every declared cron its row and cursor; called by register and by each tick';

-- Which windows of a due schedule are fired now, oldest first, by its policy for missed ones.
create function dever.due_windows(schedule dever.schedule, instant timestamptz)
returns timestamptz[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_rule bigint[] := (due_windows.schedule).rule;
    v_next timestamptz := (due_windows.schedule).next_at;
    v_windows timestamptz[] := '{}';
    v_pending bigint;
begin
    if (due_windows.schedule).paused then
        return v_windows;
    end if;
    if (due_windows.schedule).missed = 'latest' then
        return array[dever.rule_last(v_rule, v_next, due_windows.instant)];
    end if;
    if (due_windows.schedule).missed = 'skip' then
        -- On time is the only window that is due, seen within a minute; the others were missed.
        v_pending := dever.pending_windows(v_rule, v_next, due_windows.instant);
        if v_pending = 1 and due_windows.instant - v_next <= interval '1 minute' then
            return array[v_next];
        end if;
        return v_windows;
    end if;
    while v_next <= due_windows.instant and pg_catalog.cardinality(v_windows) < 64 loop
        v_windows := v_windows || v_next;
        v_next := dever.rule_next(v_rule, v_next);
    end loop;
    return v_windows;
end
$$;

comment on function dever.due_windows(dever.schedule, timestamptz) is
'The windows a tick fires: catch_up the oldest 64, latest the newest, skip one that is on time';

-- Inserts the occurrences of one schedule, due now, under the defaults of now. Locks the new rows.
create function dever.insert_occurrences(
    schedule dever.schedule,
    windows timestamptz[],
    instant timestamptz
)
returns table (fire_at timestamptz, job_id bigint)
language plpgsql
volatile
parallel unsafe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_count integer := pg_catalog.cardinality(insert_occurrences.windows);
    v_policy dever.policy;
    v_queue dever.queue;
begin
    if v_count = 0 then
        return;
    end if;
    v_policy := case
        when (insert_occurrences.schedule).declared
            then dever.declared_policy((insert_occurrences.schedule).name)
    end;
    select q.* into strict v_queue
    from dever.queue as q
    where q.id = coalesce(v_policy.queue_id, (insert_occurrences.schedule).queue_id);
    return query
    select insert_occurrences.windows[i.ordinal], i.id
    from dever.insert_jobs(
        case when v_policy.id is null then 'queue:' || v_queue.name else v_policy.target end,
        v_policy.contract_id,
        v_queue.id,
        coalesce(
            v_policy.max_attempts,
            (insert_occurrences.schedule).max_attempts,
            v_queue.max_attempts
        ),
        v_queue.visibility_us,
        coalesce(v_policy.backoff_base_us, v_queue.backoff_base_us),
        coalesce(v_policy.backoff_max_us, v_queue.backoff_max_us),
        coalesce(v_policy.backoff_jitter, 0),
        array(
            select '__dever_cron:' || (insert_occurrences.schedule).name || ':'
                || (extract(epoch from w.window_at) * 1000000)::bigint
            from pg_catalog.unnest(insert_occurrences.windows)
                with ordinality as w (window_at, ordinal)
            order by w.ordinal
        ),
        pg_catalog.array_fill((insert_occurrences.schedule).payload, array[v_count]),
        pg_catalog.array_fill(insert_occurrences.instant, array[v_count]),
        insert_occurrences.instant
            + dever.as_interval((insert_occurrences.schedule).expires_us),
        insert_occurrences.instant
    ) as i
    where i.created
    order by i.ordinal;
end
$$;

comment on function dever.insert_occurrences(dever.schedule, timestamptz[], timestamptz) is
'Inserts the jobs or messages of some windows of a schedule, each under the key of its window';

-- Fires what is due of up to n schedules and moves their cursors, in one short transaction. Locks
-- the schedules it handles and passes over those that others lock. A damaged or orphaned row stops
-- nobody. Returns a row per occurrence that it created; n <= 0: nothing.
create function dever.tick(n integer default 100)
returns table (schedule text, fire_at timestamptz, job_id bigint)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_schedule dever.schedule;
    v_windows timestamptz[];
    v_fired bigint;
begin
    if tick.n is null or tick.n <= 0 then
        return;
    end if;
    perform dever.declare_schedules();
    v_now := dever.clock();
    for v_schedule in
        select s.*
        from dever.schedule as s
        where s.next_at <= v_now
            and (not s.declared or (dever.declared_policy(s.name)).id is not null)
        order by s.fault is not null, s.next_at, s.name
        limit tick.n
        for no key update skip locked
    loop
        if dever.valid_rule(v_schedule.spec) is distinct from v_schedule.rule then
            if v_schedule.fault is null then
                raise warning using
                    message = pg_catalog.format(
                        'schedule %L does not fire: its stored spec is damaged', v_schedule.name
                    ),
                    hint = 'store it again with dever.schedule';
                update dever.schedule as s
                set fault = 'the stored spec and its compiled form differ'
                where s.name = v_schedule.name and s.declared = v_schedule.declared;
            end if;
            continue;
        end if;

        v_windows := dever.due_windows(v_schedule, v_now);
        v_fired := 0;
        for fire_at, job_id in
            select o.fire_at, o.job_id
            from dever.insert_occurrences(v_schedule, v_windows, v_now) as o
        loop
            v_fired := v_fired + 1;
            schedule := v_schedule.name;
            return next;
        end loop;
        update dever.schedule as s
        set
            next_at = dever.rule_after(s.rule, s.next_at, v_now),
            last_at = coalesce(v_windows[pg_catalog.cardinality(v_windows)], s.last_at),
            fired = s.fired + v_fired,
            skipped = s.skipped
                + dever.pending_windows(s.rule, s.next_at, v_now)
                - pg_catalog.cardinality(v_windows),
            fault = null
        where s.name = v_schedule.name and s.declared = v_schedule.declared;
    end loop;
end
$$;

comment on function dever.tick(integer) is
'Fires due windows of schedules, each once, and moves their cursors in the same transaction';

create function dever.next_tick_at()
returns timestamptz
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.next_at
    from dever.schedule as s
    where s.fault is null
        and (not s.declared or (dever.declared_policy(s.name)).id is not null)
    order by s.next_at
    limit 1
$$;

comment on function dever.next_tick_at() is
'When the next tick has something to do; null: never, as things are';

-- Stores a schedule under its name. The same instants, however spelt, keep cursor, phase and
-- counters; others start at the first window after now. Joins the caller's transaction and locks
-- the row. Raises DV001, DV002, DV003, DV005, DV007.
create function dever.schedule(
    name text,
    spec text,
    queue text,
    payload jsonb default 'null',
    missed text default 'catch_up',
    expires interval default null,
    max_attempts integer default null
)
returns dever.schedules
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_name text := dever.check_name(schedule.name, 'schedule');
    v_rule bigint[] := dever.schedule_rule(schedule.spec);
    v_queue text := dever.check_name(schedule.queue, 'queue');
    v_payload jsonb := coalesce(schedule.payload, 'null');
    v_expires bigint := dever.positive_microseconds(schedule.expires, 'expires');
    v_queue_id bigint;
    v_now timestamptz;
    v_row dever.schedules;
begin
    if schedule.missed is null or schedule.missed not in ('catch_up', 'latest', 'skip') then
        raise exception using
            errcode = 'DV007',
            message = 'missed is not a policy for missed windows',
            hint = 'write catch_up, latest or skip';
    end if;
    if schedule.max_attempts < 1 then
        raise exception using
            errcode = 'DV007',
            message = 'max_attempts is below 1',
            hint = 'it is the total number of deliveries, the first included';
    end if;
    perform dever.check_payload_limits(v_payload, 'payload');
    if dever.json_fault(v_payload) is not null then
        raise exception using
            errcode = 'DV005',
            message = 'payload ' || dever.json_fault(v_payload),
            hint = 'send large numbers as text';
    end if;
    v_queue_id := dever.queue_for(v_queue);

    loop
        perform
        from dever.schedule as s
        where s.name = v_name and not s.declared
        for no key update;
        v_now := dever.clock();
        update dever.schedule as s
        set
            spec = schedule.spec,
            rule = v_rule,
            queue_id = v_queue_id,
            payload = v_payload,
            missed = schedule.missed,
            expires_us = v_expires,
            max_attempts = schedule.max_attempts,
            fault = null,
            next_at = case
                when s.rule = v_rule then s.next_at
                else dever.rule_next(v_rule, v_now)
            end,
            skipped = s.skipped + case
                when s.rule = v_rule then 0
                else dever.pending_windows(s.rule, s.next_at, v_now)
            end
        where s.name = v_name and not s.declared;
        exit when found;

        insert into dever.schedule (
            name, spec, rule, queue_id, payload, missed, expires_us, max_attempts, next_at
        )
        values (
            v_name,
            schedule.spec,
            v_rule,
            v_queue_id,
            v_payload,
            schedule.missed,
            v_expires,
            schedule.max_attempts,
            dever.rule_next(v_rule, v_now)
        )
        on conflict (name, declared) do nothing;
        exit when found;
    end loop;

    select v.* into strict v_row
    from dever.schedules as v
    where v.name = v_name and v.target is null;
    return v_row;
end
$$;

comment on function dever.schedule(text, text, text, jsonb, text, interval, integer) is
'Stores a schedule that sends a message at every boundary: five-field UTC cron or @every 15m';

-- A declared schedule goes only when it is orphaned; declared again it starts at its next window.
create function dever.unschedule(name text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.check_name(unschedule.name, 'schedule');
    delete from dever.schedule as s
    where s.name = unschedule.name
        and (not s.declared or (dever.declared_policy(s.name)).id is null);
    return found;
end
$$;

comment on function dever.unschedule(text) is
'Removes a schedule, a declared one only when it is orphaned; false: there was none. What it has
fired stays';

-- While paused, windows that pass are skipped. False: there is no such schedule.
create function dever.pause_schedule(name text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.check_name(pause_schedule.name, 'schedule');
    update dever.schedule as s
    set paused = true
    where s.name = pause_schedule.name;
    return found;
end
$$;

comment on function dever.pause_schedule(text) is
'Stops a schedule, declared or not; false: there is none of that name';

create function dever.resume_schedule(name text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    perform dever.check_name(resume_schedule.name, 'schedule');
    perform
    from dever.schedule as s
    where s.name = resume_schedule.name
    order by s.declared
    for no key update;
    if not found then
        return false;
    end if;
    v_now := dever.clock();
    update dever.schedule as s
    set
        paused = false,
        skipped = s.skipped + dever.pending_windows(s.rule, s.next_at, v_now),
        next_at = greatest(s.next_at, dever.rule_after(s.rule, s.next_at, v_now))
    where s.name = resume_schedule.name and s.paused;
    return true;
end
$$;

comment on function dever.resume_schedule(text) is
'Starts a paused schedule at the first window after now; false: there is none of that name';

-- The only way back for a cursor: from one that is ahead of the clock by more than one boundary to
-- the first boundary after now. False: there is none of that name, or it is not ahead.
create function dever.rewind_schedule(name text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    perform dever.check_name(rewind_schedule.name, 'schedule');
    perform
    from dever.schedule as s
    where s.name = rewind_schedule.name
    order by s.declared
    for no key update;
    v_now := dever.clock();
    update dever.schedule as s
    set next_at = dever.rule_after(s.rule, s.next_at, v_now)
    where s.name = rewind_schedule.name and dever.is_ahead(s.rule, s.next_at, v_now);
    return found;
end
$$;

comment on function dever.rewind_schedule(text) is
'Repairs a cursor that is ahead because the clock was set back; false: it is not';
