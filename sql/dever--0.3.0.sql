-- Dever SQL 0.3.0. Built by scripts/build-sql; do not edit.

-- 10_schema.sql

-- Dever SQL: durable background jobs and UTC cron inside PostgreSQL.
--
-- A map of the whole, in the order a job meets it:
--   contract   what a program promises about a job: its target and the schema of its payload
--   policy     how it wants the job run: queue, attempts, timeout, backoff, cron (immutable rows)
--   enqueue    20_names, 40_contract, 50_enqueue: check, deduplicate by (target, key), insert
--   claim      60_claim: lease due rows to one worker, each with a fresh fencing token
--   finish     70_finish: renew, complete, retry, bury, block, release; stale tokens change nothing
--   sweep      75_sweep: what no claim may touch: exhausted, expired, unrunnable, old history
--   schedule   25_cron, 80_schedule: fire each window of a schedule once
--   operate    77_operate, 90_views, 95_rights
--
-- dever.job holds live work only and dever.finished what is left of the rest, so a key
-- is free again at once and history never slows a claim. A claim changes no indexed column, which
-- keeps it a heap-only update (fillfactor leaves the room for it).
--
-- Small functions of the hot paths are PL/pgSQL although SQL would do: a pinned search_path keeps an SQL
-- function from being inlined, and then every call parses and plans its body anew (10 to 100 us).
--
-- Every statement on dever.job and dever.finished has one sensible plan, and the functions pin it (the
-- enable_ settings, a generic plan, no JIT): statistics from when the tables were empty, which is
-- when queues get analysed, would choose others.
--
-- House rules: durations are bigint microseconds (an interval depends on session settings),
-- time is read through dever.clock() alone, every function pins search_path, and the whole file
-- is one transaction of the caller.

do $$
begin
    if pg_catalog.getdatabaseencoding() <> 'UTF8' then
        raise exception using
            errcode = 'DV009',
            message = 'Dever SQL needs a database in UTF8, this one is '
                || pg_catalog.getdatabaseencoding(),
            hint = 'create the database with: create database ... encoding ''UTF8'' template template0';
    end if;
end
$$;

create schema dever;

comment on schema dever is 'Dever SQL: durable jobs, schedules, queues, locks and outbox';

create function dever.clock()
returns timestamptz
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_catalog.clock_timestamp();
end
$$;

comment on function dever.clock() is
'The only clock of the engine. Stable on purpose: one reading per statement, so that views and
index conditions can use it; PL/pgSQL reads it afresh at each assignment. Tests replace it.';

create table dever.installation (
    one boolean not null default true primary key,
    id uuid not null default pg_catalog.gen_random_uuid(),
    version text not null,
    protocol_min integer not null,
    protocol_max integer not null,
    installed_at timestamptz not null default dever.clock(),
    upgraded_at timestamptz not null default dever.clock(),
    constraint installation_one_check check (one)
);

comment on table dever.installation is
'One row: which version is installed, which protocols it speaks, and the identity of this installation';

create table dever.queue (
    id bigint generated always as identity,
    name text collate "C" not null,
    paused boolean not null default false,
    visibility_us bigint not null default 300000000,
    max_attempts integer not null default 3,
    backoff_base_us bigint not null default 5000000,
    backoff_max_us bigint not null default 3600000000,
    keep_succeeded_us bigint not null default 86400000000,
    keep_dead_us bigint not null default 2592000000000,
    keep_cancelled_us bigint not null default 86400000000,
    block_after_us bigint not null default 600000000,
    created_at timestamptz not null default dever.clock(),
    constraint queue_pkey primary key (id),
    constraint queue_name_key unique (name)
);

comment on table dever.queue is
'A named line of work and its defaults; created at first use, never deleted. Durations in microseconds';

create table dever.contract (
    id integer generated always as identity,
    target text collate "C" not null,
    fingerprint text collate "C" not null,
    wire_schema jsonb not null,
    created_at timestamptz not null default dever.clock(),
    constraint contract_pkey primary key (id),
    constraint contract_target_fingerprint_key unique (target, fingerprint)
);

comment on table dever.contract is
'What can run a job: a target and the fingerprint of its payload schema. Inserted, never updated';

create table dever.policy (
    id bigint generated always as identity,
    contract_id integer not null,
    target text collate "C" not null,
    queue_id bigint not null,
    max_attempts integer not null,
    timeout_us bigint not null,
    backoff_base_us bigint not null,
    backoff_max_us bigint not null,
    backoff_jitter double precision not null default 0,
    schedule_spec text,
    schedule_missed text,
    created_at timestamptz not null default dever.clock(),
    constraint policy_pkey primary key (id),
    constraint policy_contract_fkey foreign key (contract_id) references dever.contract (id),
    constraint policy_key unique nulls not distinct (
        target, contract_id, queue_id, max_attempts, timeout_us, backoff_base_us, backoff_max_us,
        backoff_jitter, schedule_spec, schedule_missed
    )
);

comment on table dever.policy is
'How a program wants a contract run: queue, attempts, timeout, backoff, cron. Inserted, never updated;
which one is in force is computed (dever.current_policy), so no flag can flap during a deploy';

create table dever.worker (
    name text collate "C" not null,
    about jsonb not null default '{}',
    started_at timestamptz not null,
    alive_until timestamptz not null,
    left_at timestamptz,
    constraint worker_pkey primary key (name)
)
with (fillfactor = 70);

comment on table dever.worker is
'Processes that registered as workers; live while alive_until is in the future. A row outlives its
process for a day, so that sweep knows since when nobody runs a contract';

create table dever.worker_policy (
    policy_id bigint not null,
    worker text collate "C" not null,
    constraint worker_policy_pkey primary key (policy_id, worker),
    constraint worker_policy_policy_fkey foreign key (policy_id) references dever.policy (id),
    constraint worker_policy_worker_fkey foreign key (worker) references dever.worker (name) on delete cascade
);

create index worker_policy_worker_idx on dever.worker_policy (worker);

comment on table dever.worker_policy is 'Which policies, and through them which contracts, a worker runs';

create sequence dever.token_seq as bigint;

comment on sequence dever.token_seq is
'Fencing tokens: one per claim, so a later claim always carries a larger token';

create table dever.job (
    id bigint generated always as identity,
    queue_id bigint not null,
    run_at timestamptz not null,
    lease_until timestamptz,
    token bigint not null default 0,
    attempt integer not null default 0,
    max_attempts integer not null,
    contract_id integer,
    visibility_us bigint not null,
    backoff_base_us bigint not null,
    backoff_max_us bigint not null,
    backoff_jitter double precision not null default 0,
    expires_at timestamptz,
    due_at timestamptz,
    created_at timestamptz not null,
    target text collate "C",
    key text collate "C",
    worker text,
    reason text,
    error text,
    payload jsonb not null,
    constraint job_pkey primary key (id)
)
with (
    fillfactor = 50,
    toast_tuple_target = 256,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.1
);

-- The predicate is always true. It keeps this index away from lookups by id, which it could serve by
-- reading all of it, and would while the statistics call the table empty. Queries by queue repeat it.
create index job_claim_idx on dever.job (queue_id, run_at, id) where queue_id > 0;

-- For listing alone; empty in a healthy database. Its predicate reads what a claim does not change.
create index job_blocked_idx on dever.job (id) where run_at = 'infinity';

-- Two keys, because a job's key is unique under its target and a message's under its queue. Their
-- predicates read a column that never changes, so a claim stays a heap-only update.
create unique index job_target_key_key on dever.job (target, key) where target is not null;
create unique index job_queue_key_key on dever.job (queue_id, key) where target is null and key is not null;

comment on table dever.job is
'Unfinished work. target and contract_id null: a message. run_at infinity: blocked, due_at keeps its
instant. reason and error: of the last failure, or why it is blocked. Columns that a claim or a renewal
changes are in no index, on purpose';

create table dever.finished (
    id bigint not null,
    queue_id bigint not null,
    outcome text collate "C" not null,
    finished_at timestamptz not null,
    attempt integer not null,
    max_attempts integer not null,
    token bigint not null,
    contract_id integer,
    visibility_us bigint not null,
    backoff_base_us bigint not null,
    backoff_max_us bigint not null,
    backoff_jitter double precision not null,
    expires_at timestamptz,
    run_at timestamptz not null,
    created_at timestamptz not null,
    target text collate "C",
    key text collate "C",
    worker text,
    reason text,
    error text,
    payload jsonb not null,
    constraint finished_pkey primary key (id),
    constraint finished_outcome_check check (outcome in ('succeeded', 'dead', 'cancelled'))
)
with (toast_tuple_target = 256);

create index finished_outcome_idx on dever.finished (queue_id, outcome, finished_at);
create index finished_dead_idx on dever.finished (id) where outcome = 'dead';
create index finished_target_key_idx on dever.finished (target, key) where target is not null;

comment on table dever.finished is 'What is left of finished work until dever.sweep prunes it';

create table dever.sweep_cursor (
    one boolean not null default true primary key,
    queue_id bigint not null,
    run_at timestamptz not null,
    job_id bigint not null,
    constraint sweep_cursor_one_check check (one)
);

insert into dever.sweep_cursor (queue_id, run_at, job_id) values (0, '-infinity', 0);

comment on table dever.sweep_cursor is
'One row: the last job that dever.sweep examined; its row lock is what keeps sweeps single';

-- 20_names.sql

-- Names, keys, durations, instants: one check each, used by every verb before anything is stored.

