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
