-- Dever SQL: durable background jobs and UTC cron inside SQLite.
--
-- The same engine as sql/src/10_schema.sql, file for file and name for name. A map of the whole, in
-- the order a job meets it:
--   contract   what a program promises about a job: its target and the schema of its payload
--   policy     how it wants the job run: queue, attempts, timeout, backoff, cron (immutable rows)
--   enqueue    20_names, 40_contract, 45_payload, 50_enqueue: check, deduplicate by (target, key)
--   claim      60_claim: lease due rows to one worker, each with a fresh fencing token
--   finish     70_finish: renew, complete, retry, bury, block, release; stale tokens change nothing
--   sweep      75_sweep: what no claim may touch: exhausted, expired, unrunnable, old history
--   schedule   80_schedule: fire each window of a schedule once
--   operate    77_operate, 90_views
--
-- Differs by necessity, everywhere:
-- - SQLite has no stored functions. A check that several verbs share is a view without rows whose
--   trigger raises, so `insert into dever_check_key (key) values (...)` reads like a call. A verb is
--   one to five named statements (`-- name: ...`, below the definitions of its file) that the Python
--   engine runs in order inside one BEGIN IMMEDIATE transaction; lists arrive as JSON arrays.
-- - The schema is a prefix: dever.job is dever_job. Only dever_enqueue, dever_send,
--   dever_outbox_enqueue and the views of 90_views are for clients.
-- - One writer at a time replaces row locks: nothing is ever busy.
-- - Instants and durations are integer microseconds; 9223372036854775807 is infinity.
--
-- House rules: no feature newer than SQLite 3.40, time is read through dever_clock alone, and the
-- whole file is one transaction of the caller, run statement by statement.

-- The only clock of the engine. A test replaces the view. Differs by necessity: a view and not a
-- function, so that triggers fired from a bare sqlite3 shell share it; it counts in milliseconds.
create view dever_clock (now) as
select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000;

-- One row: which version is installed, which protocols it speaks, and the identity of this
-- installation.
create table dever_installation (
    one integer not null primary key default 1 check (one = 1),
    id text not null,
    version text not null,
    protocol_min integer not null,
    protocol_max integer not null,
    installed_at integer not null,
    upgraded_at integer not null
) strict;

-- A named line of work and its defaults; created at first use, never deleted. Durations in
-- microseconds.
create table dever_queue (
    id integer not null primary key autoincrement,
    name text not null,
    paused integer not null default 0 check (paused in (0, 1)),
    visibility_us integer not null default 300000000,
    max_attempts integer not null default 3,
    backoff_base_us integer not null default 5000000,
    backoff_max_us integer not null default 3600000000,
    keep_succeeded_us integer not null default 86400000000,
    keep_dead_us integer not null default 2592000000000,
    keep_cancelled_us integer not null default 86400000000,
    block_after_us integer not null default 600000000,
    created_at integer not null,
    constraint queue_name_key unique (name)
) strict;

-- What can run a job: a target and the fingerprint of its payload schema. Inserted, never updated.
create table dever_contract (
    id integer not null primary key autoincrement,
    target text not null,
    fingerprint text not null,
    wire_schema text not null,
    created_at integer not null,
    constraint contract_target_fingerprint_key unique (target, fingerprint)
) strict;

-- The wire schema of a contract, one row a node, so that a payload can be checked by joins. Filled
-- by a trigger of 40_contract. `optional` nodes are folded into `nullable`. The root has parent -1
-- and name ''; a list's item has name ''; a record's fields have their name and position. fields:
-- how many a record has; label: the name of a record or an enum; allowed: the values of an enum.
create table dever_schema_node (
    contract_id integer not null,
    parent integer not null,
    name text not null,
    id integer not null,
    position integer not null,
    kind text not null,
    nullable integer not null,
    fields integer not null,
    label text not null,
    allowed text,
    constraint schema_node_pkey primary key (contract_id, parent, name),
    constraint schema_node_contract_fkey foreign key (contract_id) references dever_contract (id)
) strict, without rowid;

-- How a program wants a contract run: queue, attempts, timeout, backoff, cron. Inserted, never
-- updated; which one is in force is computed (40_contract), so no flag can flap during a deploy.
create table dever_policy (
    id integer not null primary key autoincrement,
    contract_id integer not null,
    target text not null,
    queue_id integer not null,
    max_attempts integer not null,
    timeout_us integer not null,
    backoff_base_us integer not null,
    backoff_max_us integer not null,
    backoff_jitter real not null default 0,
    schedule_spec text,
    schedule_missed text,
    created_at integer not null,
    constraint policy_contract_fkey foreign key (contract_id) references dever_contract (id)
) strict;