create function dever.is_blank(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_catalog.btrim(value, E' \t\n\r\f\x0b') = '';
end
$$;

comment on function dever.is_blank(text) is 'Nothing but ASCII whitespace (or nothing at all)';

-- Returns the name as it is. Raises DV001, DV002. Locks nothing.
create function dever.check_name(name text, what text)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- The usual case in one expression: these checks are on the path of every call. What begins with more
    -- than a space (32) is not blank.
    if pg_catalog.ascii(check_name.name) > 32
        and pg_catalog.octet_length(check_name.name) <= 255
        and not pg_catalog.starts_with(check_name.name, '__dever_')
    then
        return check_name.name;
    end if;
    if check_name.name is null or dever.is_blank(check_name.name) then
        raise exception using
            errcode = 'DV001',
            message = pg_catalog.format('the %s name is empty', check_name.what),
            hint = 'give a name of 1 to 255 bytes that is not only whitespace';
    end if;
    if pg_catalog.octet_length(check_name.name) > 255 then
        raise exception using
            errcode = 'DV001',
            message = pg_catalog.format(
                'the %s name is %s bytes long', check_name.what, pg_catalog.octet_length(check_name.name)
            ),
            hint = 'give a name of 1 to 255 bytes';
    end if;
    if pg_catalog.starts_with(check_name.name, '__dever_') then
        raise exception using
            errcode = 'DV002',
            message = pg_catalog.format('the %s name %L is reserved', check_name.what, check_name.name),
            hint = 'names that start with __dever_ belong to Dever SQL, choose another one';
    end if;
    return check_name.name;
end
$$;

comment on function dever.check_name(text, text) is
'The one rule for names of queues, schedules, locks, outboxes and workers';

-- All keys in one call: a call for each would cost more than the checks. Raises DV006, DV002. Locks
-- nothing.
create function dever.check_keys(keys text[])
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_key text;
begin
    foreach v_key in array check_keys.keys loop
        -- The usual case in one expression, as in dever.check_name.
        continue when pg_catalog.ascii(v_key) > 32
            and pg_catalog.octet_length(v_key) <= 1024
            and not pg_catalog.starts_with(v_key, '__dever_');
        if v_key is null or dever.is_blank(v_key) then
            raise exception using
                errcode = 'DV006',
                message = 'the idempotency key is missing or blank',
                hint = 'name the business event, for example receipt:7';
        end if;
        if pg_catalog.octet_length(v_key) > 1024 then
            raise exception using
                errcode = 'DV006',
                message = pg_catalog.format(
                    'the idempotency key is %s bytes long', pg_catalog.octet_length(v_key)
                ),
                hint = 'give a key of 1 to 1024 bytes';
        end if;
        if pg_catalog.starts_with(v_key, '__dever_') then
            raise exception using
                errcode = 'DV002',
                message = 'the idempotency key starts with __dever_, which is reserved',
                hint = 'keys that start with __dever_ belong to Dever SQL, choose another one';
        end if;
    end loop;
end
$$;

comment on function dever.check_keys(text[]) is 'The one rule for idempotency keys, of jobs and of messages';

-- Microseconds of a duration, null for null. Raises DV007. Stored instead of the interval because
-- months and days of an interval mean different lengths in different sessions.
create function dever.microseconds(duration interval, what text)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if microseconds.duration is null then
        return null;
    end if;
    if not pg_catalog.isfinite(microseconds.duration)
        or pg_catalog.date_part('year', microseconds.duration) <> 0
        or pg_catalog.date_part('month', microseconds.duration) <> 0
    then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format(
                '%s is infinite or has months or years in it', microseconds.what
            ),
            hint = 'write it in days, hours, minutes or seconds';
    end if;
    if pg_catalog.abs(pg_catalog.date_part('epoch', microseconds.duration)) > 36500.0 * 86400 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s is longer than 36,500 days', microseconds.what),
            hint = 'give a shorter duration';
    end if;
    return (extract(epoch from microseconds.duration) * 1000000)::bigint;
end
$$;

comment on function dever.microseconds(interval, text) is
'A duration in microseconds; refuses infinite ones, months, years and more than 36,500 days';

create function dever.positive_microseconds(duration interval, what text)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_microseconds bigint := dever.microseconds(positive_microseconds.duration, positive_microseconds.what);
begin
    if v_microseconds <= 0 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s is not positive', positive_microseconds.what),
            hint = 'give a duration above zero';
    end if;
    return v_microseconds;
end
$$;

comment on function dever.positive_microseconds(interval, text) is
'A duration in microseconds that must be above zero; null stays null';

create function dever.as_interval(microseconds bigint)
returns interval
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return microseconds * interval '1 microsecond';
end
$$;

comment on function dever.as_interval(bigint) is 'The interval of so many microseconds';

-- Returns the instant as it is, null for null. Raises DV007.
create function dever.check_instant(instant timestamptz, what text)
returns timestamptz
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if check_instant.instant < timestamptz '0001-01-01 00:00:00+00'
        or check_instant.instant >= timestamptz '10000-01-01 00:00:00+00'
    then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s is outside the years 1 to 9999', check_instant.what),
            hint = 'give an instant between 0001-01-01 and 9999-12-31 (UTC)';
    end if;
    return check_instant.instant;
end
$$;

comment on function dever.check_instant(timestamptz, text) is
'An instant that every client can represent: years 1 to 9999, not infinite';

-- Raises DV007 when one of the arrays that run beside ids has another length. A null array is none.
create function dever.check_lengths(expected integer, actual integer[])
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_length integer;
begin
    foreach v_length in array check_lengths.actual loop
        if v_length <> check_lengths.expected then
            raise exception using
                errcode = 'DV007',
                message = pg_catalog.format(
                    'the arrays have unequal lengths: %s and %s', check_lengths.expected, v_length
                ),
                hint = 'give one element per item in every array';
        end if;
    end loop;
    if check_lengths.expected > 100000 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s items in one call', check_lengths.expected),
            hint = 'send at most 100,000 items a call';
    end if;
end
$$;

comment on function dever.check_lengths(integer, integer[]) is
'Arrays that run beside each other must be equally long, and at most 100,000 items';

create function dever.is_integer_between(value jsonb, low bigint, high bigint)
returns boolean
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when pg_catalog.jsonb_typeof(value) = 'number' and value::text ~ '^-?[0-9]{1,18}$'
            then value::text::bigint between low and high
        else false
    end
$$;

comment on function dever.is_integer_between(jsonb, bigint, bigint) is
'Whether a JSON value is an integer within bounds; false for null and for any other kind';

-- 25_cron.sql

-- Schedule specs: five-field UTC cron and "@every <n><s|m|h|d>".
--
-- A spec is parsed by one strict grammar and compiled to a rule, a bigint array:
--   cron     {minutes, hours, days, months, weekdays, either}: five bitmaps, bit i set when value i
--            fires, and 1 when a day fires if its date or its weekday does, 0 when both must
--   @every   {microseconds}
-- Specs that fire at the same instants compile to the same rule, whatever their spelling. Instants
-- are found month by month from the bitmaps; the longest gap is 8 years, 29 February 2096 to 2104.
-- dever_sql/cron.py is the same grammar, function for function; the SQLite engine uses that one.
-- Nothing here reads a table, the clock, or a session setting.

create function dever.refuse_spec(message text, hint text)
returns void
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    raise exception using
        errcode = 'DV003', message = refuse_spec.message, hint = refuse_spec.hint;
end
$$;

comment on function dever.refuse_spec(text, text) is 'Raises DV003 InvalidSpec';

create function dever.shown_spec(spec text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select '"' || pg_catalog.left(spec, 40)
        || case when pg_catalog.length(spec) > 40 then '...' else '' end || '"'
$$;

comment on function dever.shown_spec(text) is 'The beginning of a spec in quotes, for a message';

-- The fields are numbered 1 to 5. This is what differs between them.
create function dever.cron_field(
    field integer,
    out label text,
    out low integer,
    out high integer,
    out size integer,
    out names text[]
)
returns record
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    label := (array['minute', 'hour', 'day of month', 'month', 'day of week'])[cron_field.field];
    low := (array[0, 0, 1, 1, 0])[cron_field.field];
    high := (array[59, 23, 31, 12, 7])[cron_field.field];
    -- The values that a star stands for: day of week 7 is 0 again.
    size := (array[60, 24, 31, 12, 7])[cron_field.field];
    names := case cron_field.field
        when 4 then array[
            'jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'
        ]
        when 5 then array['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat']
        else array[]::text[]
    end;
end
$$;

comment on function dever.cron_field(integer) is
'A cron field: its label, lowest and highest value, how many values a star stands for, and names
that begin at the lowest value';

create function dever.refuse_field(field integer, value text, what text, hint text)
returns void
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.refuse_spec(
        pg_catalog.format(
            'the %s field: %s %s',
            (dever.cron_field(refuse_field.field)).label,
            dever.shown_spec(refuse_field.value),
            refuse_field.what
        ),
        refuse_field.hint
    );
end
$$;

comment on function dever.refuse_field(integer, text, text, text) is
'Raises DV003 InvalidSpec and names the field';

create function dever.cron_span(low integer, high integer, step integer)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_bits bigint := 0;
    v_value integer := cron_span.low;
begin
    while v_value <= cron_span.high loop
        v_bits := v_bits | (1::bigint << v_value);
        v_value := v_value + cron_span.step;
    end loop;
    return v_bits;
end
$$;

comment on function dever.cron_span(integer, integer, integer) is
'The bitmap of every step-th value from low to high';

-- One number or name. Raises DV003.
create function dever.cron_value(field integer, value text)
returns integer
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_field record := dever.cron_field(cron_value.field);
    v_name text := pg_catalog.lower(cron_value.value collate "C");
    v_hint text;
    v_number integer;
begin
    v_number := pg_catalog.array_position(v_field.names, v_name) - 1 + v_field.low;
    if v_number is not null then
        return v_number;
    end if;

    v_hint := pg_catalog.format('write a number from %s to %s', v_field.low, v_field.high)
        || case
            when pg_catalog.cardinality(v_field.names) > 0
                then pg_catalog.format(
                    ' or %s-%s',
                    v_field.names[1],
                    v_field.names[pg_catalog.cardinality(v_field.names)]
                )
            else ''
        end;
    if cron_value.value collate "C" ~ '^[0-9]+$' then
        if pg_catalog.length(cron_value.value) > 2 then
            perform dever.refuse_field(
                cron_value.field, cron_value.value, 'has more than two digits', v_hint
            );
        end if;
        v_number := cron_value.value::integer;
        if v_number < v_field.low or v_number > v_field.high then
            perform dever.refuse_field(
                cron_value.field, cron_value.value, 'is out of range', v_hint
            );
        end if;
        return v_number;
    end if;
    if v_name = any ((dever.cron_field(4)).names || (dever.cron_field(5)).names) then
        perform dever.refuse_field(
            cron_value.field, cron_value.value, 'is a name of another field', v_hint
        );
    end if;
    perform dever.refuse_field(cron_value.field, cron_value.value, 'is not a value', v_hint);
    return null;
end
$$;

comment on function dever.cron_value(integer, text) is 'One number or name of a cron field';

-- A step over so many values. Raises DV003.
create function dever.cron_step(field integer, item text, digits text, size integer)
returns integer
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if pg_catalog.length(cron_step.digits) > 2 then
        perform dever.refuse_field(
            cron_step.field, cron_step.item, 'has a step of more than two digits',
            'write a smaller step'
        );
    end if;
    if cron_step.digits::integer = 0 then
        perform dever.refuse_field(
            cron_step.field, cron_step.item, 'has a step of zero', 'write a step from 1'
        );
    end if;
    if cron_step.digits::integer >= cron_step.size then
        perform dever.refuse_field(
            cron_step.field,
            cron_step.item,
            pg_catalog.format(
                'has a step that is not smaller than its %s values', cron_step.size
            ),
            pg_catalog.format(
                'write a step below %s, or the one value that it means', cron_step.size
            )
        );
    end if;
    return cron_step.digits::integer;
end
$$;

comment on function dever.cron_step(integer, text, text, integer) is
'The step of a cron field; it must be smaller than the number of values it steps over';

-- How to write a range that runs over the end of its field.
create function dever.cron_unwrapped(field integer, low integer, high integer)
returns text
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_field record := dever.cron_field(cron_unwrapped.field);
    v_top integer := v_field.low + v_field.size - 1;
begin
    if cron_unwrapped.field = 5 and cron_unwrapped.high = 0 then
        return pg_catalog.format('%s-7', cron_unwrapped.low);
    end if;
    if cron_unwrapped.field = 5 and cron_unwrapped.low = 7 then
        return pg_catalog.format('0-%s', cron_unwrapped.high);
    end if;
    return case
        when cron_unwrapped.low = v_top then cron_unwrapped.low::text
        else pg_catalog.format('%s-%s', cron_unwrapped.low, v_top)
    end
    || ','
    || case
        when cron_unwrapped.high = v_field.low then cron_unwrapped.high::text
        else pg_catalog.format('%s-%s', v_field.low, cron_unwrapped.high)
    end;
end
$$;

comment on function dever.cron_unwrapped(integer, integer, integer) is
'A backward range as a list that means the same, for a hint';

-- The bitmap of one field. Raises DV003.
create function dever.cron_bits(field integer, value text)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_field record := dever.cron_field(cron_bits.field);
    v_top integer := v_field.low + v_field.size - 1;
    v_bits bigint := 0;
    v_item text;
    v_part text[];
    v_low integer;
    v_high integer;
begin
    if cron_bits.value = '*' then
        return dever.cron_span(v_field.low, v_top, 1);
    end if;
    if pg_catalog.strpos(cron_bits.value, '*') > 0 then
        if pg_catalog.strpos(cron_bits.value, ',') > 0 then
            perform dever.refuse_field(
                cron_bits.field, cron_bits.value, 'has a star inside a list',
                'write the values, or * or */n alone'
            );
        end if;
        v_part := pg_catalog.regexp_match(cron_bits.value collate "C", '^[*]/([0-9]+)$');
        if v_part is null then
            perform dever.refuse_field(
                cron_bits.field, cron_bits.value, 'has a star that is not alone', 'write * or */n'
            );
        end if;
        return dever.cron_span(
            v_field.low,
            v_top,
            dever.cron_step(cron_bits.field, cron_bits.value, v_part[1], v_field.size)
        );
    end if;

    foreach v_item in array pg_catalog.string_to_array(cron_bits.value, ',') loop
        v_part := pg_catalog.regexp_match(
            v_item collate "C", '^([0-9A-Za-z]+)(?:-([0-9A-Za-z]+))?(?:/([0-9]+))?$'
        );
        if v_part is null then
            perform dever.refuse_field(
                cron_bits.field, cron_bits.value, 'is not a list of values',
                'write *, */n, a, a-b or a-b/n, with commas'
            );
        end if;
        v_low := dever.cron_value(cron_bits.field, v_part[1]);
        v_high := v_low;
        if v_part[2] is null and v_part[3] is not null then
            perform dever.refuse_field(
                cron_bits.field, v_item, 'has a step on a single value',
                pg_catalog.format('write %s-%s/%s', v_part[1], v_top, v_part[3])
            );
        end if;
        if v_part[2] is not null then
            v_high := dever.cron_value(cron_bits.field, v_part[2]);
            if v_low = v_high then
                perform dever.refuse_field(
                    cron_bits.field, v_item, 'is a range of one value',
                    pg_catalog.format('write %s', v_part[1])
                );
            end if;
            if v_low > v_high then
                perform dever.refuse_field(
                    cron_bits.field, v_item, 'runs backwards',
                    'write ' || dever.cron_unwrapped(cron_bits.field, v_low, v_high)
                );
            end if;
        end if;
        v_bits := v_bits | dever.cron_span(
            v_low,
            v_high,
            case
                when v_part[3] is null then 1
                else dever.cron_step(cron_bits.field, v_item, v_part[3], v_high - v_low + 1)
            end
        );
    end loop;
    return v_bits;
end
$$;

comment on function dever.cron_bits(integer, text) is 'The bitmap of one cron field';

-- The one rule of all specs that fire at the same instants. Raises DV003 for dates that never come.
create function dever.cron_canonical(spec text, rule bigint[])
returns bigint[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_lengths integer[] := array[31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    v_every_weekday bigint := dever.cron_span(0, 6, 1);
    v_every_day bigint;
    v_longest integer := 0;
    v_days bigint;
    v_months bigint := cron_canonical.rule[4];
    v_weekdays bigint := cron_canonical.rule[5];
    v_either bigint := cron_canonical.rule[6];
begin
    for v_month in 1..12 loop
        if (v_months & (1::bigint << v_month)) <> 0 then
            v_longest := greatest(v_longest, v_lengths[v_month]);
        end if;
    end loop;
    v_every_day := dever.cron_span(1, v_longest, 1);
    v_days := cron_canonical.rule[3] & v_every_day;

    if v_either = 1 and v_days = 0 then
        v_days := v_every_day;
        v_either := 0;
    elsif v_either = 1 and v_days = v_every_day then
        v_weekdays := v_every_weekday;
        v_either := 0;
    end if;
    if v_either = 0 and v_weekdays = v_every_weekday then
        for v_month in 1..12 loop
            if (v_days & dever.cron_span(1, v_lengths[v_month], 1)) = 0 then
                v_months := v_months & ~(1::bigint << v_month);
            end if;
        end loop;
        if v_months = 0 then
            perform dever.refuse_spec(
                pg_catalog.format(
                    'the day of month field: %s names a date that never comes',
                    dever.shown_spec(cron_canonical.spec)
                ),
                'write a day that one of its months has'
            );
        end if;
    end if;
    return array[
        cron_canonical.rule[1], cron_canonical.rule[2], v_days, v_months, v_weekdays, v_either
    ];
end
$$;

comment on function dever.cron_canonical(text, bigint[]) is
'Leaves out of a cron rule what cannot matter, so that equal instants have equal rules';

-- Raises DV003 for anything that is not five-field cron, @every included.
create function dever.cron_rule(spec text)
returns bigint[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_fields text[];
    v_rule bigint[] := '{}';
    v_either bigint;
    v_field integer;
begin
    -- First of all, so that a hostile text costs nothing.
    if pg_catalog.octet_length(cron_rule.spec) > 512 then
        perform dever.refuse_spec(
            'the schedule spec is longer than 512 bytes',
            'write ranges and steps instead of long lists'
        );
    end if;
    if coalesce(cron_rule.spec, '') = '' then
        perform dever.refuse_spec(
            'the schedule spec is empty', 'write five fields, for example "0 3 * * *"'
        );
    end if;
    if pg_catalog.starts_with(cron_rule.spec, '@') then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s is not five fields', dever.shown_spec(cron_rule.spec)
            ),
            'write five fields (@daily is "0 0 * * *"); '
            '@every <n><s|m|h|d> is for schedule(...) alone'
        );
    end if;
    if pg_catalog.btrim(cron_rule.spec, ' ') <> cron_rule.spec then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s begins or ends with a space',
                dever.shown_spec(cron_rule.spec)
            ),
            'write five fields with spaces between them only'
        );
    end if;
    v_fields := pg_catalog.regexp_split_to_array(cron_rule.spec collate "C", ' +');
    if pg_catalog.cardinality(v_fields) <> 5 then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s has %s fields instead of 5',
                dever.shown_spec(cron_rule.spec),
                pg_catalog.cardinality(v_fields)
            ),
            'write minute, hour, day of month, month, day of week; there are no seconds'
        );
    end if;

    for v_number in 1..5 loop
        v_rule := v_rule || dever.cron_bits(v_number, v_fields[v_number]);
    end loop;
    -- Sunday is 0 and 7; folded only here, after ranges such as 5-7 are expanded.
    if (v_rule[5] & 128) <> 0 then
        v_rule[5] := (v_rule[5] & 127) | 1;
    end if;

    v_either := case when v_fields[3] <> '*' and v_fields[5] <> '*' then 1 else 0 end;
    if v_either = 1 then
        foreach v_field in array array[3, 5] loop
            if pg_catalog.starts_with(v_fields[v_field], '*')
                or v_rule[v_field] = dever.cron_bits(v_field, '*')
            then
                perform dever.refuse_field(
                    v_field,
                    v_fields[v_field],
                    'means different days in different dialects beside a second day field',
                    'write * in one of the two day fields, or a plain list of values in both'
                );
            end if;
        end loop;
    end if;
    return dever.cron_canonical(cron_rule.spec, v_rule || v_either);
end
$$;

comment on function dever.cron_rule(text) is
'The compiled form of a five-field cron spec; DV003 names the field and what to write instead';

-- Raises DV003.
create function dever.every_rule(spec text)
returns bigint[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_part text[];
    v_seconds bigint;
begin
    if pg_catalog.octet_length(every_rule.spec) > 512 then
        perform dever.refuse_spec(
            'the schedule spec is longer than 512 bytes', 'write for example @every 90s'
        );
    end if;
    v_part := pg_catalog.regexp_match(every_rule.spec collate "C", '^@every ([0-9]+)([smhd])$');
    if v_part is null then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s is not of the form @every <n><s|m|h|d>',
                dever.shown_spec(every_rule.spec)
            ),
            'write for example @every 90s, with one space and one lower-case unit'
        );
    end if;
    if pg_catalog.starts_with(v_part[1], '0') then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s has a number that is zero or starts with one',
                dever.shown_spec(every_rule.spec)
            ),
            'write a number from 1 without leading zeros'
        );
    end if;
    -- Ten digits hold the longest interval in seconds; more are never converted.
    if pg_catalog.length(v_part[1]) <= 10 then
        v_seconds := v_part[1]::bigint * case v_part[2]
            when 's' then 1
            when 'm' then 60
            when 'h' then 3600
            else 86400
        end;
    end if;
    if v_seconds is null or v_seconds > 36500::bigint * 86400 then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s is longer than 36,500 days',
                dever.shown_spec(every_rule.spec)
            ),
            'write a shorter interval'
        );
    end if;
    return array[v_seconds * 1000000];
end
$$;

comment on function dever.every_rule(text) is 'The compiled form of an @every spec: microseconds';

create function dever.schedule_rule(spec text)
returns bigint[]
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select case
        when pg_catalog.starts_with(spec, '@every') then dever.every_rule(spec)
        else dever.cron_rule(spec)
    end
$$;

comment on function dever.schedule_rule(text) is
'The compiled form of what a schedule takes: five-field cron or @every; DV003 otherwise';

create function dever.lowest_bit(bits bigint)
returns integer
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select 64 - pg_catalog.position((bits & (- bits))::bit(64), B'1')
$$;

comment on function dever.lowest_bit(bigint) is 'The number of the lowest bit that is set';

create function dever.highest_bit(bits bigint)
returns integer
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select 64 - pg_catalog.position(bits::bit(64), B'1')
$$;

comment on function dever.highest_bit(bigint) is 'The number of the highest bit that is set';

create function dever.bits_below(bits bigint, n integer)
returns integer
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select pg_catalog.bit_count((bits & ((1::bigint << n) - 1))::bit(64))::integer
$$;

comment on function dever.bits_below(bigint, integer) is 'How many bits below number n are set';

create function dever.cron_days(rule bigint[], first_day date)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_month integer := extract(month from cron_days.first_day);
    v_weekday integer := extract(dow from cron_days.first_day);
    v_length integer;
    v_whole bigint;
    v_by_weekday bigint := 0;
begin
    if (cron_days.rule[4] & (1::bigint << v_month)) = 0 then
        return 0;
    end if;
    v_length := extract(
        day from cron_days.first_day + interval '1 month' - interval '1 day'
    );
    v_whole := (1::bigint << (v_length + 1)) - 2;
    for v_day in 0..6 loop
        if (cron_days.rule[5] & (1::bigint << v_day)) <> 0 then
            -- 270549121: bits 0, 7, 14, 21 and 28, one weekday through a month.
            v_by_weekday := v_by_weekday
                | (270549121::bigint << (1 + (v_day - v_weekday + 7) % 7));
        end if;
    end loop;
    if cron_days.rule[6] = 1 then
        return (cron_days.rule[3] | v_by_weekday) & v_whole;
    end if;
    return cron_days.rule[3] & v_by_weekday & v_whole;
end
$$;

comment on function dever.cron_days(bigint[], date) is
'The bitmap of the days on which a cron rule fires in the month that begins on that day';

-- The first instant after the given one, which for @every is a boundary. Raises DV007 when that is
-- outside the years 1 to 9999.
create function dever.rule_next(rule bigint[], after timestamptz)
returns timestamptz
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_from timestamp;
    v_first date;
    v_day integer;
    v_hour integer;
    v_minute integer;
    v_days bigint;
    v_rest bigint;
begin
    if pg_catalog.cardinality(rule_next.rule) = 1 then
        return dever.check_instant(
            rule_next.after + dever.as_interval(rule_next.rule[1]), 'the next instant'
        );
    end if;

    v_from := pg_catalog.date_trunc('minute', rule_next.after at time zone 'UTC')
        + interval '1 minute';
    v_first := pg_catalog.date_trunc('month', v_from)::date;
    v_day := extract(day from v_from);
    v_hour := extract(hour from v_from);
    v_minute := extract(minute from v_from);
    v_days := dever.cron_days(rule_next.rule, v_first) & ~((1::bigint << v_day) - 1);

    -- Later on the same day: later in this hour, else in a later hour.
    if (v_days & (1::bigint << v_day)) <> 0 then
        v_rest := rule_next.rule[1] & ~((1::bigint << v_minute) - 1);
        if (rule_next.rule[2] & (1::bigint << v_hour)) = 0 or v_rest = 0 then
            v_minute := dever.lowest_bit(rule_next.rule[1]);
            v_rest := rule_next.rule[2] & ~((2::bigint << v_hour) - 1);
            v_hour := case when v_rest <> 0 then dever.lowest_bit(v_rest) end;
        else
            v_minute := dever.lowest_bit(v_rest);
        end if;
        if v_hour is not null then
            return dever.check_instant(
                (v_first + (v_day - 1) + pg_catalog.make_time(v_hour, v_minute, 0))
                    at time zone 'UTC',
                'the next instant'
            );
        end if;
        v_days := v_days & ~(1::bigint << v_day);
    end if;

    -- 97 months reach over the longest gap.
    for v_month in 1..97 loop
        exit when v_days <> 0;
        v_first := (v_first + interval '1 month')::date;
        v_days := dever.cron_days(rule_next.rule, v_first);
    end loop;
    return dever.check_instant(
        (
            v_first + (dever.lowest_bit(v_days) - 1)
            + pg_catalog.make_time(
                dever.lowest_bit(rule_next.rule[2]), dever.lowest_bit(rule_next.rule[1]), 0
            )
        ) at time zone 'UTC',
        'the next instant'
    );
end
$$;

comment on function dever.rule_next(bigint[], timestamptz) is
'The first instant of a compiled spec strictly after an instant; for @every that is a boundary';

-- The last instant at or before the given one, but not before a known boundary.
create function dever.rule_last(rule bigint[], boundary timestamptz, instant timestamptz)
returns timestamptz
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_from timestamp := rule_last.instant at time zone 'UTC';
    v_first date := pg_catalog.date_trunc('month', v_from)::date;
    v_day integer := extract(day from v_from);
    v_hour integer := extract(hour from v_from);
    v_minute integer := extract(minute from v_from);
    v_days bigint;
    v_rest bigint;
begin
    if pg_catalog.cardinality(rule_last.rule) = 1 then
        return rule_last.boundary + dever.as_interval(
            dever.rule_count(rule_last.rule, rule_last.boundary, rule_last.instant)
            * rule_last.rule[1]
        );
    end if;

    v_days := dever.cron_days(rule_last.rule, v_first) & ((2::bigint << v_day) - 1);
    -- Earlier on the same day: earlier in this hour, else in an earlier hour.
    if (v_days & (1::bigint << v_day)) <> 0 then
        v_rest := rule_last.rule[1] & ((2::bigint << v_minute) - 1);
        if (rule_last.rule[2] & (1::bigint << v_hour)) = 0 or v_rest = 0 then
            v_minute := dever.highest_bit(rule_last.rule[1]);
            v_rest := rule_last.rule[2] & ((1::bigint << v_hour) - 1);
            v_hour := case when v_rest <> 0 then dever.highest_bit(v_rest) end;
        else
            v_minute := dever.highest_bit(v_rest);
        end if;
        if v_hour is not null then
            return greatest(
                rule_last.boundary,
                (v_first + (v_day - 1) + pg_catalog.make_time(v_hour, v_minute, 0))
                    at time zone 'UTC'
            );
        end if;
        v_days := v_days & ~(1::bigint << v_day);
    end if;

    while v_days = 0 and v_first >= (rule_last.boundary at time zone 'UTC')::date loop
        v_first := (v_first - interval '1 month')::date;
        v_days := dever.cron_days(rule_last.rule, v_first);
    end loop;
    if v_days = 0 then
        return rule_last.boundary;
    end if;
    return greatest(
        rule_last.boundary,
        (
            v_first + (dever.highest_bit(v_days) - 1)
            + pg_catalog.make_time(
                dever.highest_bit(rule_last.rule[2]), dever.highest_bit(rule_last.rule[1]), 0
            )
        ) at time zone 'UTC'
    );
end
$$;

comment on function dever.rule_last(bigint[], timestamptz, timestamptz) is
'The newest boundary of a compiled spec at or before an instant, at least the given boundary';

