-- Names, keys, durations, instants: one check each, used by every verb before anything is stored.

create function dever.is_blank(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_catalog.btrim(value, E' \t\n\r\f\x0b') = '';
end
$$;

comment on function dever.is_blank(text) is 'Nothing but ASCII whitespace (or nothing at all)';

-- Returns the name as it is. Raises DV001, DV002. Locks nothing.
create function dever.check_name(name text, what text)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- The usual case in one expression: these checks are on the path of every call. What begins with more
    -- than a space (32) is not blank.
    if pg_catalog.ascii(check_name.name) > 32
        and pg_catalog.octet_length(check_name.name) <= 255
        and not pg_catalog.starts_with(check_name.name, '__dever_')
    then
        return check_name.name;
    end if;
    if check_name.name is null or dever.is_blank(check_name.name) then
        raise exception using
            errcode = 'DV001',
            message = pg_catalog.format('the %s name is empty', check_name.what),
            hint = 'give a name of 1 to 255 bytes that is not only whitespace';
    end if;
    if pg_catalog.octet_length(check_name.name) > 255 then
        raise exception using
            errcode = 'DV001',
            message = pg_catalog.format(
                'the %s name is %s bytes long', check_name.what, pg_catalog.octet_length(check_name.name)
            ),
            hint = 'give a name of 1 to 255 bytes';
    end if;
    if pg_catalog.starts_with(check_name.name, '__dever_') then
        raise exception using
            errcode = 'DV002',
            message = pg_catalog.format('the %s name %L is reserved', check_name.what, check_name.name),
            hint = 'names that start with __dever_ belong to Dever SQL, choose another one';
    end if;
    return check_name.name;
end
$$;

comment on function dever.check_name(text, text) is
'The one rule for names of queues, schedules, locks, outboxes and workers';

-- All keys in one call: a call for each would cost more than the checks. Raises DV006, DV002. Locks
-- nothing.
create function dever.check_keys(keys text[])
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_key text;
begin
    foreach v_key in array check_keys.keys loop
        -- The usual case in one expression, as in dever.check_name.
        continue when pg_catalog.ascii(v_key) > 32
            and pg_catalog.octet_length(v_key) <= 1024
            and not pg_catalog.starts_with(v_key, '__dever_');
        if v_key is null or dever.is_blank(v_key) then
            raise exception using
                errcode = 'DV006',
                message = 'the idempotency key is missing or blank',
                hint = 'name the business event, for example receipt:7';
        end if;
        if pg_catalog.octet_length(v_key) > 1024 then
            raise exception using
                errcode = 'DV006',
                message = pg_catalog.format(
                    'the idempotency key is %s bytes long', pg_catalog.octet_length(v_key)
                ),
                hint = 'give a key of 1 to 1024 bytes';
        end if;
        if pg_catalog.starts_with(v_key, '__dever_') then
            raise exception using
                errcode = 'DV002',
                message = 'the idempotency key starts with __dever_, which is reserved',
                hint = 'keys that start with __dever_ belong to Dever SQL, choose another one';
        end if;
    end loop;
end
$$;

comment on function dever.check_keys(text[]) is 'The one rule for idempotency keys, of jobs and of messages';

-- Microseconds of a duration, null for null. Raises DV007. Stored instead of the interval because
-- months and days of an interval mean different lengths in different sessions.
create function dever.microseconds(duration interval, what text)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if microseconds.duration is null then
        return null;
    end if;
    if not pg_catalog.isfinite(microseconds.duration)
        or pg_catalog.date_part('year', microseconds.duration) <> 0
        or pg_catalog.date_part('month', microseconds.duration) <> 0
    then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format(
                '%s is infinite or has months or years in it', microseconds.what
            ),
            hint = 'write it in days, hours, minutes or seconds';
    end if;
    if pg_catalog.abs(pg_catalog.date_part('epoch', microseconds.duration)) > 36500.0 * 86400 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s is longer than 36,500 days', microseconds.what),
            hint = 'give a shorter duration';
    end if;
    return (extract(epoch from microseconds.duration) * 1000000)::bigint;
end
$$;

comment on function dever.microseconds(interval, text) is
'A duration in microseconds; refuses infinite ones, months, years and more than 36,500 days';

create function dever.positive_microseconds(duration interval, what text)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_microseconds bigint := dever.microseconds(positive_microseconds.duration, positive_microseconds.what);
begin
    if v_microseconds <= 0 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s is not positive', positive_microseconds.what),
            hint = 'give a duration above zero';
    end if;
    return v_microseconds;
end
$$;

comment on function dever.positive_microseconds(interval, text) is
'A duration in microseconds that must be above zero; null stays null';

create function dever.as_interval(microseconds bigint)
returns interval
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return microseconds * interval '1 microsecond';
end
$$;

comment on function dever.as_interval(bigint) is 'The interval of so many microseconds';

-- Returns the instant as it is, null for null. Raises DV007.
create function dever.check_instant(instant timestamptz, what text)
returns timestamptz
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if check_instant.instant < timestamptz '0001-01-01 00:00:00+00'
        or check_instant.instant >= timestamptz '10000-01-01 00:00:00+00'
    then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s is outside the years 1 to 9999', check_instant.what),
            hint = 'give an instant between 0001-01-01 and 9999-12-31 (UTC)';
    end if;
    return check_instant.instant;
end
$$;

comment on function dever.check_instant(timestamptz, text) is
'An instant that every client can represent: years 1 to 9999, not infinite';

-- Raises DV007 when one of the arrays that run beside ids has another length. A null array is none.
create function dever.check_lengths(expected integer, actual integer[])
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_length integer;
begin
    foreach v_length in array check_lengths.actual loop
        if v_length <> check_lengths.expected then
            raise exception using
                errcode = 'DV007',
                message = pg_catalog.format(
                    'the arrays have unequal lengths: %s and %s', check_lengths.expected, v_length
                ),
                hint = 'give one element per item in every array';
        end if;
    end loop;
    if check_lengths.expected > 100000 then
        raise exception using
            errcode = 'DV007',
            message = pg_catalog.format('%s items in one call', check_lengths.expected),
            hint = 'send at most 100,000 items a call';
    end if;
end
$$;

comment on function dever.check_lengths(integer, integer[]) is
'Arrays that run beside each other must be equally long, and at most 100,000 items';

create function dever.is_integer_between(value jsonb, low bigint, high bigint)
returns boolean
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when pg_catalog.jsonb_typeof(value) = 'number' and value::text ~ '^-?[0-9]{1,18}$'
            then value::text::bigint between low and high
        else false
    end
$$;

comment on function dever.is_integer_between(jsonb, bigint, bigint) is
'Whether a JSON value is an integer within bounds; false for null and for any other kind';