-- Differs by necessity: there is no `nulls not distinct`.
create unique index dever_policy_key on dever_policy (
    target, contract_id, queue_id, max_attempts, timeout_us, backoff_base_us, backoff_max_us,
    backoff_jitter, coalesce(schedule_spec, ''), coalesce(schedule_missed, '')
);

-- Processes that registered as workers; live while alive_until is in the future. A row outlives its
-- process for a day, so that sweep knows since when nobody runs a contract.
create table dever_worker (
    name text not null primary key,
    about text not null default '{}',
    started_at integer not null,
    alive_until integer not null,
    left_at integer
) strict, without rowid;

-- Which policies, and through them which contracts, a worker runs.
create table dever_worker_policy (
    policy_id integer not null,
    worker text not null,
    constraint worker_policy_pkey primary key (policy_id, worker),
    constraint worker_policy_policy_fkey foreign key (policy_id) references dever_policy (id),
    constraint worker_policy_worker_fkey foreign key (worker) references dever_worker (name)
    on delete cascade
) strict, without rowid;

create index dever_worker_policy_worker_idx on dever_worker_policy (worker);

-- Fencing tokens: one per claim, so a later claim always carries a larger token.
create table dever_sequence (
    name text not null primary key,
    value integer not null
) strict, without rowid;

insert into dever_sequence (name, value) values ('token', 0);

-- Unfinished work. target and contract_id null: a message. run_at infinity: blocked, due_at keeps its
-- instant. reason and error: of the last failure, or why it is blocked. Columns that a claim or a
-- renewal changes are in no index, on purpose.
create table dever_job (
    id integer not null primary key autoincrement,
    queue_id integer not null,
    run_at integer not null,
    lease_until integer,
    token integer not null default 0,
    attempt integer not null default 0,
    max_attempts integer not null,
    contract_id integer,
    visibility_us integer not null,
    backoff_base_us integer not null,
    backoff_max_us integer not null,
    backoff_jitter real not null default 0,
    expires_at integer,
    due_at integer,
    created_at integer not null,
    target text,
    key text,
    worker text,
    reason text,
    error text,
    payload text not null
) strict;

-- Differs by necessity: every index of SQLite ends in the rowid, which is id.
create index dever_job_claim_idx on dever_job (queue_id, run_at);

-- Two keys, because a job's key is unique under its target and a message's under its queue. Their
-- predicates name no state: a key is taken for as long as the row is here.
create unique index dever_job_target_key_key on dever_job (target, key) where target is not null;

create unique index dever_job_queue_key_key on dever_job (queue_id, key)
where target is null and key is not null;

-- For listing alone; empty in a healthy database. Its predicate reads what a claim does not change.
create index dever_job_blocked_idx on dever_job (id) where run_at = 9223372036854775807;

-- What is left of finished work until sweep prunes it.
create table dever_finished (
    id integer not null primary key,
    queue_id integer not null,
    outcome text not null check (outcome in ('succeeded', 'dead', 'cancelled')),
    finished_at integer not null,
    attempt integer not null,
    max_attempts integer not null,
    token integer not null,
    contract_id integer,
    visibility_us integer not null,
    backoff_base_us integer not null,
    backoff_max_us integer not null,
    backoff_jitter real not null,
    expires_at integer,
    run_at integer not null,
    created_at integer not null,
    target text,
    key text,
    worker text,
    reason text,
    error text,
    payload text not null
) strict;

create index dever_finished_outcome_idx on dever_finished (queue_id, outcome, finished_at);

create index dever_finished_target_key_idx on dever_finished (target, key)
where target is not null;

create index dever_finished_dead_idx on dever_finished (id) where outcome = 'dead';

-- One row: the last job that sweep examined.
create table dever_sweep_cursor (
    one integer not null primary key default 1 check (one = 1),
    queue_id integer not null,
    run_at integer not null,
    job_id integer not null
) strict;

insert into dever_sweep_cursor (queue_id, run_at, job_id) values (0, -9223372036854775808, 0);

-- name: clock
select now from dever_clock;

-- name: installation_table
select count(*) from sqlite_master where type = 'table' and name = 'dever_installation';

-- Which database this is: the identity of the installation, and the file, because a copy has the same.

-- name: installation
select
    i.id || ' ' || (select d.file from pragma_database_list as d where d.name = 'main') as identity,
    i.version,
    i.protocol_min,
    i.protocol_max
from dever_installation as i;