-- The windows of a cron rule from the first of the instant's month up to the instant, included.
create function dever.cron_elapsed(rule bigint[], instant timestamptz)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_utc timestamp := cron_elapsed.instant at time zone 'UTC';
    v_day integer := extract(day from v_utc);
    v_hour integer := extract(hour from v_utc);
    v_minute integer := extract(minute from v_utc);
    v_days bigint := dever.cron_days(
        cron_elapsed.rule, pg_catalog.date_trunc('month', v_utc)::date
    );
    v_an_hour bigint := dever.bits_below(cron_elapsed.rule[1], 60);
    v_total bigint;
begin
    v_total := dever.bits_below(v_days, v_day)
        * dever.bits_below(cron_elapsed.rule[2], 24) * v_an_hour;
    if (v_days & (1::bigint << v_day)) <> 0 then
        v_total := v_total + dever.bits_below(cron_elapsed.rule[2], v_hour) * v_an_hour;
        if (cron_elapsed.rule[2] & (1::bigint << v_hour)) <> 0 then
            v_total := v_total + dever.bits_below(cron_elapsed.rule[1], v_minute + 1);
        end if;
    end if;
    return v_total;
end
$$;

comment on function dever.cron_elapsed(bigint[], timestamptz) is
'How often a cron rule fires from the first of the month up to an instant, which is included';

-- Millions of windows are counted by arithmetic: closed form for @every, bitmaps per month for
-- cron.
create function dever.rule_count(rule bigint[], after timestamptz, until timestamptz)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_first date := pg_catalog.date_trunc('month', rule_count.after at time zone 'UTC')::date;
    v_last date := pg_catalog.date_trunc('month', rule_count.until at time zone 'UTC')::date;
    v_a_day bigint;
    v_total bigint;
begin
    if rule_count.until <= rule_count.after then
        return 0;
    end if;
    if pg_catalog.cardinality(rule_count.rule) = 1 then
        return pg_catalog.div(
            extract(epoch from rule_count.until - rule_count.after) * 1000000, rule_count.rule[1]
        )::bigint;
    end if;
    v_a_day := dever.bits_below(rule_count.rule[1], 60) * dever.bits_below(rule_count.rule[2], 24);
    v_total := dever.cron_elapsed(rule_count.rule, rule_count.until)
        - dever.cron_elapsed(rule_count.rule, rule_count.after);
    while v_first < v_last loop
        v_total := v_total
            + dever.bits_below(dever.cron_days(rule_count.rule, v_first), 32) * v_a_day;
        v_first := (v_first + interval '1 month')::date;
    end loop;
    return v_total;
end
$$;

comment on function dever.rule_count(bigint[], timestamptz, timestamptz) is
'How many instants of a compiled spec lie in (after, until]; for @every after is a boundary';

create function dever.cron_next(spec text, after timestamptz)
returns timestamptz
language plpgsql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_rule bigint[] := dever.schedule_rule(cron_next.spec);
begin
    if cron_next.after is null then
        raise exception using
            errcode = 'DV007',
            message = 'after is missing',
            hint = 'say after which instant';
    end if;
    return dever.rule_next(v_rule, dever.check_instant(cron_next.after, 'after'));
end
$$;

comment on function dever.cron_next(text, timestamptz) is
'The first instant of a spec strictly after an instant, which for @every counts as a boundary';

create function dever.cron_preview(spec text, after timestamptz, n integer)
returns setof timestamptz
language plpgsql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_rule bigint[] := dever.schedule_rule(cron_preview.spec);
    v_next timestamptz := dever.check_instant(cron_preview.after, 'after');
begin
    if v_next is null or cron_preview.n is null or cron_preview.n > 10000 then
        raise exception using
            errcode = 'DV007',
            message = 'after or n is missing, or n is above 10,000',
            hint = 'say after which instant, and ask for at most 10,000';
    end if;
    for v_i in 1..cron_preview.n loop
        v_next := dever.rule_next(v_rule, v_next);
        return next v_next;
    end loop;
end
$$;

comment on function dever.cron_preview(text, timestamptz, integer) is
'The first n instants of a spec after an instant; n <= 0 returns nothing';

-- 30_queue.sql

-- Queues: created at first use with the defaults of the table, and never deleted.

-- The queue's id; inserts the queue when it is new. Runs in the caller's transaction; a new queue is
-- seen by others once that commits, and a second creator waits until then. Expects a checked name.
create function dever.queue_for(name text)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id bigint;
begin
    loop
        select q.id into v_id
        from dever.queue as q
        where q.name = queue_for.name;
        exit when found;

        insert into dever.queue (name)
        values (queue_for.name)
        on conflict (name) do nothing
        returning id into v_id;
        exit when found;
    end loop;
    return v_id;
end
$$;

comment on function dever.queue_for(text) is 'The id of a queue, which is created at first use';

-- Tells sleeping workers of a queue that a due job is about to commit. Sends nothing when nobody
-- sleeps: a worker that sleeps holds the shared lock, so the exclusive one can be had only when there
-- is none. One expression, because a session lock would survive an error between two statements.
-- A foreign holder of the same lock costs a needless notification and nothing else.
create function dever.wake(queue_id bigint)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_lock integer := (wake.queue_id & 2147483647)::integer;
begin
    if (
        case
            when pg_catalog.pg_try_advisory_lock(1145394770, v_lock)
                then not pg_catalog.pg_advisory_unlock(1145394770, v_lock)
            else true
        end
    ) then
        perform pg_catalog.pg_notify('dever', wake.queue_id::text);
    end if;
end
$$;

comment on function dever.wake(bigint) is
'Notifies channel "dever" with the queue id, once per transaction, and only when a worker sleeps';

-- The ids of queues, which are created when new: what a worker that goes to sleep takes its locks for and
-- hears in notifications. A reserved name gives the id of a queue that is there and creates none. Raises DV001.
create function dever.queue_ids(queues text[])
returns setof bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_name text;
begin
    for v_name in
        select distinct u.name collate "C" as name
        from pg_catalog.unnest(queue_ids.queues) as u (name)
        where u.name is not null
        order by 1
    loop
        if pg_catalog.starts_with(v_name, '__dever_') then
            return query select q.id from dever.queue as q where q.name = v_name;
        else
            return next dever.queue_for(dever.check_name(v_name, 'queue'));
        end if;
    end loop;
end
$$;

comment on function dever.queue_ids(text[]) is 'The ids of queues, for a worker that sleeps over them';

-- 40_contract.sql

-- Contracts and policies: what programs declared, which of it is in force, and who can run it.

-- Whether a live worker runs this policy. Reads only.
create function dever.is_policy_live(policy_id bigint, at_instant timestamptz)
returns boolean
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return exists (
        select
        from dever.worker_policy as wp
        join dever.worker as w on w.name = wp.worker
        where wp.policy_id = is_policy_live.policy_id
            and w.alive_until > is_policy_live.at_instant
    );
end
$$;

comment on function dever.is_policy_live(bigint, timestamptz) is
'Whether some live worker declares this policy';

-- The policy in force for a target: the newest one that a live worker runs, else the newest. With a
-- fingerprint only policies of that contract count. Null when there is none. Reads only; computed
-- afresh each time, so no flag flaps while old and new processes restart in any order.
create function dever.current_policy(target text, fingerprint text default null)
returns dever.policy
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
    v_policy dever.policy;
    v_newest dever.policy;
begin
    for v_policy in
        select p.*
        from dever.policy as p
        join dever.contract as c on c.id = p.contract_id
        where p.target = current_policy.target
            and (current_policy.fingerprint is null or c.fingerprint = current_policy.fingerprint)
        order by p.id desc
    loop
        if v_newest.id is null then
            v_newest := v_policy;
        end if;
        if dever.is_policy_live(v_policy.id, v_now) then
            return v_policy;
        end if;
    end loop;
    return v_newest;
end
$$;

comment on function dever.current_policy(text, text) is
'The policy in force of a target: the newest that a live worker runs, else the newest';

-- One element of register's contracts, checked. Raises DV007, DV001, DV002; a cron spec DV003.
create function dever.check_declaration(declaration jsonb)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_target text := check_declaration.declaration ->> 'target';
    v_fault text;
