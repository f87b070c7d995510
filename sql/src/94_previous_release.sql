-- What calls of version 0.1.0 that are under way while an upgrade commits may still call: they go on with
-- the text they began with. Nothing of this version calls it, and 0.2.0 left nothing that would be needed
-- here; it stays because one deploy may go from 0.1.0 over 0.2.0 to this version.

create function dever.check_key(key text)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.check_keys(array[check_key.key]);
    return check_key.key;
end
$$;

comment on function dever.check_key(text) is 'For calls of 0.1.0 under way during an upgrade: dever.check_keys';

create function dever.hold(ids bigint[], tokens bigint[], out held bigint[], out busy bigint[])
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    select l.held, l.busy
    into held, busy
    from dever.lock_claims(hold.ids, hold.tokens) as l;
end
$$;

comment on function dever.hold(bigint[], bigint[]) is
'For calls of 0.1.0 under way during an upgrade: dever.lock_claims';

create function dever.finish(ids bigint[], outcome text, reasons text[], errors text[])
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
    perform dever.move_to_finished(
        pg_catalog.array_agg(j.place),
        finish.outcome,
        case when finish.reasons is not null then pg_catalog.array_agg(u.reason) end,
        pg_catalog.array_agg(u.error)
    )
    from rows from (
        pg_catalog.unnest(finish.ids),
        pg_catalog.unnest(finish.reasons),
        pg_catalog.unnest(finish.errors)
    ) as u (id, reason, error)
    cross join lateral (
        select i.ctid as place from dever.job as i where i.id = u.id limit 1
    ) as j;
end
$$;

comment on function dever.finish(bigint[], text, text[], text[]) is
'For calls of 0.1.0 under way during an upgrade: dever.move_to_finished';
