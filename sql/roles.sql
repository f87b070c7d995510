-- Optional roles of Dever SQL: enqueue, work, observe, administer. Run it after the install and after
-- each upgrade, as the schema's owner (creating the roles needs CREATEROLE; create them beforehand
-- where that is not given). Roles belong to the whole cluster; an application logs in with a role of its own:
--
--     grant dever_enqueue to my_application;

do $$
begin
    if not exists (select from pg_catalog.pg_roles as r where r.rolname = 'dever_enqueue') then
        create role dever_enqueue nologin;
    end if;
    if not exists (select from pg_catalog.pg_roles as r where r.rolname = 'dever_worker') then
        create role dever_worker nologin;
    end if;
    if not exists (select from pg_catalog.pg_roles as r where r.rolname = 'dever_observe') then
        create role dever_observe nologin;
    end if;
    if not exists (select from pg_catalog.pg_roles as r where r.rolname = 'dever_admin') then
        create role dever_admin nologin;
    end if;
end
$$;

grant usage on schema dever to dever_enqueue, dever_worker, dever_observe, dever_admin;

-- Everybody: which version, which installation, what time it is.
grant execute on function
    dever.clock(), dever.version(), dever.protocol(), dever.installation_id()
to dever_enqueue, dever_worker, dever_observe, dever_admin;

-- register stores contracts, which a program needs before it can enqueue with its own fingerprint.
grant execute on function
    dever.enqueue(text, text, jsonb, timestamptz),
    dever.enqueue_many(text, text[], jsonb[], timestamptz[]),
    dever.enqueue_as(text, text, text[], jsonb[], timestamptz[]),
    dever.send(text, jsonb, text, interval, timestamptz, interval, integer),
    dever.send_many(text, jsonb[]),
    dever.outbox_enqueue(text, jsonb, text, integer),
    dever.cron_next(text, timestamptz),
    dever.cron_preview(text, timestamptz, integer)
to dever_enqueue, dever_worker, dever_admin;

grant execute on function
    dever.register(text, jsonb, interval, jsonb),
    dever.store_declarations(jsonb),
    dever.positive_microseconds(interval, text),
    dever.microseconds(interval, text)
to dever_enqueue, dever_worker, dever_admin;
-- With a worker name it needs the right to work: a live worker decides which policy is in force. So does
-- giving a declared cron its cursor.
grant execute on function
    dever.enlist_worker(text, bigint[], interval, jsonb),
    dever.declare_schedules()
to dever_worker, dever_admin;

grant execute on function
    dever.alive(text, interval),
    dever.leave(text),
    dever.queue_ids(text[]),
    dever.claim(text, text, integer, interval, integer[]),
    dever.renew(bigint[], bigint[], interval),
    dever.complete(bigint[], bigint[]),
    dever.retry(bigint[], bigint[], text[], text[], interval[]),
    dever.bury(bigint[], bigint[], text[], text[]),
    dever.block(bigint[], bigint[], text[], text[]),
    dever.release(bigint[], bigint[]),
    dever.tick(integer),
    dever.next_tick_at(),
    dever.sweep(integer),
    dever.scheduler_acquire(text, interval),
    dever.lock_acquire(text, text, interval),
    dever.lock_renew(text, text, bigint, interval),
    dever.lock_release(text, text, bigint)
to dever_worker, dever_admin;

grant execute on function
    dever.schedule(text, text, text, jsonb, text, interval, integer),
    dever.unschedule(text),
    dever.pause_schedule(text),
    dever.resume_schedule(text),
    dever.rewind_schedule(text),
    dever.configure_queue(text, interval, integer, interval, interval, interval, interval, interval, interval),
    dever.pause_queue(text),
    dever.resume_queue(text),
    dever.cancel(bigint[]),
    dever.redrive(bigint[]),
    dever.drop_jobs(bigint[])
to dever_admin;

grant select on
    dever.jobs, dever.dead, dever.blocked, dever.queues, dever.schedules, dever.workers, dever.locks
to dever_observe, dever_worker, dever_admin;
grant execute on function
    dever.get_job(bigint),
    dever.may_see_payload(),
    dever.schedule_state(text, boolean),
    dever.as_interval(bigint),
    dever.oldest_due(bigint),
    dever.later_counts(bigint)
to dever_observe, dever_worker, dever_admin;