begin
    if pg_catalog.jsonb_typeof(check_declaration.declaration -> 'target') not in ('string', 'null')
        or pg_catalog.jsonb_typeof(check_declaration.declaration -> 'queue') not in ('string', 'null')
    then
        raise exception using
            errcode = 'DV001',
            message = 'the job or queue name of a declaration is not text',
            hint = 'give names of 1 to 255 bytes';
    end if;
    perform dever.check_name(v_target, 'job');
    perform dever.check_name(check_declaration.declaration ->> 'queue', 'queue');
    v_fault := case
        when pg_catalog.strpos(v_target, ':') > 0
            then 'the target contains a colon'
        when coalesce(check_declaration.declaration ->> 'fingerprint', '') !~ '^[!-~]{1,128}$'
            then 'fingerprint must be 1 to 128 visible ASCII characters'
        when coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schema'), '') <> 'object'
            or coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration #> '{schema,kind}'), '') <> 'string'
            then 'schema must be an object (a node of the wire schema)'
        when not dever.is_integer_between(check_declaration.declaration -> 'retry', 1, 100)
            then 'retry must be an integer from 1 to 100'
        when not dever.is_integer_between(check_declaration.declaration -> 'timeout_ms', 1, 3600000)
            then 'timeout_ms must be an integer from 1 to 3,600,000'
        when not dever.is_integer_between(check_declaration.declaration -> 'backoff_max_ms', 1, 86400000)
            then 'backoff_max_ms must be an integer from 1 to 86,400,000'
        when not dever.is_integer_between(
            check_declaration.declaration -> 'backoff_base_ms', 1,
            (check_declaration.declaration ->> 'backoff_max_ms')::bigint
        )
            then 'backoff_base_ms must be an integer from 1 to backoff_max_ms'
        when coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration -> 'backoff_jitter'), 'number') <> 'number'
            or not coalesce((check_declaration.declaration ->> 'backoff_jitter')::numeric, 0) between 0 and 1
            then 'backoff_jitter must be a number from 0 to 1'
        when coalesce(pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule'), 'null')
            not in ('null', 'object')
            then 'schedule must be null or an object with spec and missed'
        when pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule') = 'object'
            and check_declaration.declaration #>> '{schedule,spec}' is null
            then 'schedule.spec is missing'
        when pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule') = 'object'
            and check_declaration.declaration #>> '{schema,kind}' is distinct from 'null'
            then 'a job with a schedule takes no input, its schema must be of kind null'
        when pg_catalog.jsonb_typeof(check_declaration.declaration -> 'schedule') = 'object'
            and coalesce(check_declaration.declaration #>> '{schedule,missed}', 'catch_up')
                not in ('catch_up', 'latest', 'skip')
            then 'schedule.missed must be catch_up, latest or skip'
    end;
    if v_fault is not null then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('the declaration of job %s is not valid: %s', v_target, v_fault),
            hint = 'register what the program declares, see docs/wire.md for the form';
    end if;
end
$$;

comment on function dever.check_declaration(jsonb) is 'Refuses a declaration that register must not store';

-- Inserts what it does not find of a program's declarations: contracts, policies, queues; updates none.
-- One row per declaration. In target order, so that two programs that start at the same time cannot
-- deadlock. Joins the caller's transaction. Raises DV001, DV002, DV003, DV007.
create function dever.store_declarations(contracts jsonb)
returns table (target text, fingerprint text, contract_id integer, policy_id bigint)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_declaration jsonb;
    v_queue_id bigint;
begin
    if pg_catalog.jsonb_typeof(store_declarations.contracts) is distinct from 'array' then
        raise exception using
            errcode = 'DV007',
            message = 'contracts must be a JSON array of declarations',
            hint = 'see docs/wire.md for the form';
    end if;
    for v_declaration in
        select d.value
        from pg_catalog.jsonb_array_elements(store_declarations.contracts) as d
        order by (d.value ->> 'target') collate "C", (d.value ->> 'fingerprint') collate "C"
    loop
        perform dever.check_declaration(v_declaration);
        if v_declaration #>> '{schedule,spec}' is not null then
            perform dever.cron_rule(v_declaration #>> '{schedule,spec}');
        end if;
        v_queue_id := dever.queue_for(v_declaration ->> 'queue');
        target := v_declaration ->> 'target';
        fingerprint := v_declaration ->> 'fingerprint';

        loop
            select c.id into contract_id
            from dever.contract as c
            where c.target = store_declarations.target and c.fingerprint = store_declarations.fingerprint;
            exit when found;
            insert into dever.contract (target, fingerprint, wire_schema)
            values (store_declarations.target, store_declarations.fingerprint, v_declaration -> 'schema')
            on conflict (target, fingerprint) do nothing;
        end loop;

        loop
            select p.id into policy_id
            from dever.policy as p
            where p.target = store_declarations.target
                and p.contract_id = store_declarations.contract_id
                and p.queue_id = v_queue_id
                and p.max_attempts = (v_declaration ->> 'retry')::integer
                and p.timeout_us = (v_declaration ->> 'timeout_ms')::bigint * 1000
                and p.backoff_base_us = (v_declaration ->> 'backoff_base_ms')::bigint * 1000
                and p.backoff_max_us = (v_declaration ->> 'backoff_max_ms')::bigint * 1000
                and p.backoff_jitter = coalesce((v_declaration ->> 'backoff_jitter')::double precision, 0)
                and p.schedule_spec is not distinct from v_declaration #>> '{schedule,spec}'
                and p.schedule_missed is not distinct from case
                    when v_declaration #>> '{schedule,spec}' is not null
                        then coalesce(v_declaration #>> '{schedule,missed}', 'catch_up')
                end;
            exit when found;
            insert into dever.policy (
                contract_id, target, queue_id, max_attempts, timeout_us, backoff_base_us,
                backoff_max_us, backoff_jitter, schedule_spec, schedule_missed
            )
            values (
                store_declarations.contract_id,
                store_declarations.target,
                v_queue_id,
                (v_declaration ->> 'retry')::integer,
                (v_declaration ->> 'timeout_ms')::bigint * 1000,
                (v_declaration ->> 'backoff_base_ms')::bigint * 1000,
                (v_declaration ->> 'backoff_max_ms')::bigint * 1000,
                coalesce((v_declaration ->> 'backoff_jitter')::double precision, 0),
                v_declaration #>> '{schedule,spec}',
                case
                    when v_declaration #>> '{schedule,spec}' is not null
                        then coalesce(v_declaration #>> '{schedule,missed}', 'catch_up')
                end
            )
            on conflict do nothing;
        end loop;
        return next;
    end loop;
end
$$;

comment on function dever.store_declarations(jsonb) is
'Stores the contracts and policies that a program declares; part of dever.register';

-- Makes a worker live and says which policies it runs. Joins the caller's transaction. Apart from
-- store_declarations because only the right to work may pose as a worker: a live worker decides which
-- policy is in force and what is blocked. Raises DV001, DV002, DV007.
create function dever.enlist_worker(worker text, policies bigint[], alive interval, about jsonb)
returns void
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_alive bigint := dever.positive_microseconds(enlist_worker.alive, 'alive');
    v_now timestamptz;
begin
    perform dever.check_name(enlist_worker.worker, 'worker');
    if v_alive is null then
        raise exception using
            errcode = 'DV007',
            message = 'alive is missing',
            hint = 'say how long the worker counts as live without a sign of life';
    end if;
    v_now := dever.clock();
    insert into dever.worker as w (name, about, started_at, alive_until)
    values (
        enlist_worker.worker,
        coalesce(enlist_worker.about, '{}'),
        v_now,
        v_now + dever.as_interval(v_alive)
    )
    on conflict (name) do update
    set
        about = excluded.about,
        started_at = excluded.started_at,
        alive_until = excluded.alive_until,
        left_at = null;
    delete from dever.worker_policy as wp
    where wp.worker = enlist_worker.worker and wp.policy_id <> all (enlist_worker.policies);
    insert into dever.worker_policy (policy_id, worker)
    select distinct p.id, enlist_worker.worker
    from pg_catalog.unnest(enlist_worker.policies) as p (id)
    on conflict (policy_id, worker) do nothing;
    -- A declared cron gets its cursor now, not at the first tick: its first window may come before that.
    perform dever.declare_schedules();
end
$$;

comment on function dever.enlist_worker(text, bigint[], interval, jsonb) is
'Makes a worker live with the policies it runs; part of dever.register, for the right to work';

-- Stores what a program declares and, with a worker name, that this worker is live and runs it.
-- One transaction of the caller. Invoker, so that an enqueue-only role can register contracts but no
-- worker. Raises DV001, DV002, DV003, DV007.
create function dever.register(
    worker text,
    contracts jsonb,
    alive interval,
    about jsonb default '{}'
)
returns table (target text, fingerprint text, contract_id integer)
language plpgsql
volatile
parallel unsafe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_policy_id bigint;
    v_policies bigint[] := '{}';
begin
    perform dever.positive_microseconds(register.alive, 'alive');
    for target, fingerprint, contract_id, v_policy_id in
        select s.target, s.fingerprint, s.contract_id, s.policy_id
        from dever.store_declarations(register.contracts) as s
    loop
        v_policies := v_policies || v_policy_id;
        return next;
    end loop;
    if register.worker is not null then
        perform dever.enlist_worker(register.worker, v_policies, register.alive, register.about);
    elsif pg_catalog.has_function_privilege('dever.declare_schedules()', 'execute') then
        -- Not for a role that may only enqueue: it could move the cursor of a cron, and windows be missed.
        perform dever.declare_schedules();
    end if;
end
$$;

comment on function dever.register(text, jsonb, interval, jsonb) is
'Stores the contracts and policies of a program; with a worker name also that this worker runs them.
A null worker registers contracts only (API process, command line)';

-- Extends a worker's liveness from now. One short transaction. False: unknown or already lapsed (it was
-- frozen or has left), then it must register again before it claims.
create function dever.alive(worker text, alive interval)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_alive bigint := dever.positive_microseconds(alive.alive, 'alive');
    v_now timestamptz;
begin
    if v_alive is null then
        raise exception using
            errcode = 'DV007',
            message = 'alive is missing',
            hint = 'say how long the worker counts as live without a sign of life';
    end if;
    perform from dever.worker as w where w.name = alive.worker for no key update;
    v_now := dever.clock();
    update dever.worker as w
    set alive_until = v_now + dever.as_interval(v_alive)
    where w.name = alive.worker and w.alive_until > v_now;
    return found;
end
$$;

comment on function dever.alive(text, interval) is
'A worker''s sign of life; false when it is unknown or has lapsed and must register again';

-- Ends a worker's liveness at a clean shutdown. One short transaction. False: it was not live.
create function dever.leave(worker text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    update dever.worker as w
    set alive_until = least(w.alive_until, v_now), left_at = v_now
    where w.name = leave.worker and w.left_at is null;
    return found;
end
$$;

comment on function dever.leave(text) is 'A worker says that it stops; its leases are released separately';

-- 45_payload.sql

-- The payload check: does a JSON value fit a wire schema (docs/wire.md), and if not, where and why.
--
-- payload_fault walks schema and value together, depth first in the schema's order, and returns the
-- first fault as "<path> <what>", or null. It never puts a value into its text: payloads are private.

create function dever.is_wire_decimal(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return value ~ '^-?(0|[1-9][0-9]*)([.][0-9]+)?(E[+-]?[0-9]{1,6})?$';
end
$$;

comment on function dever.is_wire_decimal(text) is 'The form of an exact decimal on the wire';

create function dever.is_wire_date(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    -- By arithmetic, not by a cast: a cast raises, and what it accepts depends on DateStyle.
    return case
        when value ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$' and pg_catalog.substr(value, 1, 4) <> '0000'
            then
                pg_catalog.substr(value, 6, 2)::integer between 1 and 12
                and pg_catalog.substr(value, 9, 2)::integer between 1 and case
                    when pg_catalog.substr(value, 6, 2) in ('04', '06', '09', '11') then 30
                    when pg_catalog.substr(value, 6, 2) <> '02' then 31
                    when pg_catalog.substr(value, 1, 4)::integer % 4 = 0
                        and (
                            pg_catalog.substr(value, 1, 4)::integer % 100 <> 0
                            or pg_catalog.substr(value, 1, 4)::integer % 400 = 0
                        ) then 29
                    else 28
                end
        else false
    end;
end
$$;

comment on function dever.is_wire_date(text) is 'The form of a real calendar date on the wire, years 1 to 9999';

create function dever.is_wire_time(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return value ~ '^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?$';
end
$$;

comment on function dever.is_wire_time(text) is 'The form of a time of day on the wire';

create function dever.is_wire_integer(value jsonb)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when pg_catalog.jsonb_typeof(value) = 'number' and value::text ~ '^-?[0-9]{1,19}$'
            then value::text::numeric between -9223372036854775808 and 9223372036854775807
        else false
    end;
end
$$;

comment on function dever.is_wire_integer(jsonb) is 'A JSON integer of 64 bits, without fraction or exponent';

create function dever.is_wire_float(value jsonb)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Below 2^1024 - 2^970, where rounding to a float64 gives infinity.
    return case
        when pg_catalog.jsonb_typeof(value) = 'number'
            then pg_catalog.abs(value::text::numeric) < (2::numeric ^ 1024 - 2::numeric ^ 970)
        else false
    end;
end
$$;

comment on function dever.is_wire_float(jsonb) is 'A JSON number that is finite as a float64';

-- Fault of a scalar kind, null when it fits. The text goes behind the path.
create function dever.scalar_fault(schema jsonb, payload jsonb)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_kind text := scalar_fault.schema ->> 'kind';
    v_type text := pg_catalog.jsonb_typeof(scalar_fault.payload);
    v_text text;
    v_got text := ', got ' || case v_type when 'string' then 'text' else v_type end;
begin
    if v_kind in ('text', 'decimal', 'uuid', 'datetime', 'date', 'time') then
        if v_type <> 'string' then
            return case v_kind
                when 'text' then 'must be text'
                when 'uuid' then 'must be a uuid as text'
                else 'must be a ' || v_kind || ' as text'
            end || v_got;
        end if;
        v_text := scalar_fault.payload #>> '{}';
    end if;
    case v_kind
        when 'text' then
            return null;
        when 'int' then
            if v_type <> 'number' then
                return 'must be an integer' || v_got;
            end if;
            if not dever.is_wire_integer(scalar_fault.payload) then
                return 'must be an integer of 64 bits without fraction or exponent';
            end if;
        when 'bool' then
            if v_type <> 'boolean' then
                return 'must be true or false' || v_got;
            end if;
        when 'float' then
            if v_type <> 'number' then
                return 'must be a number' || v_got;
            end if;
            if not dever.is_wire_float(scalar_fault.payload) then
                return 'must be a finite number';
            end if;
        when 'decimal' then
            if not dever.is_wire_decimal(v_text) then
                return 'is not a decimal (such as 12.50)';
            end if;
        when 'uuid' then
            if v_text !~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' then
                return 'is not a uuid (8-4-4-4-12 hexadecimal digits)';
            end if;
        when 'datetime' then
            if not (
                dever.is_wire_date(pg_catalog.substr(v_text, 1, 10))
                and v_text ~ '^.{10}T.*Z$'
                and dever.is_wire_time(pg_catalog.substr(v_text, 12, pg_catalog.length(v_text) - 12))
            ) then
                return 'is not a datetime (RFC 3339, UTC, ends in Z)';
            end if;
        when 'date' then
            if not dever.is_wire_date(v_text) then
                return 'is not a date (YYYY-MM-DD)';
            end if;
        when 'time' then
            if not dever.is_wire_time(v_text) then
                return 'is not a time (HH:MM:SS, up to six decimals)';
            end if;
        when 'duration' then
            if v_type <> 'number' then
                return 'must be a duration in integer microseconds' || v_got;
            end if;
            if not dever.is_wire_integer(scalar_fault.payload) then
                return 'must be a duration in integer microseconds of 64 bits';
            end if;
        when 'enum' then
            if v_type not in ('string', 'number') then
                return 'must be one of the values of ' || (scalar_fault.schema ->> 'name') || v_got;
            end if;
            -- By text: jsonb takes 1 and 1.0 for equal, the wire does not.
            if not exists (
                select
                from pg_catalog.jsonb_array_elements(scalar_fault.schema -> 'values') as e
                where e.value::text = scalar_fault.payload::text
            ) then
                return 'is not one of the values of ' || (scalar_fault.schema ->> 'name');
            end if;
        when 'model' then
            if v_type = 'number' then
                if not dever.is_wire_integer(scalar_fault.payload) then
                    return 'must be a model id: an integer of 64 bits or text';
                end if;
            elsif v_type <> 'string' then
                return 'must be a model id: an integer of 64 bits or text' || v_got;
            elsif scalar_fault.payload #>> '{}' = '' then
                return 'must be a model id, got empty text';
            end if;
        when 'null' then
            if v_type <> 'null' then
                return 'must be null: the job takes no input' || v_got;
            end if;
        else
            return 'has a schema of a kind that this version does not know';
    end case;
    return null;
end
$$;

comment on function dever.scalar_fault(jsonb, jsonb) is 'Why a scalar does not fit its wire kind, null when it fits';

-- Any JSON value of kind "json": the limits that hold for every number in it.
create function dever.json_fault(payload jsonb)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- jsonb writes every number as plain digits: short ones cannot be out of range.
    if json_fault.payload::text !~ '[0-9]{19}' then
        return null;
    end if;
    if exists (
        with recursive
        part as (
            select json_fault.payload as value
            union all
            select c.value
            from part as p
            cross join lateral (
                select e.value
                from pg_catalog.jsonb_array_elements(
                    case when pg_catalog.jsonb_typeof(p.value) = 'array' then p.value end
                ) as e
                union all
                select m.value
                from pg_catalog.jsonb_each(
                    case when pg_catalog.jsonb_typeof(p.value) = 'object' then p.value end
                ) as m
            ) as c
        )
        select
        from part as p
        where pg_catalog.jsonb_typeof(p.value) = 'number'
            and not dever.is_wire_integer(p.value)
            -- jsonb writes 1e300 as 301 digits. No float64 needs more than 17 of them: with more an
            -- integer was meant exactly, and it is outside 64 bits.
            and not (
                dever.is_wire_float(p.value)
                and (
                    p.value::text !~ '^-?[0-9]+$'
                    or pg_catalog.length(pg_catalog.rtrim(pg_catalog.ltrim(p.value::text, '-'), '0')) <= 17
                )
            )
    ) then
        return 'holds a number outside 64 bits';
    end if;
    return null;
end
$$;

comment on function dever.json_fault(jsonb) is 'Why a free JSON value is refused, null when it is fine';

-- First fault of a payload against a node of the wire schema, as "<path> <what>"; null when it fits.
create function dever.payload_fault(schema jsonb, payload jsonb, path text default 'payload')
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_kind text := payload_fault.schema ->> 'kind';
    v_type text := pg_catalog.jsonb_typeof(payload_fault.payload);
    v_got text := ', got ' || case v_type when 'string' then 'text' else v_type end;
    v_item jsonb;
    v_index bigint := 0;
    v_name text;
    v_node jsonb;
    v_fault text;
begin
    case v_kind
        when 'optional' then
            if v_type = 'null' then
                return null;
            end if;
            return dever.payload_fault(
                payload_fault.schema -> 'item', payload_fault.payload, payload_fault.path
            );
        when 'json' then
            return payload_fault.path || ' ' || dever.json_fault(payload_fault.payload);
        when 'list' then
            if v_type <> 'array' then
                return payload_fault.path || ' must be a list' || v_got;
            end if;
            v_node := payload_fault.schema -> 'item';
            if v_node ->> 'kind' in ('optional', 'json', 'list', 'record') then
                for v_item in
                    select e.value
                    from pg_catalog.jsonb_array_elements(payload_fault.payload) as e
                loop
                    v_fault := dever.payload_fault(
                        v_node, v_item, payload_fault.path || '[' || v_index || ']'
                    );
                    if v_fault is not null then
                        return v_fault;
                    end if;
                    v_index := v_index + 1;
                end loop;
                return null;
            end if;
            select payload_fault.path || '[' || (s.ordinal - 1) || '] ' || s.fault into v_fault
            from (
                select e.ordinal, dever.scalar_fault(v_node, e.value) as fault
                from pg_catalog.jsonb_array_elements(payload_fault.payload)
                    with ordinality as e (value, ordinal)
            ) as s
            where s.fault is not null
            limit 1;
            return v_fault;
        when 'record' then
            if v_type <> 'object' then
                return payload_fault.path || ' must be an object ('
                    || (payload_fault.schema ->> 'name') || ')' || v_got;
            end if;
            for v_name, v_node in
                select f.value ->> 'name', f.value -> 'type'
                from pg_catalog.jsonb_array_elements(payload_fault.schema -> 'fields') as f
            loop
                v_item := payload_fault.payload -> v_name;
                if v_item is null then
                    return payload_fault.path || '.' || v_name || ' is missing';
                end if;
                v_fault := dever.payload_fault(v_node, v_item, payload_fault.path || '.' || v_name);
                if v_fault is not null then
                    return v_fault;
                end if;
                v_index := v_index + 1;
            end loop;
            if v_index < (select pg_catalog.count(*) from pg_catalog.jsonb_object_keys(payload_fault.payload)) then
                -- Cut: a client chose this name, and an error line should stay a line.
                select payload_fault.path || '.' || pg_catalog.left(k.name, 100) || ' is not a known field'
                into v_fault
                from pg_catalog.jsonb_object_keys(payload_fault.payload) as k (name)
                where not exists (
                    select
                    from pg_catalog.jsonb_array_elements(payload_fault.schema -> 'fields') as f
                    where f.value ->> 'name' = k.name
                )
                order by k.name collate "C"
                limit 1;
                return v_fault;
            end if;
            return null;
        else
            return payload_fault.path || ' ' || dever.scalar_fault(payload_fault.schema, payload_fault.payload);
    end case;
end
$$;

comment on function dever.payload_fault(jsonb, jsonb, text) is
'Where and why a payload does not fit a wire schema, null when it fits; never shows a value';

-- Nesting depth and number of values, by levels. Reads only its argument.
create function dever.json_extent(payload jsonb, out depth integer, out value_count bigint)
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_level jsonb[] := array[json_extent.payload];
    v_containers jsonb[];
begin
    depth := 0;
    value_count := 1;
    loop
        v_containers := array(
            select v.value
            from pg_catalog.unnest(v_level) as v (value)
            where pg_catalog.jsonb_typeof(v.value) in ('array', 'object')
        );
        exit when pg_catalog.cardinality(v_containers) = 0;
        depth := depth + 1;
        exit when depth > 64;
        v_level := array(
            select e.value
            from pg_catalog.unnest(v_containers) as c (value)
            cross join lateral pg_catalog.jsonb_array_elements(
                case when pg_catalog.jsonb_typeof(c.value) = 'array' then c.value end
            ) as e (value)
            union all
            select m.value
            from pg_catalog.unnest(v_containers) as c (value)
            cross join lateral pg_catalog.jsonb_each(
                case when pg_catalog.jsonb_typeof(c.value) = 'object' then c.value end
            ) as m
        );
        value_count := value_count + pg_catalog.cardinality(v_level);
        exit when value_count > 65536;
    end loop;
end
$$;

comment on function dever.json_extent(jsonb) is
'Nesting and number of values of a JSON value; stops counting once a limit is passed';

-- Raises DV005 when the payload is larger, deeper or more than any payload may be. subject goes into
-- the message, such as "payload of job shop.order".
create function dever.check_payload_limits(payload jsonb, subject text)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_text text := check_payload_limits.payload::text;
    v_length bigint := pg_catalog.octet_length(v_text);
    v_extent record;
    v_fault text;
begin
    if v_length > 16777216 then
        v_fault := pg_catalog.format('it is %s bytes long, 16,777,216 (16 MiB) are the limit', v_length);
    elsif v_length > 65536
        or pg_catalog.length(pg_catalog.translate(v_text, '[{', '')) < pg_catalog.length(v_text) - 64
    then
        -- Only a text this long or with this many brackets can pass the other two limits.
        v_extent := dever.json_extent(check_payload_limits.payload);
        if v_extent.depth > 64 then
            v_fault := 'it is nested more than 64 levels deep';
        elsif v_extent.value_count > 65536 then
            v_fault := 'it holds more than 65,536 values';
        end if;
    end if;
    if v_fault is not null then
        raise exception using
            errcode = 'DV005',
            message = pg_catalog.format('%s is too large: %s', check_payload_limits.subject, v_fault),
            hint = 'store the data in a table of your own and send its id';
    end if;
end
$$;

comment on function dever.check_payload_limits(jsonb, text) is
'The limits of every payload: 16 MiB of text, 64 levels, 65,536 values';

-- Raises DV005 unless the payload fits the contract. item: place in a batch, null for a single call.
create function dever.check_payload(contract dever.contract, payload jsonb, item bigint)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_subject text := 'payload of job ' || (check_payload.contract).target
        || coalesce(' (item ' || check_payload.item || ')', '');
    v_fault text;
begin
    perform dever.check_payload_limits(check_payload.payload, v_subject);
    v_fault := dever.payload_fault((check_payload.contract).wire_schema, check_payload.payload);
    if v_fault is not null then
        raise exception using
            errcode = 'DV005',
            message = pg_catalog.format('%s does not fit: %s', v_subject, v_fault),
            detail = pg_catalog.format(
                'target=%s fingerprint=%s', (check_payload.contract).target, (check_payload.contract).fingerprint
            ),
            hint = 'send the fields that the job declares; dever.contract.wire_schema shows them';
    end if;
end
$$;

comment on function dever.check_payload(dever.contract, jsonb, bigint) is
'Refuses a payload that does not fit the contract, naming the field';

create function dever.may_see_payload()
returns boolean
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select
        pg_catalog.has_function_privilege('dever.claim(text,text,integer,interval,integer[])', 'execute')
        or pg_catalog.has_function_privilege('dever.cancel(bigint[])', 'execute')
$$;

comment on function dever.may_see_payload() is 'Whether the current role may work or administer, and so see payloads';

-- 50_enqueue.sql

-- Enqueue and send: check, deduplicate, insert. All of it joins the caller's transaction.
--
-- While (target, key) is unfinished no second row is inserted: the unique key decides, never a look
-- beforehand. A concurrent duplicate waits for the first transaction and then either inserts (it
-- rolled back) or finds its id (it committed). Items are inserted in key order, so that two batches
-- over the same keys cannot deadlock; their ids follow the caller's order.

-- The id of the unfinished job of a target, or message of a queue, that holds a key. Reads only.
-- Volatile for a reason: each call sees what committed before it.
create function dever.unfinished_id(target text, queue_id bigint, key text)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    -- The newest: a stricter isolation may still show a job that has finished since, beside the row that
    -- this transaction has inserted under the freed key. max() over an expression, because an order by
    -- id, or max(id), could be answered by walking the primary key.
    if unfinished_id.target is not null then
        return (
            select pg_catalog.max(j.id + 0) from dever.job as j
            where j.target = unfinished_id.target and j.key = unfinished_id.key
        );
    end if;
    return (
        select pg_catalog.max(j.id + 0) from dever.job as j
        where j.queue_id = unfinished_id.queue_id and j.key = unfinished_id.key and j.target is null
    );
end
$$;

comment on function dever.unfinished_id(text, bigint, text) is
'Who holds a key: the id of the unfinished job or message, or null';

create function dever.raise_unsettled()
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = '40001',
        message = 'could not settle an idempotency key that others keep finishing and enqueuing again',
        hint = 'run the transaction again';
end
$$;

comment on function dever.raise_unsettled() is 'Raises 40001: the transaction can be run again';

-- Inserts checked items of one target (null: messages of the queue) and returns one row per item, in the caller's order. Of equal
-- keys in one call the first is inserted. Keys may be null (messages). run_at is not null.
-- Locks only what it inserts. Raises 40001 in REPEATABLE READ when a key it cannot see exists, and DV010
-- when a batch has to begin again: a key that it met was freed before it was looked up, and to insert
-- it now, behind keys that are later in the order, could deadlock.
create function dever.insert_jobs(
    target text,
    contract_id integer,
    queue_id bigint,
    max_attempts integer,
    visibility_us bigint,
    backoff_base_us bigint,
    backoff_max_us bigint,
    backoff_jitter double precision,
    keys text[],
    payloads jsonb[],
    run_ats timestamptz[],
    expires_at timestamptz,
    created_at timestamptz
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := pg_catalog.cardinality(insert_jobs.payloads);
    v_ids bigint[];
    v_found bigint[];
    v_inserted integer;
    v_round integer := 0;
begin
    -- Ids in the caller's order; those of duplicates are lost, which is what bigint is for.
    v_ids := array(
        select pg_catalog.nextval('dever.job_id_seq')
        from pg_catalog.generate_series(1, v_count)
    );
    loop
        insert into dever.job (
            id, queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us,
            backoff_max_us, backoff_jitter, expires_at, created_at, target, key, payload
        )
        overriding system value
        select
            i.id,
            insert_jobs.queue_id,
            i.run_at,
            insert_jobs.max_attempts,
            insert_jobs.contract_id,
            insert_jobs.visibility_us,
            insert_jobs.backoff_base_us,
            insert_jobs.backoff_max_us,
            insert_jobs.backoff_jitter,
            insert_jobs.expires_at,
            insert_jobs.created_at,
            insert_jobs.target,
            i.key,
            i.payload
        from (
            select distinct on (u.key collate "C", case when u.key is null then u.ordinal end)
                u.id,
                u.key collate "C" as key,
                coalesce(u.payload, 'null') as payload,
                u.run_at,
                u.ordinal,
                case when u.key is null then u.ordinal end as keyless
            from rows from (
                pg_catalog.unnest(v_ids),
                pg_catalog.unnest(insert_jobs.keys),
                pg_catalog.unnest(insert_jobs.payloads),
                pg_catalog.unnest(insert_jobs.run_ats)
            ) with ordinality as u (id, key, payload, run_at, ordinal)
            order by u.key collate "C", case when u.key is null then u.ordinal end, u.ordinal
        ) as i
        -- The order of the subquery, so that nothing is sorted twice.
        order by i.key, i.keyless, i.ordinal
        on conflict do nothing;
        get diagnostics v_inserted = row_count;

        exit when v_inserted = v_count;
        -- New statements, so new snapshots: they see the rows that made the insert do nothing, unless
        -- one has finished meanwhile; then its key is free again and the next round inserts. Looked at
        -- once, and what was seen is what is returned: a second look may find less.
        v_found := array(
            select
                case
                    when u.key is null then u.id
                    else dever.unfinished_id(insert_jobs.target, insert_jobs.queue_id, u.key)
                end
            from rows from (
                pg_catalog.unnest(v_ids),
                pg_catalog.unnest(insert_jobs.keys)
            ) with ordinality as u (id, key, ordinal)
            order by u.ordinal
        );
        exit when pg_catalog.array_position(v_found, null) is null;
        if v_inserted > 0 then
            raise exception using
                errcode = 'DV010',
                message = 'a key was freed while the batch was inserted',
                hint = 'dever.enqueue_under inserts it again';
        end if;
        v_round := v_round + 1;
        if v_round > 1000 then
            perform dever.raise_unsettled();
        end if;
    end loop;

    if v_inserted = v_count then
        return query
        select u.ordinal::integer, u.id, true
        from pg_catalog.unnest(v_ids) with ordinality as u (id, ordinal);
    else
        -- An id of ours under the key means that this call inserted it.
        return query
        select u.ordinal::integer, u.found_id, u.found_id = u.id
        from rows from (
            pg_catalog.unnest(v_ids),
            pg_catalog.unnest(v_found)
        ) with ordinality as u (id, found_id, ordinal)
        order by u.ordinal;
    end if;
    if exists (
        select
        from pg_catalog.unnest(insert_jobs.run_ats) as r (run_at)
        where r.run_at <= insert_jobs.created_at
    ) then
        perform dever.wake(insert_jobs.queue_id);
    end if;
end
$$;

comment on function dever.insert_jobs(
    text, integer, bigint, integer, bigint, bigint, bigint, double precision,
    text[], jsonb[], timestamptz[], timestamptz, timestamptz
) is 'Inserts checked jobs or messages of one target, deduplicated by key; one row per item';

-- dever.insert_jobs for jobs of a policy.
create function dever.insert_under(
    policy dever.policy,
    visibility_us bigint,
    keys text[],
    payloads jsonb[],
    run_ats timestamptz[],
    created_at timestamptz
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select i.ordinal, i.id, i.created
    from dever.insert_jobs(
        (insert_under.policy).target,
        (insert_under.policy).contract_id,
        (insert_under.policy).queue_id,
        (insert_under.policy).max_attempts,
        insert_under.visibility_us,
        (insert_under.policy).backoff_base_us,
        (insert_under.policy).backoff_max_us,
        (insert_under.policy).backoff_jitter,
        insert_under.keys,
        insert_under.payloads,
        insert_under.run_ats,
        null,
        insert_under.created_at
    ) as i;
end
$$;

comment on function dever.insert_under(dever.policy, bigint, text[], jsonb[], timestamptz[], timestamptz) is
'dever.insert_jobs for jobs of a policy';

-- What enqueue, enqueue_many and enqueue_as share: keys, instants, the queue's visibility, the insert.
create function dever.enqueue_under(
    policy dever.policy,
    keys text[],
    payloads jsonb[],
    run_ats timestamptz[]
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_count integer := pg_catalog.cardinality(enqueue_under.keys);
    v_instant timestamptz;
    v_visibility bigint;
    v_payloads jsonb[];
    v_run_ats timestamptz[];
    v_now timestamptz := dever.clock();
begin
    perform dever.check_keys(enqueue_under.keys);
    if enqueue_under.run_ats is not null then
        foreach v_instant in array enqueue_under.run_ats loop
            if v_instant is not null then
                v_instant := dever.check_instant(v_instant, 'run_at');
            end if;
        end loop;
    end if;
    select q.visibility_us into strict v_visibility
    from dever.queue as q
    where q.id = (enqueue_under.policy).queue_id;
    v_payloads := coalesce(enqueue_under.payloads, pg_catalog.array_fill('null'::jsonb, array[v_count]));
    v_run_ats := coalesce(
        (
            select pg_catalog.array_agg(coalesce(r.run_at, v_now) order by r.ordinal)
            from pg_catalog.unnest(enqueue_under.run_ats) with ordinality as r (run_at, ordinal)
        ),
        pg_catalog.array_fill(v_now, array[v_count])
    );
    if v_count = 1 then
        return query
        select i.ordinal, i.id, i.created
        from dever.insert_under(
            enqueue_under.policy, v_visibility, enqueue_under.keys, v_payloads, v_run_ats, v_now
        ) as i;
        return;
    end if;
    -- In a subtransaction, so that a batch which has to begin again gives back the keys it inserted.
    for v_round in 1 .. 1000 loop
        begin
            return query
            select i.ordinal, i.id, i.created
            from dever.insert_under(
                enqueue_under.policy, v_visibility, enqueue_under.keys, v_payloads, v_run_ats, v_now
            ) as i;
            return;
        exception
            when sqlstate 'DV010' then
                null;
        end;
    end loop;
    perform dever.raise_unsettled();
end
$$;

comment on function dever.enqueue_under(dever.policy, text[], jsonb[], timestamptz[]) is
'Inserts checked payloads under a policy, after checking keys and instants';

create function dever.raise_unknown_job(job text, fingerprint text)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    raise exception using
        errcode = 'DV004',
        message = pg_catalog.format(
            'no job is registered as %s%s',
            coalesce(pg_catalog.left(raise_unknown_job.job, 255), 'null'),
            coalesce(' with fingerprint ' || pg_catalog.left(raise_unknown_job.fingerprint, 128), '')
        ),
        hint = 'start a worker of the program that declares it, or run: dever sql contracts MODULE URL';
end
$$;

comment on function dever.raise_unknown_job(text, text) is 'Raises DV004';

-- Many jobs of one target, each with its own key, payload and run_at; one result per item. Joins the
-- caller's transaction; all are checked before one is inserted. Raises DV004, DV005, DV006, DV002, DV007.
create function dever.enqueue_many(
    job text,
    keys text[],
    payloads jsonb[] default null,
    run_ats timestamptz[] default null
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_policy dever.policy := dever.current_policy(enqueue_many.job);
    v_contract dever.contract;
    v_count integer := coalesce(pg_catalog.cardinality(enqueue_many.keys), 0);
    v_payloads jsonb[];
begin
    if v_policy.id is null then
        perform dever.raise_unknown_job(enqueue_many.job, null);
    end if;
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(enqueue_many.payloads), v_count),
        coalesce(pg_catalog.cardinality(enqueue_many.run_ats), v_count)
    ]);
    if v_count = 0 then
        return;
    end if;
    select c.* into strict v_contract
    from dever.contract as c
    where c.id = v_policy.contract_id;
    -- What is checked must be what is stored: an array of two dimensions, or one that does not start at
    -- 1, answers null to a subscript.
    v_payloads := array(
        select coalesce(u.payload, 'null')
        from pg_catalog.unnest(
            coalesce(enqueue_many.payloads, pg_catalog.array_fill('null'::jsonb, array[v_count]))
        ) with ordinality as u (payload, ordinal)
        order by u.ordinal
    );
    for v_index in 1 .. v_count loop
        perform dever.check_payload(
            v_contract,
            v_payloads[v_index],
            case when v_count > 1 then v_index end
        );
    end loop;
    return query
    select i.ordinal, i.id, i.created
    from dever.enqueue_under(
        v_policy, enqueue_many.keys, v_payloads, enqueue_many.run_ats
    ) as i;
end
$$;

comment on function dever.enqueue_many(text, text[], jsonb[], timestamptz[]) is
'Enqueues many jobs of one target in the caller''s transaction; one (ordinal, id, created) per item';

-- One job. Joins the caller's transaction. While (job, key) is unfinished nothing is inserted and
-- created is false; the first payload and run_at stay. Raises as enqueue_many does.
create function dever.enqueue(
    job text,
    key text,
    payload jsonb default null,
    run_at timestamptz default null
)
returns table (id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    select m.id, m.created into strict id, created
    from dever.enqueue_many(
        enqueue.job, array[enqueue.key], array[enqueue.payload], array[enqueue.run_at]
    ) as m;
    return next;
end
$$;

comment on function dever.enqueue(text, text, jsonb, timestamptz) is
'Enqueues one job in the caller''s transaction: select * from dever.enqueue(''shop.order.job.send_receipt'',
key => ''receipt:7'', payload => ''{"order_id": 7}'')';

-- For clients that encoded against this very schema (the Python layer): payloads are not checked again.
-- Otherwise as enqueue_many. An unknown fingerprint is DV004.
create function dever.enqueue_as(
    job text,
    fingerprint text,
    keys text[],
    payloads jsonb[] default null,
    run_ats timestamptz[] default null
)
returns table (ordinal integer, id bigint, created boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_policy dever.policy := dever.current_policy(enqueue_as.job, enqueue_as.fingerprint);
    v_count integer := coalesce(pg_catalog.cardinality(enqueue_as.keys), 0);
begin
    if v_policy.id is null or enqueue_as.fingerprint is null then
        perform dever.raise_unknown_job(enqueue_as.job, coalesce(enqueue_as.fingerprint, 'null'));
    end if;
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(enqueue_as.payloads), v_count),
        coalesce(pg_catalog.cardinality(enqueue_as.run_ats), v_count)
    ]);
    if v_count = 0 then
        return;
    end if;
    return query
    select i.ordinal, i.id, i.created
    from dever.enqueue_under(
        v_policy, enqueue_as.keys, enqueue_as.payloads, enqueue_as.run_ats
    ) as i;
end
$$;

comment on function dever.enqueue_as(text, text, text[], jsonb[], timestamptz[]) is
'Enqueues jobs whose payloads the client encoded against the contract with this fingerprint';

-- One message under a checked name and the given defaults; send and outbox_enqueue share it.
-- Delay wins over run_at. Joins the caller's transaction. Raises DV005, DV006, DV002, DV007.
create function dever.send_under(
    queue text,
    payload jsonb,
    key text,
    delay interval,
    run_at timestamptz,
    expires interval,
    max_attempts integer
)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_delay bigint := dever.microseconds(send_under.delay, 'delay');
    v_expires bigint := dever.positive_microseconds(send_under.expires, 'expires');
    v_payload jsonb := coalesce(send_under.payload, 'null');
    v_queue_id bigint;
    v_queue dever.queue;
    v_now timestamptz;
    v_run_at timestamptz;
    v_id bigint;
begin
    if send_under.key is not null then
        perform dever.check_keys(array[send_under.key]);
    end if;
    if send_under.max_attempts < 1 then
        raise exception using
            errcode = 'DV007',
            message = 'max_attempts is below 1',
            hint = 'it is the total number of deliveries, the first included';
    end if;
    perform dever.check_instant(send_under.run_at, 'run_at');
    perform dever.check_payload_limits(v_payload, 'payload');
    if dever.json_fault(v_payload) is not null then
        raise exception using
            errcode = 'DV005',
            message = 'payload ' || dever.json_fault(v_payload),
            hint = 'send large numbers as text';
    end if;
    v_queue_id := dever.queue_for(send_under.queue);
    select q.* into strict v_queue
    from dever.queue as q
    where q.id = v_queue_id;
    v_now := dever.clock();
    v_run_at := case
        when v_delay is null then coalesce(send_under.run_at, v_now)
        else v_now + dever.as_interval(greatest(v_delay, 0))
    end;
    select i.id into strict v_id
    from dever.insert_jobs(
        null,
        null,
        v_queue.id,
        coalesce(send_under.max_attempts, v_queue.max_attempts),
        v_queue.visibility_us,
        v_queue.backoff_base_us,
        v_queue.backoff_max_us,
        0,
        array[send_under.key],
        array[v_payload],
        array[v_run_at],
        v_now + dever.as_interval(v_expires),
        v_now
    ) as i;
    return v_id;
end
$$;

comment on function dever.send_under(text, jsonb, text, interval, timestamptz, interval, integer) is
'Inserts one message into a queue whose name the caller has checked';

-- One message. Joins the caller's transaction; a key that is unfinished in this queue gives the existing
-- id. Raises DV001, DV002, DV005, DV006, DV007.
create function dever.send(
    queue text,
    payload jsonb,
    key text default null,
    delay interval default null,
    run_at timestamptz default null,
    expires interval default null,
    max_attempts integer default null
)
returns bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return dever.send_under(
        dever.check_name(send.queue, 'queue'),
        send.payload, send.key, send.delay, send.run_at, send.expires, send.max_attempts
    );
end
$$;

comment on function dever.send(text, jsonb, text, interval, timestamptz, interval, integer) is
'Sends one message to a queue in the caller''s transaction and returns its id';

-- Many messages without keys, with the queue's defaults; ids in the order of payloads.
create function dever.send_many(queue text, payloads jsonb[])
returns setof bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(send_many.payloads), 0);
    v_queue_id bigint;
    v_queue dever.queue;
    v_payload jsonb;
    v_now timestamptz;
begin
    perform dever.check_name(send_many.queue, 'queue');
    perform dever.check_lengths(v_count, array[v_count]);
    if v_count = 0 then
        return;
    end if;
    foreach v_payload in array send_many.payloads loop
        perform dever.check_payload_limits(v_payload, 'payload');
        if dever.json_fault(v_payload) is not null then
            raise exception using
                errcode = 'DV005',
                message = 'payload ' || dever.json_fault(v_payload),
                hint = 'send large numbers as text';
        end if;
    end loop;
    v_queue_id := dever.queue_for(send_many.queue);
    select q.* into strict v_queue
    from dever.queue as q
    where q.id = v_queue_id;
    v_now := dever.clock();
    return query
    select i.id
    from dever.insert_jobs(
        null,
        null,
        v_queue.id,
        v_queue.max_attempts,
        v_queue.visibility_us,
        v_queue.backoff_base_us,
        v_queue.backoff_max_us,
        0,
        pg_catalog.array_fill(null::text, array[v_count]),
        send_many.payloads,
        pg_catalog.array_fill(v_now, array[v_count]),
        null,
        v_now
    ) as i
    order by i.ordinal;
end
$$;

comment on function dever.send_many(text, jsonb[]) is
'Sends many messages to a queue in the caller''s transaction and returns their ids in order';

-- 60_claim.sql

-- Claim: lease due rows to a worker. A claim is the only way to own a job.
--
-- The scan walks job_claim_idx in (run_at, id) order and takes what is free: never leased, or the lease
-- has run out, so recovery needs no other process. Rows that used their attempts, expired or belong to
-- contracts the worker does not run are passed over; dever.sweep moves them.
--
-- The head hint keeps the scan flat while some session holds an old snapshot and dead rows pile up in
-- front, or while many jobs run, which stay in front of those that wait: the setting
-- dever.head_<queue id> of the session keeps where the last claim started. Digits only: contract hash,
-- run_at and id of the bound, when the last full scan ran and what it cost, all in microseconds. A scan
-- was dear when it walked more than 250 index entries and 10 a row, which costs about what the rest of
-- the claim does, or 20 pages of the index and one for 50 rows: entries of finished jobs are counted by
-- their pages alone (time would also count a busy machine; without track_counts only time tells). After
-- a dear one the scans start at the bound until 20 times its cost has passed, 20 seconds at most (a
-- wait for a lock looks like cost), so a row that slips in below the bound (a late commit, a lease that
-- ran out) waits no longer. It is only ever a hint: anything else in the setting means no hint.

-- Returns up to n leased jobs in (run_at, id) order, each with a fresh token and its attempt counted.
-- One short transaction of its own; locks only the rows it takes, skipping rows that others lock.
-- n <= 0, a paused or unknown queue: nothing. contracts null: messages only, else jobs of these contracts.
-- lease null: the row's own visibility. Raises DV001, DV007.
create function dever.claim(
    queue text,
    worker text,
    n integer,
    lease interval default null,
    contracts integer[] default null
)
returns table (
    id bigint,
    token bigint,
    target text,
    key text,
    attempt integer,
    max_attempts integer,
    fingerprint text,
    payload jsonb,
    run_at timestamptz,
    lease_until timestamptz
)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_lease bigint := dever.positive_microseconds(claim.lease, 'lease');
    v_worker text;
    v_queue_id bigint;
    v_now timestamptz;
    v_setting text;
    v_contracts_hash bigint;
    v_hint bigint[];
    v_started bigint;
    v_finished bigint;
    v_index pg_catalog.oid := 'dever.job_claim_idx'::pg_catalog.regclass;
    v_entries bigint;
    v_pages bigint;
    v_dear boolean;
    v_full boolean := true;
    v_bound_run_at timestamptz := '-infinity';
    v_bound_id bigint := 0;
    v_ctids tid[];
    v_found_contracts integer[];
    v_head_run_at timestamptz;
    v_head_id bigint;
begin
    if claim.n is null or claim.n <= 0 then
        return;
    end if;
    if claim.n > 10000 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('n is %s, at most 10,000 jobs can be claimed in one call', claim.n),
            hint = 'claim what you have free slots for';
    end if;
    select q.id into v_queue_id
    from dever.queue as q
    where q.name = claim.queue and not q.paused;
    -- Schedules and outboxes claim from reserved queues, so only the form of the name is checked.
    if v_queue_id is null and (claim.queue is null or not pg_catalog.starts_with(claim.queue, '__dever_')) then
        perform dever.check_name(claim.queue, 'queue');
    end if;
    v_worker := dever.check_name(claim.worker, 'worker');
    if v_queue_id is null then
        return;
    end if;

    v_setting := 'dever.head_' || v_queue_id;
    v_contracts_hash := pg_catalog.hashtextextended(
        coalesce(pg_catalog.array_to_string(claim.contracts, ','), 'messages'), 0
    ) & 9223372036854775807;
    -- Read into a variable: a volatile clock in the condition could not bound the index scan.
    v_now := dever.clock();
    v_started := (extract(epoch from v_now) * 1000000)::bigint;
    if pg_catalog.current_setting(v_setting, true) ~ '^[0-9]{1,18}( [0-9]{1,18}){3} [0-9]{1,10}$' then
        v_hint := pg_catalog.string_to_array(pg_catalog.current_setting(v_setting, true), ' ')::bigint[];
        if v_hint[1] = v_contracts_hash % 1000000000000000000
            and v_started >= v_hint[4]
            and v_started < v_hint[4] + 20 * v_hint[5]
        then
            v_full := false;
            v_bound_run_at := timestamptz '1970-01-01 00:00:00+00' + dever.as_interval(v_hint[2]);
            v_bound_id := v_hint[3];
        end if;
    end if;

    v_entries := pg_catalog.pg_stat_get_xact_tuples_returned(v_index);
    v_pages := pg_catalog.pg_stat_get_xact_blocks_fetched(v_index);
    select
        pg_catalog.array_agg(c.ctid),
        pg_catalog.array_agg(c.contract_id),
        (pg_catalog.array_agg(c.run_at))[1],
        (pg_catalog.array_agg(c.id))[1]
    into v_ctids, v_found_contracts, v_head_run_at, v_head_id
    from (
        select j.ctid, j.contract_id, j.run_at, j.id
        from dever.job as j
        where j.queue_id = v_queue_id
            and j.queue_id > 0
            and j.run_at <= v_now
            and (j.run_at, j.id) >= (v_bound_run_at, v_bound_id)
            and (j.lease_until is null or j.lease_until <= v_now)
            and j.attempt < j.max_attempts
            and (j.expires_at is null or j.expires_at > v_now)
            and case
                when claim.contracts is null then j.contract_id is null
                else j.contract_id = any (claim.contracts)
            end
        order by j.queue_id, j.run_at, j.id
        limit claim.n
        for update skip locked
    ) as c;

    v_entries := pg_catalog.pg_stat_get_xact_tuples_returned(v_index) - v_entries;
    v_pages := pg_catalog.pg_stat_get_xact_blocks_fetched(v_index) - v_pages;
    v_dear := v_entries > 250 + 10::bigint * claim.n
        or v_pages > 20 + claim.n / 50
        or (v_pages = 0 and dever.clock() - v_now > interval '2 milliseconds' + claim.n * interval '20 microseconds');
    -- Written only when it will be used: after a dear scan, or while a bound is in force.
    if not v_full or v_dear then
        v_finished := (extract(epoch from dever.clock()) * 1000000)::bigint;
        if coalesce(pg_catalog.cardinality(v_ctids), 0) < claim.n then
            -- Nothing more was due: start the next scan at this instant, less a lag for ordinary commits.
            v_head_run_at := greatest(v_bound_run_at, v_now - interval '100 milliseconds');
            v_head_id := 0;
        end if;
        perform pg_catalog.set_config(
            v_setting,
            pg_catalog.concat_ws(
                ' ',
                v_contracts_hash % 1000000000000000000,
                greatest((extract(epoch from v_head_run_at) * 1000000)::bigint, 0),
                v_head_id,
                case when v_full then v_finished else v_hint[4] end,
                case when v_full then least(v_finished - v_started, 1000000) else v_hint[5] end
            ),
            false
        );
    end if;
    if v_ctids is null then
        return;
    end if;

    v_now := dever.clock();
    return query
    with claimed as (
        update dever.job as j
        set
            attempt = j.attempt + 1,
            token = pg_catalog.nextval('dever.token_seq'),
            lease_until = v_now + coalesce(v_lease, j.visibility_us) * interval '1 microsecond',
            worker = v_worker
        where j.ctid = any (v_ctids)
        returning
            j.id, j.token, j.target, j.key, j.attempt, j.max_attempts, j.contract_id, j.payload,
            j.run_at, j.lease_until
    )
    select
        c.id,
        c.token,
        c.target,
        c.key,
        c.attempt,
        c.max_attempts,
        k.fingerprint,
        c.payload,
        c.run_at,
        c.lease_until
    from claimed as c
    left join (
        select i.id, i.fingerprint from dever.contract as i where i.id = any (v_found_contracts)
    ) as k on k.id = c.contract_id
    order by c.run_at, c.id;
end
$$;

comment on function dever.claim(text, text, integer, interval, integer[]) is
'Leases up to n due jobs of a queue to a worker, oldest first, each with a fresh fencing token';

-- 70_finish.sql

-- Renew and finish: what the holder of a claim may do with it.
--
-- Every verb takes parallel arrays of ids and tokens and gives one verdict per id: true, false (the
-- claim was lost: nothing was changed), null (another transaction holds the row: ask again). A row is
-- touched only while the token is the current one and the lease is running, judged by the clock read
-- after the row is locked. Locked rows are skipped, so a handler that keeps its own transaction open
-- delays no neighbour, and nothing waits, so nothing can deadlock.
--
-- Rows are found by a lateral look per id: a plain join may as well walk the whole index once, and does
-- when its plan was made while the table was empty.

-- Locks the rows whose claim is still in force. held and, beside it, places: their ids and where they lie,
-- which stays true while they are locked. busy: ids whose row another transaction holds. Everything else
-- is lost. Raises DV007 for arrays of unequal length.
create function dever.lock_claims(
    ids bigint[],
    tokens bigint[],
    out held bigint[],
    out places tid[],
    out busy bigint[]
)
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(lock_claims.ids), 0);
    v_leases timestamptz[];
    v_first_end timestamptz;
    v_now timestamptz;
begin
    -- Not asked about a usual batch: a call of a function is a good part of what is paid here per batch.
    if v_count > 1000 or v_count <> coalesce(pg_catalog.cardinality(lock_claims.tokens), 0) then
        perform dever.check_lengths(v_count, array[coalesce(pg_catalog.cardinality(lock_claims.tokens), 0)]);
    end if;
    select
        pg_catalog.array_agg(l.id),
        pg_catalog.array_agg(l.place),
        pg_catalog.array_agg(l.lease_until),
        pg_catalog.min(l.lease_until)
    into held, places, v_leases, v_first_end
    from (
        select j.id, j.place, j.lease_until
        from rows from (
            pg_catalog.unnest(lock_claims.ids),
            pg_catalog.unnest(lock_claims.tokens)
        ) as u (id, token)
        cross join lateral (
            select i.id, i.ctid as place, i.lease_until
            from dever.job as i
            where i.id = u.id and i.token = u.token
            for update skip locked
        ) as j
    ) as l;
    v_now := dever.clock();
    busy := '{}';
    if coalesce(pg_catalog.cardinality(held), 0) < v_count then
        busy := array(
            select j.id
            from rows from (
                pg_catalog.unnest(lock_claims.ids),
                pg_catalog.unnest(lock_claims.tokens)
            ) as u (id, token)
            cross join lateral (
                select i.id from dever.job as i where i.id = u.id and i.token = u.token limit 1
            ) as j
            where j.id <> all (coalesce(held, '{}'))
        );
    end if;
    -- A row without a lease has no claim either, although its token is the last one.
    if v_first_end > v_now and pg_catalog.array_position(v_leases, null) is null then
        return;
    end if;
    select
        coalesce(pg_catalog.array_agg(l.id), '{}'),
        coalesce(pg_catalog.array_agg(l.place), '{}')
    into held, places
    from rows from (
        pg_catalog.unnest(held),
        pg_catalog.unnest(places),
        pg_catalog.unnest(v_leases)
    ) as l (id, place, lease_until)
    where l.lease_until > v_now;
end
$$;

comment on function dever.lock_claims(bigint[], bigint[]) is
'Locks the rows whose claim is in force; tells them from those that another transaction holds';

-- One verdict per distinct id: true when held, null when busy, false when lost.
create function dever.verdicts(ids bigint[], held bigint[], busy bigint[])
returns table (id bigint, ok boolean)
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select
        i.id,
        case
            when i.id = any (verdicts.held) then true
            when i.id = any (verdicts.busy) then null
            else false
        end
    from (
        select u.id, pg_catalog.min(u.ordinal) as ordinal
        from pg_catalog.unnest(verdicts.ids) with ordinality as u (id, ordinal)
        group by u.id
    ) as i
    order by i.ordinal;
end
$$;

comment on function dever.verdicts(bigint[], bigint[], bigint[]) is 'One verdict per distinct id, in the caller''s order';

-- Moves rows that the caller has locked to dever.finished, or away when the queue keeps none of that
-- outcome. reasons and errors run beside places; reasons null for an end that needs none. Returns how
-- many rows were moved.
create function dever.move_to_finished(places tid[], outcome text, reasons text[], errors text[])
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
    v_places tid[] := move_to_finished.places;
    v_each boolean := move_to_finished.errors is not null
        or coalesce(move_to_finished.reasons[1] <> any (move_to_finished.reasons), false);
    v_moved bigint;
begin
    if v_each then
        -- What is of each row is told to the row first: a join with it while the rows move would be paid by
        -- every success. One reason for all needs neither.
        with told as (
            update dever.job as j
            set
                reason = pg_catalog.left(r.reason, 255),
                -- An end without an error of its own keeps the one of the attempt before.
                error = coalesce(pg_catalog.left(r.error, 10000), j.error)
            from (
                select distinct on (u.place) u.place, u.reason, u.error
                from rows from (
                    pg_catalog.unnest(move_to_finished.places),
                    pg_catalog.unnest(move_to_finished.reasons),
                    pg_catalog.unnest(move_to_finished.errors)
                ) as u (place, reason, error)
            ) as r
            where j.ctid = r.place
            returning j.ctid as place
        )

        select pg_catalog.array_agg(t.place) into v_places
        from told as t;
    end if;
    with gone as (
        delete from dever.job as j
        where j.ctid = any (v_places)
        returning j.*
    ),

    -- Once a queue, not once a row.
    keeping as (
        select q.id
        from (select distinct g.queue_id from gone as g) as d
        inner join dever.queue as q on q.id = d.queue_id
        where case move_to_finished.outcome
            when 'succeeded' then q.keep_succeeded_us
            when 'dead' then q.keep_dead_us
            else q.keep_cancelled_us
        end > 0
    ),

    kept as (
        insert into dever.finished (
            id, queue_id, outcome, finished_at, attempt, max_attempts, token, contract_id, visibility_us,
            backoff_base_us, backoff_max_us, backoff_jitter, expires_at, run_at, created_at, target, key,
            worker, reason, error, payload
        )
        select
            g.id,
            g.queue_id,
            move_to_finished.outcome,
            v_now,
            g.attempt,
            g.max_attempts,
            g.token,
            g.contract_id,
            g.visibility_us,
            g.backoff_base_us,
            g.backoff_max_us,
            g.backoff_jitter,
            g.expires_at,
            coalesce(g.due_at, g.run_at),
            g.created_at,
            g.target,
            g.key,
            g.worker,
            case when v_each then g.reason else pg_catalog.left(move_to_finished.reasons[1], 255) end,
            case when move_to_finished.outcome <> 'succeeded' then g.error end,
            g.payload
        from gone as g
        inner join keeping as k on k.id = g.queue_id
    )

    select pg_catalog.count(*) into v_moved
    from gone;
    return v_moved;
end
$$;

comment on function dever.move_to_finished(tid[], text, text[], text[]) is
'Moves locked rows from dever.job to dever.finished with an outcome; how many there were';

-- A full new lease from now. One short transaction. See the head of this file for the verdicts.
create function dever.renew(ids bigint[], tokens bigint[], lease interval)
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_lease bigint := dever.positive_microseconds(renew.lease, 'lease');
    v_hold record;
    v_now timestamptz;
begin
    v_hold := dever.lock_claims(renew.ids, renew.tokens);
    v_now := dever.clock();
    update dever.job as j
    set lease_until = v_now + coalesce(v_lease, j.visibility_us) * interval '1 microsecond'
    where j.ctid = any (v_hold.places);
    return query select v.id, v.ok from dever.verdicts(renew.ids, v_hold.held, v_hold.busy) as v;
end
$$;

comment on function dever.renew(bigint[], bigint[], interval) is
'Extends claims to a full lease from now (null: the row''s own visibility); false: the claim was lost';

-- The jobs are done: they leave the live table as succeeded. One short transaction, or the handler's own
-- when its effects and the completion shall be one commit.
create function dever.complete(ids bigint[], tokens bigint[])
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_hold record;
begin
    v_hold := dever.lock_claims(complete.ids, complete.tokens);
    if dever.move_to_finished(v_hold.places, 'succeeded', null, null) = pg_catalog.cardinality(complete.ids) then
        -- As many as there are ids: all of them, and none twice. The common case needs no comparing.
        return query select u.id, true from pg_catalog.unnest(complete.ids) as u (id);
        return;
    end if;
    return query select v.id, v.ok from dever.verdicts(complete.ids, v_hold.held, v_hold.busy) as v;
end
$$;

comment on function dever.complete(bigint[], bigint[]) is 'Completes claimed jobs; false: the claim was lost, nothing was changed';

-- min(base * 2^(attempt - 1), max) in microseconds, exact and without overflow for any attempt.
create function dever.backoff(attempt integer, base_us bigint, max_us bigint)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when attempt > 62 or base_us > (max_us >> (greatest(attempt, 1) - 1)) then max_us
        else base_us << (greatest(attempt, 1) - 1)
    end;
end
$$;

comment on function dever.backoff(integer, bigint, bigint) is
'The retry curve: min(base x 2^(attempt-1), max) in microseconds';

-- The attempt failed: due again after its delay (null: the curve of the row; zero or less: at once), or
-- dead with the reason at the last attempt. outcome: retried, dead, lost, busy. One short transaction.
create function dever.retry(
    ids bigint[],
    tokens bigint[],
    reasons text[],
    errors text[] default null,
    delays interval[] default null
)
returns table (id bigint, outcome text)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(retry.ids), 0);
    v_hold record;
    v_now timestamptz;
    v_delays bigint[];
    v_dead bigint[];
    v_places tid[];
    v_reasons text[];
    v_errors text[];
begin
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(retry.tokens), 0),
        coalesce(pg_catalog.cardinality(retry.reasons), 0),
        coalesce(pg_catalog.cardinality(retry.errors), v_count),
        coalesce(pg_catalog.cardinality(retry.delays), v_count)
    ]);
    v_delays := array(
        select dever.microseconds(d.delay, 'delay')
        from pg_catalog.unnest(retry.delays) with ordinality as d (delay, ordinal)
        order by d.ordinal
    );
    v_hold := dever.lock_claims(retry.ids, retry.tokens);
    v_now := dever.clock();

    select
        pg_catalog.array_agg(j.id),
        pg_catalog.array_agg(j.place),
        pg_catalog.array_agg(coalesce(u.reason, 'handler_failed')),
        pg_catalog.array_agg(u.error)
    into v_dead, v_places, v_reasons, v_errors
    from rows from (
        pg_catalog.unnest(retry.ids),
        pg_catalog.unnest(retry.tokens),
        pg_catalog.unnest(retry.reasons),
        pg_catalog.unnest(retry.errors)
    )
        as u (id, token, reason, error)
    cross join lateral (
        select i.id, i.ctid as place
        from dever.job as i
        where i.id = u.id and i.token = u.token and i.attempt >= i.max_attempts
        limit 1
    ) as j
    where u.id = any (v_hold.held);

    update dever.job as j
    set
        run_at = v_now + dever.as_interval(
            case
                when u.delay is not null then greatest(u.delay, 0)
                else (
                    dever.backoff(j.attempt, j.backoff_base_us, j.backoff_max_us)
                    * (1 - j.backoff_jitter * pg_catalog.random())
                )::bigint
            end
        ),
        lease_until = null,
        worker = null,
        reason = pg_catalog.left(coalesce(u.reason, 'handler_failed'), 255),
        error = pg_catalog.left(u.error, 10000)
    from rows from (
        pg_catalog.unnest(retry.ids),
        pg_catalog.unnest(retry.tokens),
        pg_catalog.unnest(retry.reasons),
        pg_catalog.unnest(retry.errors),
        pg_catalog.unnest(v_delays)
    )
        as u (id, token, reason, error, delay)
    cross join lateral (
        select i.ctid as place
        from dever.job as i
        where i.id = u.id and i.token = u.token and i.attempt < i.max_attempts
        limit 1
    ) as k
    where j.ctid = k.place and u.id = any (v_hold.held);

    perform dever.move_to_finished(v_places, 'dead', v_reasons, v_errors);

    return query
    select
        v.id,
        case
            when v.ok is null then 'busy'
            when not v.ok then 'lost'
            when v.id = any (coalesce(v_dead, '{}')) then 'dead'
            else 'retried'
        end
    from dever.verdicts(retry.ids, v_hold.held, v_hold.busy) as v;
end
$$;

comment on function dever.retry(bigint[], bigint[], text[], text[], interval[]) is
'Fails attempts: each job is due again after a delay or the backoff curve, or dead at its last attempt';

-- Dead at once, whatever attempts are left. One short transaction.
create function dever.bury(
    ids bigint[],
    tokens bigint[],
    reasons text[],
    errors text[] default null
)
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(bury.ids), 0);
    v_hold record;
