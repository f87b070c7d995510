"""A call of every function that a client may make, and a look at every view, by who may make it.

They hold no operator and no name without its schema, so a hostile search_path can change only what
happens inside. Functions that no client calls are in `INTERNAL`; `null_call` makes a call of one.
"""

from __future__ import annotations

from samples import TARGET
from sessions import Session

CLIENT = {
    "enqueue": f"select * from dever.enqueue('{TARGET}', 'k')",
    "enqueue_many": f"select * from dever.enqueue_many('{TARGET}', '{{k}}')",
    "enqueue_as": f"select * from dever.enqueue_as('{TARGET}', 'x', '{{}}')",
    "send": "select dever.send('q', '1')",
    "send_many": "select dever.send_many('q', '{1}')",
    "outbox_enqueue": "select dever.outbox_enqueue('o', '1')",
    "cron_next": "select dever.cron_next('* * * * *', '2030-01-01 00:00:00+00')",
    "cron_preview": "select dever.cron_preview('* * * * *', '2030-01-01 00:00:00+00', 2)",
    "register": "select * from dever.register(null, '[]', '1 minute')",
    "store_declarations": "select * from dever.store_declarations('[]')",
    "microseconds": "select dever.microseconds('1 minute', 'x')",
    "positive_microseconds": "select dever.positive_microseconds('1 minute', 'x')",
}
WORKER = {
    "enlist_worker": "select dever.enlist_worker('w', '{}', '1 minute', '{}')",
    "declare_schedules": "select dever.declare_schedules()",
    "alive": "select dever.alive('w', '1 minute')",
    "leave": "select dever.leave('w')",
    "queue_ids": "select dever.queue_ids('{q}')",
    "claim": "select * from dever.claim('q', 'w', 1)",
    "renew": "select * from dever.renew('{1}', '{1}', '1 minute')",
    "complete": "select * from dever.complete('{1}', '{1}')",
    "retry": "select * from dever.retry('{1}', '{1}', '{x}')",
    "bury": "select * from dever.bury('{1}', '{1}', '{x}')",
    "block": "select * from dever.block('{1}', '{1}', '{invalid_payload}')",
    "release": "select * from dever.release('{1}', '{1}')",
    "tick": "select * from dever.tick()",
    "next_tick_at": "select dever.next_tick_at()",
    "sweep": "select * from dever.sweep()",
    "scheduler_acquire": "select dever.scheduler_acquire('o', '1 minute')",
    "lock_acquire": "select dever.lock_acquire('l', 'o', '1 minute')",
    "lock_renew": "select dever.lock_renew('l', 'o', 1, '1 minute')",
    "lock_release": "select dever.lock_release('l', 'o', 1)",
}
ADMIN = {
    "schedule": "select dever.schedule('s', '@every 1h', 'q')",
    "pause_schedule": "select dever.pause_schedule('s')",
    "resume_schedule": "select dever.resume_schedule('s')",
    "rewind_schedule": "select dever.rewind_schedule('s')",
    "unschedule": "select dever.unschedule('s')",
    "configure_queue": "select * from dever.configure_queue('q', max_attempts => 2)",
    "pause_queue": "select dever.pause_queue('q')",
    "resume_queue": "select dever.resume_queue('q')",
    "cancel": "select * from dever.cancel('{1}')",
    "redrive": "select * from dever.redrive('{1}')",
    "drop_jobs": "select * from dever.drop_jobs('{1}')",
}
VIEWS = {
    view: f"select * from dever.{view}"
    for view in ("jobs", "dead", "blocked", "queues", "schedules", "workers", "locks")
}
OBSERVE = {
    "get_job": "select * from dever.get_job(1)",
    # What the views call, with the rights of who looks.
    "may_see_payload": "select dever.may_see_payload()",
    "schedule_state": "select dever.schedule_state('s', false)",
    "as_interval": "select dever.as_interval(1)",
    "oldest_due": "select * from dever.oldest_due(1)",
    "later_counts": "select * from dever.later_counts(1)",
    **VIEWS,
}
EVERYBODY = {
    "version": "select dever.version()",
    "protocol": "select * from dever.protocol()",
    "clock": "select dever.clock()",
    "installation_id": "select dever.installation_id()",
}

# Parts of the functions above, which run with the rights of the schema's owner.
INTERNAL = {
    "backoff",
    "bits_below",
    "check_declaration",
    "check_instant",
    "check_key",
    "check_keys",
    "check_lengths",
    "check_lock_name",
    "check_name",
    "check_payload",
    "check_payload_limits",
    "cron_bits",
    "cron_canonical",
    "cron_days",
    "cron_elapsed",
    "cron_field",
    "cron_rule",
    "cron_span",
    "cron_step",
    "cron_unwrapped",
    "cron_value",
    "current_policy",
    "declared_policy",
    "due_windows",
    "enqueue_under",
    "every_rule",
    "finish",
    "highest_bit",
    "hold",
    "insert_jobs",
    "insert_occurrences",
    "insert_under",
    "is_ahead",
    "is_blank",
    "is_integer_between",
    "is_policy_live",
    "is_wire_date",
    "is_wire_decimal",
    "is_wire_float",
    "is_wire_integer",
    "is_wire_time",
    "json_extent",
    "json_fault",
    "live_contracts",
    "lock_claims",
    "lock_free",
    "lowest_bit",
    "move_to_finished",
    "outbox_queue",
    "payload_fault",
    "pending_windows",
    "queue_for",
    "raise_unknown_job",
    "raise_unsettled",
    "refuse_field",
    "refuse_spec",
    "rule_after",
    "rule_count",
    "rule_last",
    "rule_next",
    "scalar_fault",
    "schedule_rule",
    "send_under",
    "shown_spec",
    "stale_contracts",
    "take_lock",
    "unfinished_id",
    "valid_rule",
    "verdicts",
    "wake",
}


def null_call(session: Session, function: str) -> str:
    """A call of a function of the schema with null for every argument."""
    row = session.execute(
        "select pronargs from pg_proc where pronamespace = 'dever'::regnamespace and proname = %s",
        [function],
    ).fetchone()
    assert row is not None
    return f"select dever.{function}({', '.join(['null'] * row[0])})"
