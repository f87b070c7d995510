-- Dever SQL 0.3.0. Built by scripts/build-sql; do not edit.

-- 10_schema.sql

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

-- 20_names.sql

-- Names, keys, durations, instants: one check each, used by every verb before anything is stored.

-- Raises with a text made at run time. Differs by necessity: before SQLite 3.47 raise() takes only a
-- literal, so the text goes out as a broken JSON path, which the error quotes whole. Verbs that a
-- shell reaches use raise(abort, '...') wherever the text is fixed.
create view dever_raise (message) as
select null
where false;

create trigger dever_raise_call
instead of insert on dever_raise
when new.message is not null
begin
    select json_extract('{}', new.message);
    -- Never reached; tells SQLite that the statement may abort and has to be undone.
    select raise(abort, 'DV007 InvalidArgument: refused');
end;

-- Raises DV001, DV002. The one rule for names of queues, schedules, locks, outboxes and workers.
create view dever_check_name (name) as
select null
where false;

create trigger dever_check_name_call
instead of insert on dever_check_name
begin
    select case
        when new.name is null or trim(new.name, char(32, 9, 10, 13, 12, 11)) = ''
            then raise(abort, 'DV001 InvalidName: the name is empty
hint: give a name of 1 to 255 bytes that is not only whitespace')
        when typeof(new.name) <> 'text'
            then raise(abort, 'DV001 InvalidName: the name is not text')
        when length(cast(new.name as blob)) > 255
            then raise(abort, 'DV001 InvalidName: the name is longer than 255 bytes
hint: give a name of 1 to 255 bytes')
        when instr(new.name, char(0)) > 0
            then raise(abort, 'DV001 InvalidName: the name contains U+0000')
        when substr(new.name, 1, 8) = '__dever_'
            then raise(abort, 'DV002 ReservedName: the name starts with __dever_, which is reserved
hint: names that start with __dever_ belong to Dever SQL, choose another one')
    end;
end;

-- Raises DV006, DV002. The one rule for idempotency keys, of jobs and of messages.
create view dever_check_key (key) as
select null
where false;

create trigger dever_check_key_call
instead of insert on dever_check_key
begin
    select case
        when new.key is null or trim(new.key, char(32, 9, 10, 13, 12, 11)) = ''
            then raise(abort, 'DV006 InvalidKey: the idempotency key is missing or blank
hint: name the business event, for example receipt:7')
        when typeof(new.key) <> 'text'
            then raise(abort, 'DV006 InvalidKey: the idempotency key is not text')
        when length(cast(new.key as blob)) > 1024
            then raise(abort, 'DV006 InvalidKey: the idempotency key is longer than 1024 bytes
hint: give a key of 1 to 1024 bytes')
        when instr(new.key, char(0)) > 0
            then raise(abort, 'DV006 InvalidKey: the idempotency key contains U+0000')
        when substr(new.key, 1, 8) = '__dever_'
            then raise(abort, 'DV002 ReservedName: the idempotency key starts with __dever_, which is reserved
hint: keys that start with __dever_ belong to Dever SQL, choose another one')
    end;
end;

-- Raises DV007. Microseconds; null is fine. positive: whether it must be above zero.
create view dever_check_duration (duration_us, what, positive) as
select null, null, null
where false;

create trigger dever_check_duration_call
instead of insert on dever_check_duration
begin
    insert into dever_raise (message)
    values (
        case
            when abs(new.duration_us) > 36500 * 86400000000
                then 'DV007 InvalidArgument: ' || new.what || ' is longer than 36,500 days
hint: give a shorter duration'
            when new.positive and new.duration_us <= 0
                then 'DV007 InvalidArgument: ' || new.what || ' is not positive
hint: give a duration above zero'
        end
    );
end;

-- Raises DV007. Null is fine. Text: RFC 3339 with seconds, up to six decimals and a zone; read
-- by its form and a round trip through a number, because the date functions of SQLite accept 30
-- February and 24:00.
create view dever_check_run_at (run_at) as
select null
where false;

create trigger dever_check_run_at_call
instead of insert on dever_check_run_at
begin
    select raise(abort, 'DV007 InvalidArgument: run_at is not an RFC 3339 instant
hint: write it like 2027-01-31T08:30:00Z')
    from (
        select
            substr(new.run_at, 1, 19) as second,
            case when upper(substr(new.run_at, -1)) = 'Z' then 'Z' else substr(new.run_at, -6) end as zone
    ) as part
    where typeof(new.run_at) not in ('integer', 'null')
        and not coalesce(
            typeof(new.run_at) = 'text'
            and instr(new.run_at, char(0)) = 0
            and part.second
            glob '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9][Tt][0-2][0-9]:[0-5][0-9]:[0-5][0-9]'
            and strftime('%Y-%m-%dT%H:%M:%S', unixepoch(upper(part.second)), 'unixepoch')
            = upper(part.second)
            -- No zone is further off than 14 hours, and SQLite reads none that is.
            and unixepoch(upper(part.second) || part.zone) is not null
            and (
                part.zone = 'Z'
                or part.zone glob '[-+][0-1][0-9]:[0-5][0-9]'
                or part.zone glob '[-+]2[0-3]:[0-5][0-9]'
            )
            and (
                length(new.run_at) = 19 + length(part.zone)
                or (
                    substr(new.run_at, 20, 1) = '.'
                    and length(new.run_at) - 20 - length(part.zone) between 1 and 6
                    and substr(new.run_at, 21, length(new.run_at) - 20 - length(part.zone))
                    not glob '*[^0-9]*'
                )
            ),
            false
        );
    select raise(abort, 'DV007 InvalidArgument: run_at is outside the years 1 to 9999
hint: give an instant between 0001-01-01 and 9999-12-31 (UTC)')
    where new.run_at is not null
        and not case
            when typeof(new.run_at) = 'integer' then new.run_at
            when upper(substr(new.run_at, -1)) = 'Z'
                then unixepoch(upper(substr(new.run_at, 1, 19))) * 1000000
            else
                unixepoch(upper(substr(new.run_at, 1, 19)) || substr(new.run_at, -6)) * 1000000
        end between -62135596800000000 and 253402300799999999;
end;

-- Raises DV007 when the lists that run beside each other have unequal lengths or are too long.
create view dever_check_lengths (expected, actual) as
select null, null
where false;

create trigger dever_check_lengths_call
instead of insert on dever_check_lengths
begin
    insert into dever_raise (message)
    values (
        case
            when new.actual <> new.expected
                then format(
                    'DV007 InvalidArgument: the arrays have unequal lengths: %d and %d
hint: give one element per item in every array', new.expected, new.actual
                )
            when new.expected > 100000
                then format(
                    'DV007 InvalidArgument: %d items in one call
hint: send at most 100,000 items a call', new.expected
                )
        end
    );
end;

-- 30_queue.sql

-- Queues: created at first use with the defaults of the table, and never deleted.

-- Inserts the queue when it is new; expects a checked name. Differs by necessity: nothing wakes
-- sleeping workers here; they notice the commit by themselves (dever_sql/sqlite.py).
create view dever_queue_for (name) as
select null
where false;

create trigger dever_queue_for_call
instead of insert on dever_queue_for
begin
    insert into dever_queue (name, created_at)
    select new.name, c.now
    from dever_clock as c
    where not exists (select 1 from dever_queue as q where q.name = new.name);
end;

-- 40_contract.sql

-- Contracts and policies: what programs declared, which of it is in force, and who can run it.

-- Policies that a live worker declares.
create view dever_live_policy (policy_id) as
select wp.policy_id
from dever_worker_policy as wp
inner join dever_worker as w on w.name = wp.worker
where w.alive_until > (select c.now from dever_clock as c);

-- The policy in force of a target: the newest that a live worker runs, else the newest. Computed
-- afresh each time, so no flag flaps while old and new processes restart in any order.
create view dever_current_policy as
select p.*
from dever_policy as p
where p.id = (
    select q.id
    from dever_policy as q
    where q.target = p.target
    order by exists (select 1 from dever_live_policy as l where l.policy_id = q.id) desc, q.id desc
    limit 1
);

-- The same among the policies of one contract, for clients that encoded against its schema.
create view dever_current_policy_as as
select p.*, k.fingerprint
from dever_policy as p
inner join dever_contract as k on k.id = p.contract_id
where p.id = (
    select q.id
    from dever_policy as q
    where q.target = p.target and q.contract_id = p.contract_id
    order by exists (select 1 from dever_live_policy as l where l.policy_id = q.id) desc, q.id desc
    limit 1
);

-- Flattens the wire schema (docs/wire.md) for 45_payload. A node of kind optional lends its place
-- to its item; the place of a node is the field of a record, the item of a list, or the root.
create trigger dever_contract_insert
after insert on dever_contract
begin
    insert into dever_schema_node (
        contract_id, parent, name, id, position, kind, nullable, fields, label, allowed
    )
    select
        new.id,
        coalesce(record.id, list.id, -1),
        coalesce(field.value ->> 'name', ''),
        node.id,
        coalesce(field.key, 0),
        node.value ->> 'kind',
        optional.id is not null,
        coalesce(json_array_length(node.value, '$.fields'), 0),
        coalesce(node.value ->> 'name', ''),
        node.value -> 'values'
    from json_tree(new.wire_schema) as node
    left join json_tree(new.wire_schema) as optional
        on optional.id = node.parent and optional.value ->> 'kind' = 'optional'
    left join json_tree(new.wire_schema) as list
        on list.id = coalesce(optional.parent, node.parent) and list.value ->> 'kind' = 'list'
    left join json_tree(new.wire_schema) as field
        on field.id = coalesce(optional.parent, node.parent)
            and field.type = 'object' and field.value ->> 'kind' is null
    left join json_tree(new.wire_schema) as fields on fields.id = field.parent
    left join json_tree(new.wire_schema) as record on record.id = fields.parent
    where node.type = 'object' and node.value ->> 'kind' <> 'optional';
end;

-- Raises DV007 for an element of register's contracts that must not be stored.
create view dever_check_declaration (declaration) as
select null
where false;

create trigger dever_check_declaration_call
instead of insert on dever_check_declaration
begin
    insert into dever_check_name (name)
    select case n.type
        when 'null' then null
        when 'text' then n.name
        else 0
    end
    from (
        select
            coalesce(json_type(new.declaration, '$.target'), 'null') as type,
            new.declaration ->> 'target' as name
        union all
        select coalesce(json_type(new.declaration, '$.queue'), 'null'), new.declaration ->> 'queue'
    ) as n;
    insert into dever_raise (message)
    select
        'DV007 InvalidArgument: the declaration of job ' || (new.declaration ->> 'target')
        || ' is not valid: ' || f.fault || '
hint: register what the program declares, see docs/wire.md for the form'
    from (
        select case
            when instr(new.declaration ->> 'target', ':') > 0
                then 'the target contains a colon'
            when coalesce(new.declaration ->> 'fingerprint', '') = ''
                or length(new.declaration ->> 'fingerprint') > 128
                or (new.declaration ->> 'fingerprint') glob '*[^!-~]*'
                then 'fingerprint must be 1 to 128 visible ASCII characters'
            when coalesce(json_type(new.declaration, '$.schema'), '') <> 'object'
                or coalesce(json_type(new.declaration, '$.schema.kind'), '') <> 'text'
                then 'schema must be an object (a node of the wire schema)'
            when coalesce(json_type(new.declaration, '$.retry'), '') <> 'integer'
                or (new.declaration ->> 'retry') not between 1 and 100
                then 'retry must be an integer from 1 to 100'
            when coalesce(json_type(new.declaration, '$.timeout_ms'), '') <> 'integer'
                or (new.declaration ->> 'timeout_ms') not between 1 and 3600000
                then 'timeout_ms must be an integer from 1 to 3,600,000'
            when coalesce(json_type(new.declaration, '$.backoff_max_ms'), '') <> 'integer'
                or (new.declaration ->> 'backoff_max_ms') not between 1 and 86400000
                then 'backoff_max_ms must be an integer from 1 to 86,400,000'
            when coalesce(json_type(new.declaration, '$.backoff_base_ms'), '') <> 'integer'
                or (new.declaration ->> 'backoff_base_ms')
                not between 1 and (new.declaration ->> 'backoff_max_ms')
                then 'backoff_base_ms must be an integer from 1 to backoff_max_ms'
            when coalesce(json_type(new.declaration, '$.backoff_jitter'), 'integer')
                not in ('integer', 'real')
                or coalesce(new.declaration ->> 'backoff_jitter', 0) not between 0 and 1
                then 'backoff_jitter must be a number from 0 to 1'
            when coalesce(json_type(new.declaration, '$.schedule'), 'null')
                not in ('null', 'object')
                then 'schedule must be null or an object with spec and missed'
            when json_type(new.declaration, '$.schedule') = 'object'
                and new.declaration ->> '$.schedule.spec' is null
                then 'schedule.spec is missing'
            when json_type(new.declaration, '$.schedule') = 'object'
                and new.declaration ->> '$.schema.kind' is not 'null'
                then 'a job with a schedule takes no input, its schema must be of kind null'
            when coalesce(new.declaration ->> '$.schedule.missed', 'catch_up')
                not in ('catch_up', 'latest', 'skip')
                then 'schedule.missed must be catch_up, latest or skip'
        end as fault
    ) as f
    where f.fault is not null;
end;

-- register: stores what a program declares and, with a worker name, that this worker is live and
-- runs it. One transaction; updates no contract and no policy. Raises DV001, DV002, DV003, DV007
-- (specs are checked by 80_schedule before).

-- 45_payload.sql

-- The payload check: does a JSON text fit a wire schema (docs/wire.md), and if not, where and why.
--
-- Never puts a value into its text: payloads are private. Differs by necessity: the walk is one
-- query over json_tree, joined level by level to the flattened schema (dever_schema_node); json_tree
-- is read once into a materialized table, or the walk would be quadratic. The raw text is looked at
-- too, because SQLite accepts what jsonb refuses: U+0000, lone surrogates, repeated members, numbers
-- beyond 64 bits (whose json_type is integer and whose value is not) and 1e400 (infinity).

-- Raises DV005 when the payload is not JSON, or larger, deeper or more than any payload may be.
-- subject goes into the message, such as "payload of job shop.order".
create view dever_check_payload_limits (payload, subject) as
select null, null
where false;

create trigger dever_check_payload_limits_call
instead of insert on dever_check_payload_limits
begin
    insert into dever_raise (message)
    values (
        case
            when typeof(new.payload) <> 'text'
                then 'DV005 InvalidPayload: ' || new.subject || ' is not JSON text'
            when length(cast(new.payload as blob)) > 16777216
                then format(
                    'DV005 InvalidPayload: %s is too large: it is %,d bytes long, 16,777,216 (16 MiB) are the limit
hint: store the data in a table of your own and send its id',
                    new.subject, length(cast(new.payload as blob))
                )
            when instr(new.payload, char(0)) > 0 or not json_valid(new.payload)
                then 'DV005 InvalidPayload: ' || new.subject || ' is not valid JSON'
        end
    );

    -- U+0000, which PostgreSQL cannot store and SQLite cuts at. `\\` is respelt first, so that every
    -- backslash that is left begins an escape.
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' does not fit: payload'
        || replace(replace(substr(t.fullkey, 2), '"', ''), '\ue000dever-nul', '')
        || ' holds U+0000'
    from json_tree(
        replace(replace(new.payload, '\\', '\u005c'), '\u0000', '\ue000dever-nul')
    ) as t
    where instr(replace(new.payload, '\\', ''), '\u0000') > 0
        and (
            instr(t.key, char(57344) || 'dever-nul') > 0
            or (t.type = 'text' and instr(t.atom, char(57344) || 'dever-nul') > 0)
        )
    limit 1;

    -- Half of a surrogate pair, or what is no UTF-8: glob reads either as U+FFFD, and U+FFFE and
    -- U+FFFF too, so those that really stand there are taken out first.
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' does not fit: payload'
        || replace(substr(t.fullkey, 2), '"', '') || ' holds a lone surrogate'
    from (
        select t.fullkey, t.key, iif(t.type = 'text', t.atom, null) as atom
        from json_tree(new.payload) as t
        where lower(new.payload) glob '*\ud[89a-f]*'
            or new.payload glob '*' || char(65533) || '*'
    ) as t
    where replace(replace(replace(t.key, char(65533), ''), char(65534), ''), char(65535), '')
        glob '*' || char(65533) || '*'
        or replace(replace(replace(t.atom, char(65533), ''), char(65534), ''), char(65535), '')
        glob '*' || char(65533) || '*'
    limit 1;

    -- Only a text this long or with this many brackets can pass the other two limits.
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' is too large: it holds more than 65,536 values
hint: store the data in a table of your own and send its id'
    where length(new.payload) > 65536
        and (select count(*) from json_tree(new.payload) as t) > 65536;
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' is too large: it is nested more than 64 levels deep
hint: store the data in a table of your own and send its id'
    where length(new.payload) - 64
        > length(replace(replace(new.payload, '[', ''), '{', ''))
        and exists (
            with recursive
            container as materialized (
                select t.id, t.parent
                from json_tree(new.payload) as t
                where t.type in ('array', 'object')
            ),
            nested (id, depth) as (
                select t.id, 1
                from container as t
                where t.parent is null
                union all
                select t.id, n.depth + 1
                from nested as n
                inner join container as t on t.parent = n.id
                where n.depth <= 64
            )
            select 1
            from nested as n
            where n.depth > 64
        );
end;

-- Raises DV005 when a number of a free JSON value (a message) is beyond 64 bits: an integer of more
-- than the 17 digits that a float64 can need, or infinity. One below a member whose name has a quote in
-- it cannot be read back by its path, and is refused.
create view dever_check_json (payload, subject) as
select null, null
where false;

create trigger dever_check_json_call
instead of insert on dever_check_json
begin
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' holds a number outside 64 bits
hint: send large numbers as text'
    from json_tree(new.payload) as t
    where t.type in ('integer', 'real')
        and typeof(t.atom) = 'real'
        and (
            abs(t.atom) > 1.7976931348623157e308
            or (
                t.type = 'integer'
                and coalesce(length(rtrim(ltrim(new.payload -> t.fullkey, '-'), '0')), 18) > 17
            )
        )
    limit 1;
end;

-- Raises DV005 unless the payload fits the contract. item: place in a batch, null for a single call.
create view dever_check_payload (contract_id, target, payload, item) as
select null, null, null, null
where false;

create trigger dever_check_payload_call
instead of insert on dever_check_payload
begin
    insert into dever_check_payload_limits (payload, subject)
    values (
        new.payload,
        'payload of job ' || new.target || coalesce(' (item ' || new.item || ')', '')
    );
    insert into dever_raise (message)
    select
        'DV005 InvalidPayload: payload of job ' || new.target
        || coalesce(' (item ' || new.item || ')', '') || ' does not fit: payload'
        -- SQLite quotes a name with an underscore.
        || replace(
            (select substr(t.fullkey, 2) from json_tree(new.payload) as t where t.id = f.id),
            '"', ''
        )
        -- Cut: a client chose this name, and an error line should stay a line.
        || coalesce('.' || substr(f.name, 1, 100), '') || ' ' || f.fault || '
hint: send the fields that the job declares; dever_contract.wire_schema shows them'
    from (
        with recursive
        value as materialized (
            select t.id, t.parent, t.key, t.type, t.atom
            from json_tree(new.payload) as t
        ),
        -- As in dever_check_json.
        large as materialized (
            select t.id
            from json_tree(new.payload) as t
            where t.type = 'integer'
                and typeof(t.atom) = 'real'
                and coalesce(length(rtrim(ltrim(new.payload -> t.fullkey, '-'), '0')), 18) > 17
        ),
        -- Every value with its node of the schema, in the schema's order by rank; unknown members
        -- have no node. What lies below a free JSON value is walked with that node.
        walk (id, parent, key, type, atom, node, kind, nullable, label, allowed, fields, rank) as (
            select
                v.id, -1, null, v.type, v.atom, n.id, n.kind, n.nullable, n.label, n.allowed,
                n.fields, ''
            from value as v
            inner join dever_schema_node as n
                on n.contract_id = new.contract_id and n.parent = -1 and n.name = ''
            where v.parent is null
            union all
            select
                v.id, w.id, v.key, v.type, v.atom,
                iif(w.kind = 'json', w.node, n.id),
                iif(w.kind = 'json', 'json', n.kind),
                n.nullable, n.label, n.allowed, n.fields,
                w.rank || format('%06d', iif(w.kind = 'record', coalesce(n.position, 999999), v.key))
            from walk as w
            inner join value as v on v.parent = w.id
            left join dever_schema_node as n
                on n.contract_id = new.contract_id
                    and n.parent = w.node
                    and n.name = iif(w.kind = 'record', v.key, '')
            where (w.kind = 'record' and w.type = 'object')
                or (w.kind = 'list' and w.type = 'array')
                or w.kind = 'json'
        ),
        member as materialized (
            select
                w.*,
                ', got ' || case
                    when w.type in ('true', 'false') then 'boolean'
                    when w.type in ('integer', 'real') then 'number'
                    else w.type
                end as got
            from walk as w
        ),
        -- Members of records that occur, each once.
        present as materialized (
            select m.parent, m.node, min(m.id) as id, min(m.rank) as rank, count(*) as times
            from member as m
            inner join member as r on r.id = m.parent and r.kind = 'record'
            where m.node is not null
            group by m.parent, m.node
        ),
        fault (id, name, rank, fault) as (
            select m.parent, m.key, m.rank, 'is not a known field'
            from member as m
            where m.node is null
            union all
            select m.id, null, m.rank, case
                when m.type = 'null' and m.nullable then null
                when m.kind = 'json'
                    then iif(
                        typeof(m.atom) = 'real'
                        and (
                            abs(m.atom) > 1.7976931348623157e308
                            or (m.type = 'integer' and m.id in (select l.id from large as l))
                        ),
                        'holds a number outside 64 bits',
                        null
                    )
                when m.kind = 'record'
                    then iif(
                        m.type <> 'object', 'must be an object (' || m.label || ')' || m.got, null
                    )
                when m.kind = 'list' then iif(m.type <> 'array', 'must be a list' || m.got, null)
                when m.kind = 'text' then iif(m.type <> 'text', 'must be text' || m.got, null)
                when m.kind in ('int', 'duration') and m.type not in ('integer', 'real')
                    then iif(
                        m.kind = 'int', 'must be an integer',
                        'must be a duration in integer microseconds'
                    ) || m.got
                when m.kind in ('int', 'duration')
                    then iif(
                        m.type = 'integer' and typeof(m.atom) = 'integer',
                        null,
                        iif(
                            m.kind = 'int',
                            'must be an integer of 64 bits without fraction or exponent',
                            'must be a duration in integer microseconds of 64 bits'
                        )
                    )
                when m.kind = 'bool'
                    then iif(m.type not in ('true', 'false'), 'must be true or false' || m.got, null)
                when m.kind = 'float'
                    then case
                        when m.type not in ('integer', 'real') then 'must be a number' || m.got
                        when abs(cast(m.atom as real)) > 1.7976931348623157e308
                            then 'must be a finite number'
                    end
                when m.kind = 'enum'
                    then case
                        when m.type not in ('text', 'integer', 'real')
                            then 'must be one of the values of ' || m.label || m.got
                        when not exists (
                            select 1
                            from json_each(m.allowed) as e
                            where e.type = m.type and e.atom = m.atom
                        ) then 'is not one of the values of ' || m.label
                    end
                when m.kind = 'model'
                    then case
                        when m.type = 'text'
                            then iif(m.atom = '', 'must be a model id, got empty text', null)
                        when m.type = 'integer' and typeof(m.atom) = 'integer' then null
                        when m.type in ('integer', 'real')
                            then 'must be a model id: an integer of 64 bits or text'
                        else 'must be a model id: an integer of 64 bits or text' || m.got
                    end
                when m.kind = 'null'
                    then iif(
                        m.type <> 'null', 'must be null: the job takes no input' || m.got, null
                    )
                when m.kind not in ('decimal', 'uuid', 'datetime', 'date', 'time')
                    then 'has a schema of a kind that this version does not know'
                when m.type <> 'text'
                    then iif(m.kind = 'uuid', 'must be a uuid', 'must be a ' || m.kind)
                    || ' as text' || m.got
                when m.kind = 'uuid'
                    then iif(
                        length(m.atom) = 36
                        and substr(m.atom, 9, 1) || substr(m.atom, 14, 1) || substr(m.atom, 19, 1)
                        || substr(m.atom, 24, 1) = '----'
                        and length(replace(m.atom, '-', '')) = 32
                        and replace(m.atom, '-', '') not glob '*[^0-9a-fA-F]*',
                        null,
                        'is not a uuid (8-4-4-4-12 hexadecimal digits)'
                    )
                when m.kind = 'decimal'
                    then iif(
                        (
                            select
                                d.whole not glob '*[^0-9]*'
                                and d.whole <> ''
                                and (d.whole = '0' or substr(d.whole, 1, 1) <> '0')
                                and (
                                    d.point = 0
                                    or (d.fraction <> '' and d.fraction not glob '*[^0-9]*')
                                )
                                and (
                                    d.e = 0
                                    or (
                                        length(d.exponent) between 1 and 6
                                        and d.exponent not glob '*[^0-9]*'
                                    )
                                )
                            from (
                                select
                                    s.e,
                                    instr(s.mantissa, '.') as point,
                                    substr(
                                        s.mantissa, 1,
                                        iif(
                                            instr(s.mantissa, '.'),
                                            instr(s.mantissa, '.') - 1,
                                            length(s.mantissa)
                                        )
                                    ) as whole,
                                    substr(s.mantissa, instr(s.mantissa, '.') + 1) as fraction,
                                    substr(
                                        s.number,
                                        s.e + 1
                                        + (substr(s.number, s.e + 1, 1) in ('+', '-'))
                                    ) as exponent
                                from (
                                    select
                                        u.number,
                                        instr(u.number, 'E') as e,
                                        substr(
                                            u.number, 1,
                                            iif(
                                                instr(u.number, 'E'),
                                                instr(u.number, 'E') - 1,
                                                length(u.number)
                                            )
                                        ) as mantissa
                                    from (
                                        select iif(
                                            substr(m.atom, 1, 1) = '-', substr(m.atom, 2), m.atom
                                        ) as number
                                    ) as u
                                ) as s
                            ) as d
                        ),
                        null,
                        'is not a decimal (such as 12.50)'
                    )
                when m.kind = 'date'
                    then iif(
                        m.atom glob '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]'
                        and substr(m.atom, 1, 4) <> '0000'
                        and date(m.atom, '+0 days') = m.atom,
                        null,
                        'is not a date (YYYY-MM-DD)'
                    )
                when m.kind = 'time'
                    then iif(
                        substr(m.atom, 1, 8) glob '[0-2][0-9]:[0-5][0-9]:[0-5][0-9]'
                        and substr(m.atom, 1, 2) <= '23'
                        and (
                            length(m.atom) = 8
                            or (
                                substr(m.atom, 9, 1) = '.'
                                and length(m.atom) between 10 and 15
                                and substr(m.atom, 10) not glob '*[^0-9]*'
                            )
                        ),
                        null,
                        'is not a time (HH:MM:SS, up to six decimals)'
                    )
                when m.kind = 'datetime'
                    then iif(
                        substr(m.atom, 1, 19)
                        glob '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]'
                        and substr(m.atom, 1, 4) <> '0000'
                        and date(substr(m.atom, 1, 10), '+0 days') = substr(m.atom, 1, 10)
                        and substr(m.atom, 12, 2) <= '23'
                        and (
                            substr(m.atom, 20) = 'Z'
                            or (
                                substr(m.atom, 20, 1) = '.'
                                and length(m.atom) between 22 and 27
                                and substr(m.atom, -1) = 'Z'
                                and substr(m.atom, 21, length(m.atom) - 21) not glob '*[^0-9]*'
                            )
                        ),
                        null,
                        'is not a datetime (RFC 3339, UTC, ends in Z)'
                    )
            end
            from member as m
            where m.node is not null
            union all
            select p.id, null, p.rank, 'is given twice'
            from present as p
            where p.times > 1
            union all
            select r.id, n.name, r.rank || format('%06d', n.position), 'is missing'
            from member as r
            inner join dever_schema_node as n
                on n.contract_id = new.contract_id and n.parent = r.node
            left join present as p on p.parent = r.id and p.node = n.id
            where r.kind = 'record'
                and r.type = 'object'
                and p.id is null
                -- Only when something is missing: this join is the dear part of the check.
                and (select count(*) from present as q)
                < (
                    select sum(s.fields)
                    from member as s
                    where s.kind = 'record' and s.type = 'object'
                )
        )
        select f.id, f.name, f.fault
        from fault as f
        where f.fault is not null
        order by f.rank, f.name, f.id
        limit 1
    ) as f;
end;

-- 50_enqueue.sql

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

-- 60_claim.sql

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

-- 70_finish.sql

-- Renew and finish: what the holder of a claim may do with it.
--
-- Every verb takes a list of ids and tokens and gives one verdict per id: true, or false (the claim
-- was lost: nothing was changed). A row is touched only while the token is the current one and the
-- lease is running, judged by the clock read after the write lock is held. Differs by necessity: there
-- is one writer, so no row is ever busy.

-- The rows whose claim is still in force, with what the caller said about each. items: JSON array of
-- [id, token, reason, error, delay]; of several for one id the first counts. last: the attempt was the
-- row's last.

-- 75_sweep.sql

-- Sweep: everything that no claim may touch, in bounded passes.
--
-- It looks at due and at blocked rows in (queue, run_at, id) order, at most 10 n a call, from a cursor
-- it keeps, and moves: expired messages and exhausted jobs to dead, due jobs that no live worker has
-- been able to run for block_after to blocked, blocked jobs that a live worker can run back to pending,
-- jobs whose program moved them to another queue there. Then it prunes at most n finished rows. One
-- transaction; what was moved: exhausted, expired, blocked, unblocked, moved, pruned, workers. Raises
-- DV007.

-- The contracts a live worker runs.
create view dever_live_contract (contract_id) as
select distinct p.contract_id
from dever_live_policy as l
inner join dever_policy as p on p.id = l.policy_id;

-- The contracts that no live worker has run for a queue's block_after, though they were there by then.
-- A paused queue blocks nothing: its workers may have been stopped on purpose.
create view dever_stale_contract (queue_id, contract_id) as
select q.id, k.id
from dever_queue as q
cross join dever_contract as k
where not q.paused
    and k.created_at <= (select c.now from dever_clock as c) - q.block_after_us
    and not exists (
        select 1
        from dever_policy as p
        inner join dever_worker_policy as wp on wp.policy_id = p.id
        inner join dever_worker as w on w.name = wp.worker
        where p.contract_id = k.id
            and w.alive_until > (select c.now from dever_clock as c) - q.block_after_us
    );

-- Where live programs have moved a contract to: its newest live policy, for every queue in which no
-- live policy of it is.
create view dever_moved_contract (queue_id, contract_id, to_queue_id) as
select
    q.id,
    l.contract_id,
    (
        select p.queue_id
        from dever_policy as p
        where p.contract_id = l.contract_id
            and exists (select 1 from dever_live_policy as v where v.policy_id = p.id)
        order by p.id desc
        limit 1
    )
from dever_queue as q
cross join dever_live_contract as l
where not exists (
    select 1
    from dever_policy as p
    where p.contract_id = l.contract_id
        and p.queue_id = q.id
        and exists (select 1 from dever_live_policy as v where v.policy_id = p.id)
);

-- 80_schedule.sql

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

-- 85_lock.sql

-- Named locks with a lease and a fencing token.
--
-- A row is a lock that somebody took; expired ones may be taken over by the next lock_acquire.
-- Tokens come from one sequence, so whoever takes a lock later carries a larger one: hand it to
-- what the lock protects, and a holder that was frozen past its lease can be told from the new one.

-- Named locks that somebody took; held while expires_at is in the future.
create table dever_lock (
    name text not null primary key,
    owner text not null,
    token integer not null,
    expires_at integer not null
) strict, without rowid;

-- Named locks that are held.
create view dever_locks as
select l.name, l.owner, l.token, l.expires_at
from dever_lock as l
where l.expires_at > (select c.now from dever_clock as c);

-- lock_acquire: no row while anyone holds the lock, the same owner included; when there is one, its
-- token is taken from the sequence.

-- 87_outbox.sql

-- Outbox: messages that commit with the caller's rows and are delivered at least once.
--
-- An outbox is a queue under a reserved name, which send and schedule refuse, with its own
-- defaults.

-- Checks a message for an outbox and creates the outbox at first use: 60 s visibility, 5 attempts,
-- backoff from 5 s. Raises DV001, DV002, DV005, DV006, DV007.
create view dever_outbox_for (outbox, payload, key, max_attempts) as
select null, null, null, null
where false;

create trigger dever_outbox_for_call
instead of insert on dever_outbox_for
begin
    insert into dever_check_name (name) values (new.outbox);
    insert into dever_check_message (payload, key, run_at)
    values (coalesce(new.payload, 'null'), new.key, null);
    select raise(abort, 'DV007 InvalidArgument: max_attempts is not between 1 and 2147483647
hint: it is the total number of deliveries, the first included')
    where new.max_attempts not between 1 and 2147483647;
    insert into dever_queue (name, visibility_us, max_attempts, backoff_base_us, created_at)
    select '__dever_outbox:' || new.outbox, 60000000, 5, 5000000, c.now
    from dever_clock as c
    where not exists (
        select 1
        from dever_queue as q
        where q.name = '__dever_outbox:' || new.outbox
    );
end;

-- For any language: joins the caller's transaction. A key that is unfinished in this outbox inserts
-- nothing.
create view dever_outbox_enqueue (outbox, payload, key, max_attempts) as
select null, null, null, null
where false;

create trigger dever_outbox_enqueue_call
instead of insert on dever_outbox_enqueue
begin
    insert into dever_outbox_for (outbox, payload, key, max_attempts)
    values (new.outbox, new.payload, new.key, new.max_attempts);
    insert into dever_insert_job (
        queue_id, run_at, max_attempts, contract_id, visibility_us, backoff_base_us, backoff_max_us,
        backoff_jitter, target, key, payload
    )
    select
        q.id,
        null,
        coalesce(new.max_attempts, q.max_attempts),
        null,
        q.visibility_us,
        q.backoff_base_us,
        q.backoff_max_us,
        0,
        null,
        new.key,
        coalesce(new.payload, 'null')
    from dever_queue as q
    where q.name = '__dever_outbox:' || new.outbox;
end;

-- The engine checks with this, then inserts with send_insert, which gives the id.

-- 90_views.sql

-- Views: what everybody sees of a job, and the state of the house. Each is of bounded cost.
--
-- dever_jobs is two plain scans without a join, so that "the last 20 ids", one id, or one (target, key)
-- is an index scan however many rows there are; every column is cast to the same type in both, or
-- SQLite would build the whole view first. Counts stop at 10,000. Differs by necessity: instants are
-- RFC 3339 text and durations microseconds, because SQLite has no types for them; there are no roles,
-- so payloads are shown to everybody who can open the file.

-- Every job and message, unfinished and finished; state is scheduled, ready, running, blocked,
-- succeeded, dead or cancelled.
create view dever_jobs as
select
    j.id,
    (select q.name from dever_queue as q where q.id = j.queue_id) as queue,
    j.target,
    j.key,
    cast(case
        when j.run_at = 9223372036854775807 then 'blocked'
        when j.lease_until > (select c.now from dever_clock as c) then 'running'
        when j.run_at > (select c.now from dever_clock as c) then 'scheduled'
        else 'ready'
    end as text) as state,
    j.attempt,
    j.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (coalesce(j.due_at, j.run_at) + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (coalesce(j.due_at, j.run_at) + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.lease_until + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.lease_until + 62135596800000000) % 1000000) as text) as lease_until,
    j.worker,
    j.token,
    (select k.fingerprint from dever_contract as k where k.id = j.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(null as text) as finished_at,
    j.reason,
    j.error,
    j.payload
from dever_job as j
union all
select
    f.id,
    (select q.name from dever_queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.run_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.run_at + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(null as text) as lease_until,
    f.worker,
    f.token,
    (select k.fingerprint from dever_contract as k where k.id = f.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.finished_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.finished_at + 62135596800000000) % 1000000) as text) as finished_at,
    f.reason,
    f.error,
    f.payload
from dever_finished as f;

-- Dead jobs and messages, found through an index.
create view dever_dead as
select
    f.id,
    (select q.name from dever_queue as q where q.id = f.queue_id) as queue,
    f.target,
    f.key,
    f.outcome as state,
    f.attempt,
    f.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.run_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.run_at + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(null as text) as lease_until,
    f.worker,
    f.token,
    (select k.fingerprint from dever_contract as k where k.id = f.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (f.finished_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (f.finished_at + 62135596800000000) % 1000000) as text) as finished_at,
    f.reason,
    f.error,
    f.payload
from dever_finished as f
where f.outcome = 'dead';

-- Blocked jobs, found through an index.
create view dever_blocked as
select
    j.id,
    (select q.name from dever_queue as q where q.id = j.queue_id) as queue,
    j.target,
    j.key,
    'blocked' as state,
    j.attempt,
    j.max_attempts,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (coalesce(j.due_at, j.run_at) + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (coalesce(j.due_at, j.run_at) + 62135596800000000) % 1000000) as text) as run_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.created_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.created_at + 62135596800000000) % 1000000) as text) as created_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.lease_until + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.lease_until + 62135596800000000) % 1000000) as text) as lease_until,
    j.worker,
    j.token,
    (select k.fingerprint from dever_contract as k where k.id = j.contract_id) as fingerprint,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (j.expires_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (j.expires_at + 62135596800000000) % 1000000) as text) as expires_at,
    cast(null as text) as finished_at,
    j.reason,
    j.error,
    j.payload