begin
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(bury.tokens), 0),
        coalesce(pg_catalog.cardinality(bury.reasons), 0),
        coalesce(pg_catalog.cardinality(bury.errors), v_count)
    ]);
    v_hold := dever.lock_claims(bury.ids, bury.tokens);
    perform dever.move_to_finished(
        pg_catalog.array_agg(j.place),
        'dead',
        pg_catalog.array_agg(coalesce(u.reason, 'handler_failed')),
        pg_catalog.array_agg(u.error)
    )
    from rows from (
        pg_catalog.unnest(bury.ids),
        pg_catalog.unnest(bury.tokens),
        pg_catalog.unnest(bury.reasons),
        pg_catalog.unnest(bury.errors)
    )
        as u (id, token, reason, error)
    cross join lateral (
        select i.ctid as place from dever.job as i where i.id = u.id and i.token = u.token limit 1
    ) as j
    where u.id = any (v_hold.held);
    return query select v.id, v.ok from dever.verdicts(bury.ids, v_hold.held, v_hold.busy) as v;
end
$$;

comment on function dever.bury(bigint[], bigint[], text[], text[]) is 'Gives up claimed jobs for good, with a reason';

-- The jobs cannot run as they are: set aside with a reason until redriven, or, for unknown_target and
-- schema_mismatch, until a worker that can run them is live. One short transaction.
create function dever.block(
    ids bigint[],
    tokens bigint[],
    reasons text[],
    errors text[] default null
)
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_count integer := coalesce(pg_catalog.cardinality(block.ids), 0);
    v_hold record;
    v_reason text;
