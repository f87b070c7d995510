-- Dever SQL 0.3.0. Built by scripts/build-sql; do not edit.

do $$
declare
    v_installed text := (select i.version from dever.installation as i);
begin
    if v_installed is distinct from '0.3.0' then
        raise exception using
            errcode = 'DV009',
            message = pg_catalog.format(
                'this database has Dever SQL %s as a plain install, the extension is 0.3.0',
                v_installed
            ),
            hint = 'drop extension dever, which is empty still, and bring the plain install to'
                || ' 0.3.0: deploy.sql, or dever sql upgrade';
    end if;
end
$$;

alter extension dever add schema dever;
alter extension dever add function dever.clock;
alter extension dever add table dever.installation;
alter extension dever add table dever.queue;
alter extension dever add table dever.contract;
alter extension dever add table dever.policy;
alter extension dever add table dever.worker;
alter extension dever add table dever.worker_policy;
alter extension dever add sequence dever.token_seq;
alter extension dever add table dever.job;
alter extension dever add table dever.finished;
alter extension dever add table dever.sweep_cursor;
alter extension dever add function dever.is_blank;
alter extension dever add function dever.check_name;
alter extension dever add function dever.check_keys;
alter extension dever add function dever.microseconds;
alter extension dever add function dever.positive_microseconds;
alter extension dever add function dever.as_interval;
alter extension dever add function dever.check_instant;
alter extension dever add function dever.check_lengths;
alter extension dever add function dever.is_integer_between;
alter extension dever add function dever.refuse_spec;
alter extension dever add function dever.shown_spec;
alter extension dever add function dever.cron_field;
alter extension dever add function dever.refuse_field;
alter extension dever add function dever.cron_span;
alter extension dever add function dever.cron_value;
alter extension dever add function dever.cron_step;
alter extension dever add function dever.cron_unwrapped;
alter extension dever add function dever.cron_bits;
alter extension dever add function dever.cron_canonical;
alter extension dever add function dever.cron_rule;
alter extension dever add function dever.every_rule;
alter extension dever add function dever.schedule_rule;
alter extension dever add function dever.lowest_bit;
alter extension dever add function dever.highest_bit;
alter extension dever add function dever.bits_below;
alter extension dever add function dever.cron_days;
alter extension dever add function dever.rule_next;
alter extension dever add function dever.rule_last;
alter extension dever add function dever.cron_elapsed;
alter extension dever add function dever.rule_count;
alter extension dever add function dever.cron_next;
alter extension dever add function dever.cron_preview;
alter extension dever add function dever.queue_for;
alter extension dever add function dever.wake;
alter extension dever add function dever.queue_ids;
alter extension dever add function dever.is_policy_live;
alter extension dever add function dever.current_policy;
alter extension dever add function dever.check_declaration;
alter extension dever add function dever.store_declarations;
alter extension dever add function dever.enlist_worker;
alter extension dever add function dever.register;
alter extension dever add function dever.alive;
alter extension dever add function dever.leave;
alter extension dever add function dever.is_wire_decimal;
alter extension dever add function dever.is_wire_date;
alter extension dever add function dever.is_wire_time;
alter extension dever add function dever.is_wire_integer;
alter extension dever add function dever.is_wire_float;
alter extension dever add function dever.scalar_fault;
alter extension dever add function dever.json_fault;
alter extension dever add function dever.payload_fault;
alter extension dever add function dever.json_extent;
alter extension dever add function dever.check_payload_limits;
alter extension dever add function dever.check_payload;
alter extension dever add function dever.may_see_payload;
alter extension dever add function dever.unfinished_id;
alter extension dever add function dever.raise_unsettled;
alter extension dever add function dever.insert_jobs;
alter extension dever add function dever.insert_under;
alter extension dever add function dever.enqueue_under;
alter extension dever add function dever.raise_unknown_job;
alter extension dever add function dever.enqueue_many;
alter extension dever add function dever.enqueue;
alter extension dever add function dever.enqueue_as;
alter extension dever add function dever.send_under;
alter extension dever add function dever.send;
alter extension dever add function dever.send_many;
alter extension dever add function dever.claim;
alter extension dever add function dever.lock_claims;
alter extension dever add function dever.verdicts;
alter extension dever add function dever.move_to_finished;
alter extension dever add function dever.renew;
alter extension dever add function dever.complete;
alter extension dever add function dever.backoff;
alter extension dever add function dever.retry;
alter extension dever add function dever.bury;
alter extension dever add function dever.block;
alter extension dever add function dever.release;
alter extension dever add function dever.live_contracts;
alter extension dever add function dever.stale_contracts;
alter extension dever add function dever.lock_free;
alter extension dever add function dever.sweep;
alter extension dever add table dever.schedule;
alter extension dever add function dever.declared_policy;
alter extension dever add function dever.valid_rule;
alter extension dever add function dever.rule_after;
alter extension dever add function dever.is_ahead;
alter extension dever add function dever.schedule_state;
alter extension dever add view dever.schedules;
alter extension dever add function dever.pending_windows;
alter extension dever add function dever.declare_schedules;
alter extension dever add function dever.due_windows;
alter extension dever add function dever.insert_occurrences;
alter extension dever add function dever.tick;
alter extension dever add function dever.next_tick_at;
alter extension dever add function dever.schedule;
alter extension dever add function dever.unschedule;
alter extension dever add function dever.pause_schedule;
alter extension dever add function dever.resume_schedule;
alter extension dever add function dever.rewind_schedule;
alter extension dever add table dever.lock;
alter extension dever add view dever.locks;
alter extension dever add function dever.check_lock_name;
alter extension dever add function dever.take_lock;
alter extension dever add function dever.lock_acquire;
alter extension dever add function dever.lock_renew;
alter extension dever add function dever.lock_release;
alter extension dever add function dever.scheduler_acquire;
alter extension dever add function dever.outbox_queue;
alter extension dever add function dever.outbox_enqueue;
alter extension dever add view dever.jobs;
alter extension dever add view dever.dead;
alter extension dever add view dever.blocked;
alter extension dever add function dever.oldest_due;
alter extension dever add function dever.later_counts;
alter extension dever add view dever.queues;
alter extension dever add view dever.workers;
alter extension dever add function dever.get_job;
alter extension dever add function dever.version;
alter extension dever add function dever.protocol;
alter extension dever add function dever.installation_id;
alter extension dever add function dever.configure_queue;
alter extension dever add function dever.pause_queue;
alter extension dever add function dever.resume_queue;
alter extension dever add function dever.cancel;
alter extension dever add function dever.redrive;
alter extension dever add function dever.drop_jobs;
alter extension dever add function dever.check_key;
alter extension dever add function dever.hold;
alter extension dever add function dever.finish;
alter extension dever add sequence dever.queue_id_seq;
alter extension dever add sequence dever.contract_id_seq;
alter extension dever add sequence dever.policy_id_seq;
alter extension dever add sequence dever.job_id_seq;

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

do $$
begin
    if exists (
        select
        from pg_catalog.pg_init_privs as i
        inner join pg_catalog.pg_depend as d
            on d.classid = i.classoid and d.objid = i.objoid and d.deptype = 'e'
        inner join pg_catalog.pg_extension as e
            on d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass and d.refobjid = e.oid
        cross join lateral pg_catalog.aclexplode(i.initprivs) as a
        where e.extname = 'dever' and a.grantee <> a.grantor
    ) then
        raise warning using
            message = 'the grants to other roles are kept, but pg_dump will leave them out',
            hint = 'adopt with adopt.sql, or give the grants again after a restore';
    end if;
end
$$;