from dever_job as j
where j.run_at = 9223372036854775807;

-- Depth, age and settings of every queue; counts are exact up to 10,000, beyond that exact is 0.
create view dever_queues as
with counted as materialized (
    select
        q.id,
        -- One look at the oldest due rows counts both ready and running.
        (
            select json_array(
                count(*),
                count(*) filter (where h.leased is not true),
                count(*) filter (where h.leased),
                min(h.run_at) filter (where h.leased is not true)
            )
            from (
                select j.run_at, j.lease_until > (select c.now from dever_clock as c) as leased
                from dever_job as j
                where j.queue_id = q.id and j.run_at <= (select c.now from dever_clock as c)
                order by j.run_at, j.id
                limit 10001
            ) as h
        ) as due,
        (
            select count(*)
            from (
                select 1
                from dever_job as j
                where j.queue_id = q.id
                    and j.run_at > (select c.now from dever_clock as c)
                    and j.run_at < 9223372036854775807
                limit 10001
            ) as h
        ) as scheduled,
        (
            select count(*)
            from (
                select 1
                from dever_job as j
                where j.queue_id = q.id and j.run_at = 9223372036854775807
                limit 10001
            ) as h
        ) as blocked,
        (
            select count(*)
            from (
                select 1
                from dever_finished as f
                where f.queue_id = q.id and f.outcome = 'dead'
                limit 10001
            ) as h
        ) as dead
    from dever_queue as q
)
select
    q.name as queue,
    q.paused,
    min(d.due ->> 1, 10000) as ready,
    min(d.scheduled, 10000) as scheduled,
    min(d.due ->> 2, 10000) as running,
    min(d.blocked, 10000) as blocked,
    min(d.dead, 10000) as dead,
    (d.due ->> 0) <= 10000 and d.scheduled <= 10000 and d.blocked <= 10000 and d.dead <= 10000
        as exact,
    ((select c.now from dever_clock as c) - (d.due ->> 3)) / 1000000.0 as oldest_ready_seconds,
    q.visibility_us,
    q.max_attempts,
    q.backoff_base_us,
    q.backoff_max_us,
    q.keep_succeeded_us,
    q.keep_dead_us,
    q.keep_cancelled_us,
    q.block_after_us