begin
    perform dever.check_lengths(v_count, array[
        coalesce(pg_catalog.cardinality(block.tokens), 0),
        coalesce(pg_catalog.cardinality(block.reasons), 0),
        coalesce(pg_catalog.cardinality(block.errors), v_count)
    ]);
    foreach v_reason in array coalesce(block.reasons, '{}') loop
        if v_reason is null
            or v_reason not in ('unknown_target', 'schema_mismatch', 'invalid_payload', 'invalid_policy')
        then
            raise exception using
                errcode = 'DV007',
                message = 'a job can be blocked as unknown_target, schema_mismatch, invalid_payload or invalid_policy',
                hint = 'a job that failed is retried or buried instead';
        end if;
    end loop;
    v_hold := dever.lock_claims(block.ids, block.tokens);
    update dever.job as j
    set
        due_at = j.run_at,
        run_at = 'infinity',
        lease_until = null,
        worker = null,
        reason = u.reason,
        error = pg_catalog.left(u.error, 10000)
    from rows from (
        pg_catalog.unnest(block.ids),
        pg_catalog.unnest(block.tokens),
        pg_catalog.unnest(block.reasons),
        pg_catalog.unnest(block.errors)
    )
        as u (id, token, reason, error)
    cross join lateral (
        select i.ctid as place from dever.job as i where i.id = u.id and i.token = u.token limit 1
    ) as k
    where j.ctid = k.place and u.id = any (v_hold.held);
    return query select v.id, v.ok from dever.verdicts(block.ids, v_hold.held, v_hold.busy) as v;
end
$$;

comment on function dever.block(bigint[], bigint[], text[], text[]) is
'Sets claimed jobs aside that cannot run as they are, with one of the four reasons';

-- Gives claims back at shutdown: due again at once, the attempt stays used; at the last attempt the job
-- is dead as interrupted. One short transaction.
create function dever.release(ids bigint[], tokens bigint[])
returns table (id bigint, ok boolean)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_hold record;
    v_dead tid[];
    v_queue_id bigint;
begin
    v_hold := dever.lock_claims(release.ids, release.tokens);
    v_dead := array(
        select j.ctid from dever.job as j
        where j.ctid = any (v_hold.places) and j.attempt >= j.max_attempts
    );
    perform dever.move_to_finished(
        v_dead, 'dead', pg_catalog.array_fill('interrupted'::text, array[pg_catalog.cardinality(v_dead)]), null
    );
    for v_queue_id in
        with freed as (
            update dever.job as j
            set lease_until = null, worker = null
            where j.ctid = any (v_hold.places)
            returning j.queue_id
        )
        select distinct f.queue_id from freed as f
    loop
        perform dever.wake(v_queue_id);
    end loop;
    return query select v.id, v.ok from dever.verdicts(release.ids, v_hold.held, v_hold.busy) as v;
