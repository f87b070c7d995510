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

-- name: register_check
insert into dever_check_declaration (declaration)
select d.value
from json_each(:contracts) as d;

-- name: register_queues
insert into dever_queue_for (name)
select d.value ->> 'queue'
from json_each(:contracts) as d;

-- name: register_contracts
insert into dever_contract (target, fingerprint, wire_schema, created_at)
select d.value ->> 'target', d.value ->> 'fingerprint', d.value -> 'schema', c.now
from json_each(:contracts) as d
cross join dever_clock as c
where true
order by 1, 2
on conflict (target, fingerprint) do nothing;

-- name: register_policies
insert into dever_policy (
    contract_id, target, queue_id, max_attempts, timeout_us, backoff_base_us, backoff_max_us,
    backoff_jitter, schedule_spec, schedule_missed, created_at
)
select
    k.id,
    k.target,
    q.id,
    d.value ->> 'retry',
    (d.value ->> 'timeout_ms') * 1000,
    (d.value ->> 'backoff_base_ms') * 1000,
    (d.value ->> 'backoff_max_ms') * 1000,
    coalesce(d.value ->> 'backoff_jitter', 0),
    d.value ->> '$.schedule.spec',
    iif(
        d.value ->> '$.schedule.spec' is not null,
        coalesce(d.value ->> '$.schedule.missed', 'catch_up'),
        null
    ),
    c.now
from json_each(:contracts) as d
inner join dever_contract as k
    on k.target = d.value ->> 'target' and k.fingerprint = d.value ->> 'fingerprint'
inner join dever_queue as q on q.name = d.value ->> 'queue'
cross join dever_clock as c
where true
order by 2, d.key
on conflict do nothing;

-- name: register_worker
insert into dever_worker (name, about, started_at, alive_until)
select :worker, coalesce(:about, '{}'), c.now, c.now + :alive_us
from dever_clock as c
where true
on conflict (name) do update
set
    about = excluded.about,
    started_at = excluded.started_at,
    alive_until = excluded.alive_until,
    left_at = null;

-- name: register_forget_policies
delete from dever_worker_policy
where worker = :worker;

-- name: register_worker_policies
insert into dever_worker_policy (policy_id, worker)
select p.id, :worker
from json_each(:contracts) as d
inner join dever_contract as k
    on k.target = d.value ->> 'target' and k.fingerprint = d.value ->> 'fingerprint'
inner join dever_queue as q on q.name = d.value ->> 'queue'
inner join dever_policy as p
    on p.target = k.target
        and p.contract_id = k.id
        and p.queue_id = q.id
        and p.max_attempts = d.value ->> 'retry'
        and p.timeout_us = (d.value ->> 'timeout_ms') * 1000
        and p.backoff_base_us = (d.value ->> 'backoff_base_ms') * 1000
        and p.backoff_max_us = (d.value ->> 'backoff_max_ms') * 1000
        and p.backoff_jitter = coalesce(d.value ->> 'backoff_jitter', 0)
        and p.schedule_spec is d.value ->> '$.schedule.spec'
        and p.schedule_missed is iif(
            d.value ->> '$.schedule.spec' is not null,
            coalesce(d.value ->> '$.schedule.missed', 'catch_up'),
            null
        )
where true
on conflict do nothing;

-- name: register_result
select k.target, k.fingerprint, k.id
from json_each(:contracts) as d
inner join dever_contract as k
    on k.target = d.value ->> 'target' and k.fingerprint = d.value ->> 'fingerprint'
order by k.target, k.fingerprint;

-- name: alive_check
insert into dever_raise (message)
select 'DV007 InvalidArgument: alive is missing
hint: say how long the worker counts as live without a sign of life'
where :alive_us is null;

-- name: alive
update dever_worker
set alive_until = c.now + :alive_us
from dever_clock as c
where name = :worker and alive_until > c.now
returning name;

-- name: leave
update dever_worker
set alive_until = min(alive_until, c.now), left_at = c.now
from dever_clock as c
where name = :worker and left_at is null
returning name;
