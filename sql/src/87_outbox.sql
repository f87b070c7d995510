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