end
$$;

comment on function dever.release(bigint[], bigint[]) is
'Gives claims back so that others can start the jobs at once; the attempts stay used';

-- 75_sweep.sql

-- Sweep: everything that no claim may touch, in bounded passes.
--
-- It looks at due and at blocked rows in (queue, run_at, id) order, at most 10 n a call, from a cursor
-- it keeps, and moves: expired messages and exhausted jobs to dead, due jobs that no live worker has
-- been able to run for block_after to blocked, blocked jobs that a live worker can run back to pending,
-- jobs whose program moved them to another queue there. Then it prunes at most n finished rows.
-- Rows that others lock are left for the next pass.

-- The contracts a live worker runs.
create function dever.live_contracts(at_instant timestamptz)
returns integer[]
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct p.contract_id
        from dever.worker as w
        join dever.worker_policy as wp on wp.worker = w.name
        join dever.policy as p on p.id = wp.policy_id
        where w.alive_until > at_instant
    )
$$;

comment on function dever.live_contracts(timestamptz) is 'The contracts that live workers run';

-- The contracts that no live worker has run since an instant, though they were there by then.
create function dever.stale_contracts(since timestamptz)
returns integer[]
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select c.id
        from dever.contract as c
        where c.created_at <= since
            -- A subquery, so that it is computed once and not for every contract.
            and c.id <> all ((select dever.live_contracts(since))::integer[])
    )
$$;

comment on function dever.stale_contracts(timestamptz) is
'The contracts that no worker has been live for since an instant';

