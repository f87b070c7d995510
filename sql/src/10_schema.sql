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
