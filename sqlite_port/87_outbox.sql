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

-- name: outbox_check
insert into dever_outbox_for (outbox, payload, key, max_attempts)
values (:outbox, :payload, :key, :max_attempts);