from dever_queue as q
inner join counted as d on d.id = q.id;

-- Workers that have not left: live while alive_until is in the future, lapsed otherwise; jobs is what
-- each runs now, among the 10,000 oldest due rows of all queues.
create view dever_workers as
select
    w.name as worker,
    w.about ->> 'host' as host,
    w.about ->> 'pid' as pid,
    w.about ->> 'version' as version,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (w.started_at + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (w.started_at + 62135596800000000) % 1000000) as text) as started_at,
    cast(strftime(
        '%Y-%m-%dT%H:%M:%S', (w.alive_until + 62135596800000000) / 1000000 - 62135596800, 'unixepoch'
    ) || format('.%06dZ', (w.alive_until + 62135596800000000) % 1000000) as text) as alive_until,
    coalesce(l.jobs, 0) as jobs
from dever_worker as w
left join (
    select h.worker, count(*) as jobs
    from (
        select j.worker, j.lease_until
        from dever_queue as q
        cross join dever_job as j
        where j.queue_id = q.id and j.run_at <= (select c.now from dever_clock as c)
        limit 10001
    ) as h
    where h.lease_until > (select c.now from dever_clock as c)
    group by h.worker
) as l on l.worker = w.name
where w.left_at is null;

-- Listings for the engine, newest first. before: only ids below it. A dead or a blocked one is found
-- through the index of its state.

-- 92_operate.sql

-- Operate: settings of queues, and what an operator does with jobs.

-- configure_queue creates or changes a queue; null leaves a value as it is. Rows already sent keep what
-- was stamped on them. keep_*: 0 keeps nothing, 36,500 days keep for ever. One transaction. Raises DV001,
-- DV002, DV007.

-- 99_installation.sql

-- The version row, last: an install that did not get here installed nothing.

insert into dever_installation (
    id, version, protocol_min, protocol_max, installed_at, upgraded_at
)
select
    lower(
        substr(r.digits, 1, 8) || '-' || substr(r.digits, 9, 4) || '-4' || substr(r.digits, 14, 3)
        || '-a' || substr(r.digits, 18, 3) || '-' || substr(r.digits, 21)
    ),
    '0.3.0',
    1,
    1,
    c.now,
    c.now
from (select hex(randomblob(16)) as digits) as r
cross join dever_clock as c;