-- Locks those of the rows whose lease is not running and that nobody else locks; returns their ids.
-- In no order: an order by id would let the planner walk the whole index for it, and nothing waits here.
create function dever.lock_free(ids bigint[])
returns bigint[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    return array(
        select j.id
        from dever.job as j
        where j.id = any (lock_free.ids) and (j.lease_until is null or j.lease_until <= v_now)
        for update skip locked
    );
end
$$;

comment on function dever.lock_free(bigint[]) is 'Locks rows that no running lease protects, skipping locked ones';

-- One bounded pass. One short transaction; only one runs at a time, a second call returns at once.
-- Returns what was moved: exhausted, expired, blocked, unblocked, moved, pruned, workers. n <= 0:
-- nothing. Raises DV007.
create function dever.sweep(n integer default 1000)
returns table (what text, rows bigint)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_cursor dever.sweep_cursor;
    v_start dever.sweep_cursor;
    v_queue dever.queue;
    v_left bigint;
    v_prune bigint;
    v_live integer[];
    v_stale integer[];
    v_elsewhere integer[];
    v_sample record;
    v_ids bigint[];
    v_places tid[];
    v_count bigint;
    v_exhausted bigint := 0;
    v_expired bigint := 0;
    v_blocked bigint := 0;
    v_unblocked bigint := 0;
    v_moved bigint := 0;
    v_pruned bigint := 0;
    v_keep record;
begin
    if sweep.n is null or sweep.n <= 0 then
        return;
    end if;
    if sweep.n > 100000 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('n is %s, at most 100,000 rows can be swept in one call', sweep.n),
            hint = 'call it again instead';
    end if;
    select c.* into v_cursor from dever.sweep_cursor as c for update skip locked;
    if not found then
        return;
    end if;
    v_start := v_cursor;
    v_now := dever.clock();
    v_left := 10::bigint * sweep.n;
    v_prune := sweep.n;
    v_live := dever.live_contracts(v_now);

    for v_queue in
        select q.* from dever.queue as q where q.id >= v_start.queue_id order by q.id
    loop
        if v_queue.id <> v_cursor.queue_id then
            v_cursor.queue_id := v_queue.id;
            v_cursor.run_at := '-infinity';
            v_cursor.job_id := 0;
        end if;

        if v_cursor.run_at < 'infinity' then
            -- A paused queue blocks nothing: its workers may have been stopped on purpose.
            v_stale := '{}';
            v_elsewhere := '{}';
            -- Most of many queues are empty: these two are worth their cost only for due rows.
            if exists (
                select
                from dever.job as j
                where j.queue_id = v_queue.id and j.queue_id > 0 and j.run_at <= v_now
            ) then
                if not v_queue.paused then
                    v_stale := dever.stale_contracts(v_now - dever.as_interval(v_queue.block_after_us));
                end if;
                -- Live contracts whose programs all moved them to other queues.
                v_elsewhere := array(
                    select l.contract_id
                    from pg_catalog.unnest(v_live) as l (contract_id)
                    where not exists (
                        select
                        from dever.policy as p
                        where p.contract_id = l.contract_id
                            and p.queue_id = v_queue.id
                            and dever.is_policy_live(p.id, v_now)
                    )
                );
            end if;
            select
                pg_catalog.count(*) as examined,
                (pg_catalog.array_agg(s.run_at order by s.run_at desc, s.id desc))[1] as last_run_at,
                (pg_catalog.array_agg(s.id order by s.run_at desc, s.id desc))[1] as last_id,
                pg_catalog.array_agg(s.id) filter (where s.free and s.expires_at <= v_now) as expired,
                pg_catalog.array_agg(s.id) filter (where s.free and s.attempt >= s.max_attempts) as exhausted,
                pg_catalog.array_agg(s.id) filter (where s.free and s.contract_id = any (v_stale)) as stale,
                pg_catalog.array_agg(s.id) filter (where s.free and s.contract_id = any (v_elsewhere)) as elsewhere
            into v_sample
            from (
                select
                    j.id, j.run_at, j.attempt, j.max_attempts, j.expires_at, j.contract_id,
                    j.lease_until is null or j.lease_until <= v_now as free
                from dever.job as j
                where j.queue_id = v_queue.id
                    and j.queue_id > 0
                    and j.run_at <= v_now
                    and (j.run_at, j.id) > (v_cursor.run_at, v_cursor.job_id)
                order by j.queue_id, j.run_at, j.id
                limit v_left
            ) as s;

            if v_sample.expired is not null then
                v_ids := dever.lock_free(v_sample.expired);
                v_places := array(
                    select j.ctid from dever.job as j where j.id = any (v_ids) and j.expires_at <= v_now
                );
                v_expired := v_expired + dever.move_to_finished(
                    v_places, 'dead', pg_catalog.array_fill('expired'::text, array[pg_catalog.cardinality(v_places)]), null
                );
            end if;
            if v_sample.exhausted is not null then
                v_ids := dever.lock_free(v_sample.exhausted);
                v_places := array(
                    select j.ctid from dever.job as j where j.id = any (v_ids) and j.attempt >= j.max_attempts
                );
                v_exhausted := v_exhausted + dever.move_to_finished(
                    v_places,
                    'dead',
                    pg_catalog.array_fill('attempts_exhausted'::text, array[pg_catalog.cardinality(v_places)]),
                    null
                );
            end if;
            if v_sample.stale is not null then
                v_ids := dever.lock_free(v_sample.stale);
                update dever.job as j
                set
                    due_at = j.run_at,
                    run_at = 'infinity',
                    lease_until = null,
                    worker = null,
                    reason = case
                        when exists (
                            select
                            from dever.contract as c
                            where c.target = j.target and c.id = any (v_live)
                        ) then 'schema_mismatch'
                        else 'unknown_target'
                    end,
                    error = null
                where j.id = any (v_ids)
                    and j.attempt < j.max_attempts;
                get diagnostics v_count = row_count;
                v_blocked := v_blocked + v_count;
            end if;
            if v_sample.elsewhere is not null then
                v_ids := dever.lock_free(v_sample.elsewhere);
                update dever.job as j
                set queue_id = m.queue_id
                from (
                    select distinct on (p.contract_id) p.contract_id, p.queue_id
                    from pg_catalog.unnest(v_elsewhere) as e (contract_id)
                    join dever.policy as p on p.contract_id = e.contract_id
                    where dever.is_policy_live(p.id, v_now)
                    order by p.contract_id, p.id desc
                ) as m
                where m.contract_id = j.contract_id
                    and j.id = any (v_ids);
                get diagnostics v_count = row_count;
                v_moved := v_moved + v_count;
            end if;

            v_left := v_left - v_sample.examined;
            if v_left <= 0 then
                v_cursor.run_at := v_sample.last_run_at;
                v_cursor.job_id := v_sample.last_id;
                exit;
            end if;
            v_cursor.run_at := 'infinity';
            v_cursor.job_id := 0;
        end if;

        select
            pg_catalog.count(*) as examined,
            pg_catalog.max(s.id) as last_id,
            pg_catalog.array_agg(s.id) filter (
                where s.reason in ('unknown_target', 'schema_mismatch') and s.contract_id = any (v_live)
            ) as runnable
        into v_sample
        from (
            select j.id, j.reason, j.contract_id
            from dever.job as j
            where j.queue_id = v_queue.id
                and j.queue_id > 0
                and j.run_at = 'infinity'
                and j.id > v_cursor.job_id
            order by j.queue_id, j.run_at, j.id
            limit v_left
        ) as s;
        if v_sample.runnable is not null then
            v_ids := dever.lock_free(v_sample.runnable);
            update dever.job as j
            set
                run_at = coalesce(j.due_at, v_now),
                due_at = null,
                attempt = least(j.attempt, j.max_attempts - 1),
                reason = null
            where j.id = any (v_ids) and j.run_at = 'infinity';
            get diagnostics v_count = row_count;
            v_unblocked := v_unblocked + v_count;
            perform dever.wake(v_queue.id);
        end if;
        v_left := v_left - v_sample.examined;
        if v_left <= 0 then
            v_cursor.job_id := v_sample.last_id;
            exit;
        end if;
    end loop;

    if v_left > 0 then
        v_cursor.queue_id := 0;
        v_cursor.run_at := '-infinity';
        v_cursor.job_id := 0;
    end if;
    if v_cursor is distinct from v_start then
        update dever.sweep_cursor as c
        set queue_id = v_cursor.queue_id, run_at = v_cursor.run_at, job_id = v_cursor.job_id
        where c.one;
    end if;

    -- Kept for 36,500 days or more means for ever.
    for v_keep in
        select q.id as queue_id, k.outcome, k.keep_us
        from dever.queue as q
        cross join lateral (
            values
                ('succeeded', q.keep_succeeded_us),
                ('dead', q.keep_dead_us),
                ('cancelled', q.keep_cancelled_us)
        ) as k (outcome, keep_us)
        where k.keep_us < 3153600000000000
        order by q.id
    loop
        exit when v_prune <= 0;
        delete from dever.finished as f
        where f.ctid = any (
            array(
                select o.ctid
                from dever.finished as o
                where o.queue_id = v_keep.queue_id
                    and o.outcome = v_keep.outcome
                    and o.finished_at < v_now - dever.as_interval(v_keep.keep_us)
                order by o.queue_id, o.outcome, o.finished_at
                limit v_prune
                for update skip locked
            )
        );
        get diagnostics v_count = row_count;
        v_prune := v_prune - v_count;
        v_pruned := v_pruned + v_count;
    end loop;

    -- A worker's row stays for a day, and as long as block_after may still ask since when it is gone.
    delete from dever.worker as w
    where w.alive_until < v_now - dever.as_interval(
        greatest(86400000000, (select pg_catalog.max(q.block_after_us) from dever.queue as q))
    );
    get diagnostics v_count = row_count;

    return query
    select r.what, r.rows
    from (
        values
            ('expired', v_expired),
            ('exhausted', v_exhausted),
            ('blocked', v_blocked),
            ('unblocked', v_unblocked),
            ('moved', v_moved),
            ('pruned', v_pruned),
            ('workers', v_count)
    ) as r (what, rows)
    where r.rows > 0;
end
$$;

comment on function dever.sweep(integer) is
'One bounded pass over rows that no claim may touch; returns what it moved. Every worker calls it';

-- 80_schedule.sql

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

-- 85_lock.sql

-- Named locks with a lease and a fencing token.
--
-- A row is a lock that somebody took; expired ones may be taken over by the next lock_acquire.
-- Tokens come from one sequence, so whoever takes a lock later carries a larger one: hand it to
-- what the lock protects, and a holder that was frozen past its lease can be told from the new one.

create table dever.lock (
    name text collate "C" not null,
    owner text not null,
    token bigint not null,
    expires_at timestamptz not null,
    constraint lock_pkey primary key (name)
)
with (fillfactor = 70);

comment on table dever.lock is
'Named locks that somebody took; held while expires_at is in the future';

create view dever.locks as
select
    l.name,
    l.owner,
    l.token,
    l.expires_at
from dever.lock as l
where l.expires_at > dever.clock();

comment on view dever.locks is 'Named locks that are held';

create function dever.check_lock_name(name text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select case
        when check_lock_name.name = '__dever_scheduler' then check_lock_name.name
        else dever.check_name(check_lock_name.name, 'lock')
    end
$$;

comment on function dever.check_lock_name(text) is
'The name of a lock that may be renewed and released: the scheduler''s own is one';

-- Takes a lock under a name that the caller has checked. The clock is read after the row is locked.
create function dever.take_lock(name text, owner text, ttl interval)
returns bigint
language plpgsql
volatile
parallel unsafe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_ttl bigint := dever.positive_microseconds(take_lock.ttl, 'ttl');
    v_token bigint;
begin
    if take_lock.owner is null or dever.is_blank(take_lock.owner) or v_ttl is null then
        raise exception using
            errcode = 'DV007',
            message = 'a lock needs an owner and a ttl',
            hint = 'name the process that holds it, and how long without renewal';
    end if;
    if pg_catalog.octet_length(take_lock.owner) > 1024 then
        raise exception using
            errcode = 'DV007',
            message = 'the owner of a lock is longer than 1024 bytes',
            hint = 'name the process that holds it, such as host and pid';
    end if;
    insert into dever.lock as l (name, owner, token, expires_at)
    values (
        take_lock.name,
        take_lock.owner,
        pg_catalog.nextval('dever.token_seq'),
        dever.clock() + dever.as_interval(v_ttl)
    )
    on conflict (name) do update
    set
        owner = excluded.owner,
        token = pg_catalog.nextval('dever.token_seq'),
        expires_at = dever.clock() + dever.as_interval(v_ttl)
    where l.expires_at <= dever.clock()
    returning l.token into v_token;
    return v_token;
end
$$;

comment on function dever.take_lock(text, text, interval) is
'dever.lock_acquire for a checked or a reserved name';

-- Null while anyone holds the lock, the same owner included. One short transaction; in an open one
-- of the caller others wait for its end. Raises DV001, DV002, DV007.
create function dever.lock_acquire(name text, owner text, ttl interval)
returns bigint
language sql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select dever.take_lock(
        dever.check_name(lock_acquire.name, 'lock'), lock_acquire.owner, lock_acquire.ttl
    )
$$;

comment on function dever.lock_acquire(text, text, interval) is
'Takes a named lock for ttl and returns its fencing token; null while anyone holds it';

-- A full new ttl from now. False: lost or expired, nothing changed. One short transaction.
create function dever.lock_renew(name text, owner text, token bigint, ttl interval)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_ttl bigint := dever.positive_microseconds(lock_renew.ttl, 'ttl');
    v_now timestamptz;
begin
    if v_ttl is null then
        raise exception using
            errcode = 'DV007',
            message = 'ttl is missing',
            hint = 'say how long the lock is held without another renewal';
    end if;
    perform dever.check_lock_name(lock_renew.name);
    perform from dever.lock as l where l.name = lock_renew.name for no key update;
    v_now := dever.clock();
    update dever.lock as l
    set expires_at = v_now + dever.as_interval(v_ttl)
    where l.name = lock_renew.name
        and l.owner = lock_renew.owner
        and l.token = lock_renew.token
        and l.expires_at > v_now;
    return found;
end
$$;

comment on function dever.lock_renew(text, text, bigint, interval) is
'Holds a lock for a full new ttl; false when it was lost or has expired';

-- False: lost or expired, nothing changed. One short transaction.
create function dever.lock_release(name text, owner text, token bigint)
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
    perform dever.check_lock_name(lock_release.name);
    perform from dever.lock as l where l.name = lock_release.name for update;
    v_now := dever.clock();
    delete from dever.lock as l
    where l.name = lock_release.name
        and l.owner = lock_release.owner
        and l.token = lock_release.token
        and l.expires_at > v_now;
    return found;
end
$$;

comment on function dever.lock_release(text, text, bigint) is
'Gives a lock back; false when it was lost or has expired';

-- The lock of those who run schedules: a reserved name that lock_acquire refuses. It saves work and
-- decides nothing, the row locks of dever.tick are what make a window fire once.
create function dever.scheduler_acquire(owner text, ttl interval)
returns bigint
language sql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select dever.take_lock('__dever_scheduler', scheduler_acquire.owner, scheduler_acquire.ttl)
$$;

comment on function dever.scheduler_acquire(text, interval) is
'Takes the lock __dever_scheduler as lock_acquire takes others; renew and release it as any lock';

-- 87_outbox.sql

-- Outbox: messages that commit with the caller's rows and are delivered at least once.
--
-- An outbox is a queue under a reserved name, which send and schedule refuse, with its own
-- defaults.

create function dever.outbox_queue(outbox text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select '__dever_outbox:' || dever.check_name(outbox_queue.outbox, 'outbox')
$$;

comment on function dever.outbox_queue(text) is
'The name of the queue behind an outbox; DV001, DV002';

-- Joins the caller's transaction: committed with its rows or not at all. A key that is unfinished
-- in this outbox gives the existing id. Defaults: 60 s visibility, 5 attempts, backoff from 5 s.
-- Raises DV001, DV002, DV005, DV006, DV007.
create function dever.outbox_enqueue(
    outbox text,
    payload jsonb,
    key text default null,
    max_attempts integer default null
)
returns bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_queue text := dever.outbox_queue(outbox_enqueue.outbox);
begin
    if not exists (select from dever.queue as q where q.name = v_queue) then
        insert into dever.queue (name, visibility_us, max_attempts, backoff_base_us)
        values (v_queue, 60000000, 5, 5000000)
        on conflict (name) do nothing;
    end if;
    return dever.send_under(
        v_queue, outbox_enqueue.payload, outbox_enqueue.key, null, null, null,
        outbox_enqueue.max_attempts
    );
end
$$;

comment on function dever.outbox_enqueue(text, jsonb, text, integer) is
'Puts a message into an outbox in the caller''s transaction and returns its id';

-- 90_views.sql

-- Views: what everybody sees of a job, and the state of the house. Each is of bounded cost.
--
-- jobs is two plain scans without a join, so that "the last 20 ids", one id, or one (target, key) is an
-- index scan however many rows there are. Counts stop at 10,000. A payload is shown only to those who
-- may work or administer.

create view dever.jobs as
select
    j.id,
    (select q.name from dever.queue as q where q.id = j.queue_id) as queue,
    j.target,
    j.key,
    case
        when j.run_at = 'infinity' then 'blocked'
        when j.lease_until > dever.clock() then 'running'
        when j.run_at > dever.clock() then 'scheduled'
        else 'ready'
    end as state,
    j.attempt,
    j.max_attempts,
    coalesce(j.due_at, j.run_at) as run_at,
    j.created_at,
    j.lease_until,
    j.worker,
    j.token,
    (select c.fingerprint from dever.contract as c where c.id = j.contract_id) as fingerprint,
    j.expires_at,
    null::timestamptz as finished_at,
    j.reason,
    j.error,
    case when dever.may_see_payload() then j.payload end as payload
from dever.job as j
union all
select
    f.id,
    (select q.name from dever.queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    f.run_at,
    f.created_at,
    null::timestamptz as lease_until,
    f.worker,
    f.token,
    (select c.fingerprint from dever.contract as c where c.id = f.contract_id) as fingerprint,
    f.expires_at,
    f.finished_at,
    f.reason,
    f.error,
    case when dever.may_see_payload() then f.payload end as payload
from dever.finished as f;

comment on view dever.jobs is
'Every job and message, unfinished and finished; state is scheduled, ready, running, blocked,
succeeded, dead or cancelled';

create view dever.dead as
select
    f.id,
    (select q.name from dever.queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    f.run_at,
    f.created_at,
    null::timestamptz as lease_until,
    f.worker,
    f.token,
    (select c.fingerprint from dever.contract as c where c.id = f.contract_id) as fingerprint,
    f.expires_at,
    f.finished_at,
    f.reason,
    f.error,
    case when dever.may_see_payload() then f.payload end as payload
from dever.finished as f
where f.outcome = 'dead';

comment on view dever.dead is 'Dead jobs and messages; newest ids first is a walk along an index of their own';

create view dever.blocked as
select
    b.id,
    (select q.name from dever.queue as q where q.id = b.queue_id) as queue,
    b.target,
    b.key,
    'blocked'::text as state,
    b.attempt,
    b.max_attempts,
    coalesce(b.due_at, b.run_at) as run_at,
    b.created_at,
    b.lease_until,
    b.worker,
    b.token,
    (select c.fingerprint from dever.contract as c where c.id = b.contract_id) as fingerprint,
    b.expires_at,
    null::timestamptz as finished_at,
    b.reason,
    b.error,
    case when dever.may_see_payload() then b.payload end as payload
from dever.job as b
where b.run_at = 'infinity';

comment on view dever.blocked is 'Blocked jobs; newest ids first is a walk along an index of their own';

-- The oldest due rows of a queue, at most 10,001: what the counts below are taken from. Like
-- dever.later_counts a function, because only a function can pin the plan: with statistics from when
-- the tables were empty a view sorts a million rows to find the first ten thousand.
create function dever.oldest_due(queue_id bigint)
returns table (run_at timestamptz, lease_until timestamptz, worker text)
language plpgsql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    return query
    select j.run_at, j.lease_until, j.worker
    from dever.job as j
    where j.queue_id = oldest_due.queue_id and j.queue_id > 0 and j.run_at <= v_now
    order by j.queue_id, j.run_at, j.id
    limit 10001;
end
$$;

comment on function dever.oldest_due(bigint) is 'The 10,001 oldest due rows of a queue, leased ones included';

-- How many rows of a queue are not due yet, blocked, or dead; each count stops at 10,001.
create function dever.later_counts(queue_id bigint, out scheduled bigint, out blocked bigint, out dead bigint)
language plpgsql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := dever.clock();
begin
    scheduled := (
        select pg_catalog.count(*)
        from (
            select
            from dever.job as j
            where j.queue_id = later_counts.queue_id
                and j.queue_id > 0
                and j.run_at > v_now
                and j.run_at < 'infinity'
            order by j.queue_id, j.run_at, j.id
            limit 10001
        ) as h
    );
    blocked := (
        select pg_catalog.count(*)
        from (
            select
            from dever.job as j
            where j.queue_id = later_counts.queue_id
                and j.queue_id > 0
                and j.run_at = 'infinity'
            order by j.queue_id, j.run_at, j.id
            limit 10001
        ) as h
    );
    dead := (
        select pg_catalog.count(*)
        from (
            select
            from dever.finished as f
            where f.queue_id = later_counts.queue_id and f.outcome = 'dead'
            order by f.queue_id, f.outcome, f.finished_at
            limit 10001
        ) as h
    );
end
$$;

comment on function dever.later_counts(bigint) is
'Scheduled, blocked and dead rows of a queue, each counted to 10,001 at most';

create view dever.queues as
select
    q.name as queue,
    q.paused,
    least(d.ready, 10000) as ready,
    least(l.scheduled, 10000) as scheduled,
    least(d.running, 10000) as running,
    least(l.blocked, 10000) as blocked,
    least(l.dead, 10000) as dead,
    d.examined <= 10000 and l.scheduled <= 10000 and l.blocked <= 10000 and l.dead <= 10000 as exact,
    extract(epoch from dever.clock() - d.oldest_ready)::double precision as oldest_ready_seconds,
    dever.as_interval(q.visibility_us) as visibility,
    q.max_attempts,
    dever.as_interval(q.backoff_base_us) as backoff_base,
    dever.as_interval(q.backoff_max_us) as backoff_max,
    dever.as_interval(q.keep_succeeded_us) as keep_succeeded,
    dever.as_interval(q.keep_dead_us) as keep_dead,
    dever.as_interval(q.keep_cancelled_us) as keep_cancelled,
    dever.as_interval(q.block_after_us) as block_after
from dever.queue as q
cross join lateral (
    -- One look at the oldest due rows counts both ready and running.
    select
        pg_catalog.count(*) as examined,
        pg_catalog.count(*) filter (where not h.leased) as ready,
        pg_catalog.count(*) filter (where h.leased) as running,
        pg_catalog.min(h.run_at) filter (where not h.leased) as oldest_ready
    from (
        select j.run_at, coalesce(j.lease_until > dever.clock(), false) as leased
        from dever.oldest_due(q.id) as j
    ) as h
) as d
cross join lateral dever.later_counts(q.id) as l;

comment on view dever.queues is
'Depth, age and settings of every queue; counts are exact up to 10,000, beyond that exact is false';

create view dever.workers as
with leased as (
    select h.worker, pg_catalog.count(*) as jobs
    from dever.queue as q
    cross join lateral dever.oldest_due(q.id) as h
    where h.lease_until > dever.clock()
    group by h.worker
)
select
    w.name as worker,
    w.about ->> 'host' as host,
    w.about ->> 'pid' as pid,
    w.about ->> 'version' as version,
    w.started_at,
    w.alive_until,
    coalesce(l.jobs, 0) as jobs
from dever.worker as w
left join leased as l on l.worker = w.name
where w.left_at is null;

comment on view dever.workers is
'Workers that have not left: live while alive_until is in the future, lapsed otherwise; jobs is what
each runs now, among the 10,000 oldest due rows of each queue';

-- 92_operate.sql

-- Operate: settings of queues, and what an operator does with jobs.

create function dever.get_job(id bigint)
returns setof dever.jobs
language sql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    -- Invoker, so that the view decides by the caller's role whether the payload is shown.
    select j.* from dever.jobs as j where j.id = get_job.id
$$;

comment on function dever.get_job(bigint) is 'One job or message with its resolved settings, or no row';

create function dever.version()
returns text
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select i.version from dever.installation as i
$$;

comment on function dever.version() is 'The installed version of the schema';

create function dever.protocol(out min integer, out max integer)
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select i.protocol_min, i.protocol_max from dever.installation as i
$$;

comment on function dever.protocol() is 'The range of client protocols that this schema serves';

create function dever.installation_id()
returns uuid
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select i.id from dever.installation as i
$$;

comment on function dever.installation_id() is
'The identity of this installation; clients compare it before they join a caller''s transaction';

-- Creates or changes a queue; null leaves a value as it is. Rows already sent keep what was stamped on
-- them. keep_*: 0 keeps nothing, 36,500 days keep for ever. One short transaction. Raises DV001, DV002,
-- DV007.
create function dever.configure_queue(
    queue text,
    visibility interval default null,
    max_attempts integer default null,
    backoff_base interval default null,
    backoff_max interval default null,
    keep_succeeded interval default null,
    keep_dead interval default null,
    keep_cancelled interval default null,
    block_after interval default null
)
returns setof dever.queues
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_visibility bigint := dever.positive_microseconds(configure_queue.visibility, 'visibility');
    v_backoff_base bigint := dever.positive_microseconds(configure_queue.backoff_base, 'backoff_base');
    v_backoff_max bigint := dever.positive_microseconds(configure_queue.backoff_max, 'backoff_max');
    v_keep_succeeded bigint := dever.microseconds(configure_queue.keep_succeeded, 'keep_succeeded');
    v_keep_dead bigint := dever.microseconds(configure_queue.keep_dead, 'keep_dead');
    v_keep_cancelled bigint := dever.microseconds(configure_queue.keep_cancelled, 'keep_cancelled');
    v_block_after bigint := dever.positive_microseconds(configure_queue.block_after, 'block_after');
    v_queue dever.queue;
begin
    if configure_queue.max_attempts < 1 then
        raise exception using
            errcode = 'DV007',
            message = 'max_attempts is below 1',
            hint = 'it is the total number of deliveries, the first included';
    end if;
    if least(v_keep_succeeded, v_keep_dead, v_keep_cancelled) < 0 then
        raise exception using
            errcode = 'DV007',
            message = 'a time to keep finished jobs is negative',
            hint = 'give 0 to keep none, 36,500 days to keep them for ever';
    end if;
    perform dever.queue_for(dever.check_name(configure_queue.queue, 'queue'));
    update dever.queue as q
    set
        visibility_us = coalesce(v_visibility, q.visibility_us),
        max_attempts = coalesce(configure_queue.max_attempts, q.max_attempts),
        backoff_base_us = coalesce(v_backoff_base, q.backoff_base_us),
        backoff_max_us = coalesce(v_backoff_max, q.backoff_max_us),
        keep_succeeded_us = coalesce(v_keep_succeeded, q.keep_succeeded_us),
        keep_dead_us = coalesce(v_keep_dead, q.keep_dead_us),
        keep_cancelled_us = coalesce(v_keep_cancelled, q.keep_cancelled_us),
        block_after_us = coalesce(v_block_after, q.block_after_us)
    where q.name = configure_queue.queue
    returning q.* into v_queue;
    if v_queue.backoff_base_us > v_queue.backoff_max_us then
        raise exception using
            errcode = 'DV007',
            message = 'backoff_base is longer than backoff_max',
            hint = 'raise backoff_max too';
    end if;
    return query select v.* from dever.queues as v where v.queue = configure_queue.queue;
end
$$;

comment on function dever.configure_queue(
    text, interval, integer, interval, interval, interval, interval, interval, interval
) is 'Creates or changes a queue and returns its row of dever.queues; null leaves a value as it is';

-- Nothing of the queue is claimed until it is resumed; running jobs go on. False: no such queue.
create function dever.pause_queue(queue text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.check_name(pause_queue.queue, 'queue');
    update dever.queue as q set paused = true where q.name = pause_queue.queue;
    return found;
end
$$;

comment on function dever.pause_queue(text) is 'Stops claims from a queue; false when there is no such queue';

create function dever.resume_queue(queue text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_queue_id bigint;
begin
    perform dever.check_name(resume_queue.queue, 'queue');
    update dever.queue as q set paused = false where q.name = resume_queue.queue
    returning q.id into v_queue_id;
    if not found then
        return false;
    end if;
    perform dever.wake(v_queue_id);
    return true;
end
$$;

comment on function dever.resume_queue(text) is 'Lets a paused queue be claimed again; false when there is no such queue';

-- Cancels unfinished jobs; a running one loses its lease, its late result is refused. One short
-- transaction; waits for rows that others hold, in id order. outcome: cancelled, finished, not_found.
create function dever.cancel(ids bigint[])
returns table (id bigint, outcome text)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_ids bigint[];
    v_places tid[];
begin
    perform dever.check_lengths(coalesce(pg_catalog.cardinality(cancel.ids), 0), '{}');
    select coalesce(pg_catalog.array_agg(l.id), '{}'), coalesce(pg_catalog.array_agg(l.place), '{}')
    into v_ids, v_places
    from (
        select j.id, j.place
        from (select distinct u.id from pg_catalog.unnest(cancel.ids) as u (id) order by u.id) as u
        cross join lateral (
            select i.id, i.ctid as place from dever.job as i where i.id = u.id for update
        ) as j
    ) as l;
    perform dever.move_to_finished(
        v_places,
        'cancelled',
        pg_catalog.array_fill('cancelled'::text, array[pg_catalog.cardinality(v_places)]),
        null
    );
    return query
    select
        i.id,
        case
            when i.id = any (v_ids) then 'cancelled'
            when exists (select from dever.finished as f where f.id = i.id) then 'finished'
            else 'not_found'
        end
    from dever.verdicts(cancel.ids, v_ids, '{}') as i;
end
$$;

comment on function dever.cancel(bigint[]) is 'Cancels unfinished jobs; outcome per id: cancelled, finished, not_found';

-- Dead and blocked jobs become pending again: same id, due now, attempts from zero, no expiry. A dead
-- one whose key is in use again is reported and stays; the others go on. One short transaction; waits
-- for rows that others hold, in id order. outcome: pending, key_in_use, not_found.
create function dever.redrive(ids bigint[])
returns table (id bigint, outcome text)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_ids bigint[];
    v_blocked bigint[];
    v_dead bigint[];
    v_revived bigint[];
    v_queue_id bigint;
begin
    perform dever.check_lengths(coalesce(pg_catalog.cardinality(redrive.ids), 0), '{}');
    v_ids := array(select distinct u.id from pg_catalog.unnest(redrive.ids) as u (id) order by u.id);
    v_blocked := array(
        select j.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.job as i where i.id = u.id and i.run_at = 'infinity' for update
        ) as j
    );
    v_dead := array(
        select f.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.finished as i where i.id = u.id and i.outcome = 'dead' for update
        ) as f
    );
    v_now := dever.clock();
    update dever.job as j
    set run_at = v_now, due_at = null, attempt = 0, expires_at = null, reason = null, error = null
    where j.id = any (v_blocked);

    with revived as (
        insert into dever.job (
            id, queue_id, run_at, token, attempt, max_attempts, contract_id, visibility_us,
            backoff_base_us, backoff_max_us, backoff_jitter, created_at, target, key, payload
        )
        overriding system value
        select
            f.id, f.queue_id, v_now, f.token, 0, f.max_attempts, f.contract_id, f.visibility_us,
            f.backoff_base_us, f.backoff_max_us, f.backoff_jitter, f.created_at, f.target, f.key, f.payload
        from dever.finished as f
        where f.id = any (v_dead)
        order by f.target, f.key, f.id
        on conflict do nothing
        returning id
    )
    select pg_catalog.array_agg(r.id) into v_revived from revived as r;
    delete from dever.finished as f where f.id = any (v_revived);

    for v_queue_id in
        select distinct j.queue_id from dever.job as j
        where j.id = any (v_blocked || v_revived)
    loop
        perform dever.wake(v_queue_id);
    end loop;
    return query
    select
        i.id,
        case
            when i.ok then 'pending'
            when i.id = any (v_dead) then 'key_in_use'
            else 'not_found'
        end
    from dever.verdicts(redrive.ids, v_blocked || v_revived, '{}') as i;
end
$$;

comment on function dever.redrive(bigint[]) is
'Runs dead and blocked jobs again; outcome per id: pending, key_in_use, not_found';

-- Removes dead and blocked jobs for good. One short transaction; waits for rows that others hold, in id
-- order. outcome: dropped, not_found.
create function dever.drop_jobs(ids bigint[])
returns table (id bigint, outcome text)
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_ids bigint[];
    v_blocked bigint[];
    v_dead bigint[];
begin
    perform dever.check_lengths(coalesce(pg_catalog.cardinality(drop_jobs.ids), 0), '{}');
    v_ids := array(select distinct u.id from pg_catalog.unnest(drop_jobs.ids) as u (id) order by u.id);
    v_blocked := array(
        select j.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.job as i where i.id = u.id and i.run_at = 'infinity' for update
        ) as j
    );
    v_dead := array(
        select f.id
        from pg_catalog.unnest(v_ids) as u (id)
        cross join lateral (
            select i.id from dever.finished as i where i.id = u.id and i.outcome = 'dead' for update
        ) as f
    );
    delete from dever.job as j where j.id = any (v_blocked);
    delete from dever.finished as f where f.id = any (v_dead);
    return query
    select i.id, case when i.ok then 'dropped' else 'not_found' end
    from dever.verdicts(drop_jobs.ids, v_blocked || v_dead, '{}') as i;
end
$$;

comment on function dever.drop_jobs(bigint[]) is 'Removes dead and blocked jobs; outcome per id: dropped, not_found';

-- 94_previous_release.sql

-- What calls of version 0.1.0 that are under way while an upgrade commits may still call: they go on with
-- the text they began with. Nothing of this version calls it, and 0.2.0 left nothing that would be needed
-- here; it stays because one deploy may go from 0.1.0 over 0.2.0 to this version.

create function dever.check_key(key text)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.check_keys(array[check_key.key]);
    return check_key.key;
end
$$;

comment on function dever.check_key(text) is 'For calls of 0.1.0 under way during an upgrade: dever.check_keys';

create function dever.hold(ids bigint[], tokens bigint[], out held bigint[], out busy bigint[])
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    select l.held, l.busy
    into held, busy
    from dever.lock_claims(hold.ids, hold.tokens) as l;
end
$$;

comment on function dever.hold(bigint[], bigint[]) is
'For calls of 0.1.0 under way during an upgrade: dever.lock_claims';

create function dever.finish(ids bigint[], outcome text, reasons text[], errors text[])
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
    perform dever.move_to_finished(
        pg_catalog.array_agg(j.place),
        finish.outcome,
        case when finish.reasons is not null then pg_catalog.array_agg(u.reason) end,
        pg_catalog.array_agg(u.error)
    )
    from rows from (
        pg_catalog.unnest(finish.ids),
        pg_catalog.unnest(finish.reasons),
        pg_catalog.unnest(finish.errors)
    ) as u (id, reason, error)
    cross join lateral (
        select i.ctid as place from dever.job as i where i.id = u.id limit 1
    ) as j;
end
$$;

comment on function dever.finish(bigint[], text, text[], text[]) is
'For calls of 0.1.0 under way during an upgrade: dever.move_to_finished';

-- 95_rights.sql

-- Rights: nothing for PUBLIC. sql/roles.sql grants the four optional roles their share.

revoke all on schema dever from public;
revoke all on all tables in schema dever from public;
revoke all on all sequences in schema dever from public;
revoke all on all functions in schema dever from public;

-- 99_installation.sql

-- The version row, last: an install that did not get here installed nothing.

insert into dever.installation (version, protocol_min, protocol_max)
values ('0.3.0', 1, 1);

-- As an extension, pg_dump must be told which tables hold user data. The rows that this script itself
-- inserts (installation, sweep_cursor) are not dumped: a restore runs this script again.
do $$
declare
    v_relation text;
begin
    if exists (select from pg_catalog.pg_extension as e where e.extname = 'dever') then
        foreach v_relation in array array[
            'dever.queue', 'dever.queue_id_seq',
            'dever.contract', 'dever.contract_id_seq',
            'dever.policy', 'dever.policy_id_seq',
            'dever.worker', 'dever.worker_policy',
            'dever.token_seq',
            'dever.job', 'dever.job_id_seq',
            'dever.finished',
            'dever.schedule', 'dever.lock'
        ] loop
            perform pg_catalog.pg_extension_config_dump(v_relation::pg_catalog.regclass, '');
        end loop;
    end if;
end
$$;
