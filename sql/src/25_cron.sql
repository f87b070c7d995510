-- Schedule specs: five-field UTC cron and "@every <n><s|m|h|d>".
--
-- A spec is parsed by one strict grammar and compiled to a rule, a bigint array:
--   cron     {minutes, hours, days, months, weekdays, either}: five bitmaps, bit i set when value i
--            fires, and 1 when a day fires if its date or its weekday does, 0 when both must
--   @every   {microseconds}
-- Specs that fire at the same instants compile to the same rule, whatever their spelling. Instants
-- are found month by month from the bitmaps; the longest gap is 8 years, 29 February 2096 to 2104.
-- dever_sql/cron.py is the same grammar, function for function; the SQLite engine uses that one.
-- Nothing here reads a table, the clock, or a session setting.

create function dever.refuse_spec(message text, hint text)
returns void
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    raise exception using
        errcode = 'DV003', message = refuse_spec.message, hint = refuse_spec.hint;
end
$$;

comment on function dever.refuse_spec(text, text) is 'Raises DV003 InvalidSpec';

create function dever.shown_spec(spec text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select '"' || pg_catalog.left(spec, 40)
        || case when pg_catalog.length(spec) > 40 then '...' else '' end || '"'
$$;

comment on function dever.shown_spec(text) is 'The beginning of a spec in quotes, for a message';

-- The fields are numbered 1 to 5. This is what differs between them.
create function dever.cron_field(
    field integer,
    out label text,
    out low integer,
    out high integer,
    out size integer,
    out names text[]
)
returns record
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    label := (array['minute', 'hour', 'day of month', 'month', 'day of week'])[cron_field.field];
    low := (array[0, 0, 1, 1, 0])[cron_field.field];
    high := (array[59, 23, 31, 12, 7])[cron_field.field];
    -- The values that a star stands for: day of week 7 is 0 again.
    size := (array[60, 24, 31, 12, 7])[cron_field.field];
    names := case cron_field.field
        when 4 then array[
            'jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'
        ]
        when 5 then array['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat']
        else array[]::text[]
    end;
end
$$;

comment on function dever.cron_field(integer) is
'A cron field: its label, lowest and highest value, how many values a star stands for, and names
that begin at the lowest value';

create function dever.refuse_field(field integer, value text, what text, hint text)
returns void
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform dever.refuse_spec(
        pg_catalog.format(
            'the %s field: %s %s',
            (dever.cron_field(refuse_field.field)).label,
            dever.shown_spec(refuse_field.value),
            refuse_field.what
        ),
        refuse_field.hint
    );
end
$$;

comment on function dever.refuse_field(integer, text, text, text) is
'Raises DV003 InvalidSpec and names the field';

create function dever.cron_span(low integer, high integer, step integer)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_bits bigint := 0;
    v_value integer := cron_span.low;
begin
    while v_value <= cron_span.high loop
        v_bits := v_bits | (1::bigint << v_value);
        v_value := v_value + cron_span.step;
    end loop;
    return v_bits;
end
$$;

comment on function dever.cron_span(integer, integer, integer) is
'The bitmap of every step-th value from low to high';

-- One number or name. Raises DV003.
create function dever.cron_value(field integer, value text)
returns integer
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_field record := dever.cron_field(cron_value.field);
    v_name text := pg_catalog.lower(cron_value.value collate "C");
    v_hint text;
    v_number integer;
begin
    v_number := pg_catalog.array_position(v_field.names, v_name) - 1 + v_field.low;
    if v_number is not null then
        return v_number;
    end if;

    v_hint := pg_catalog.format('write a number from %s to %s', v_field.low, v_field.high)
        || case
            when pg_catalog.cardinality(v_field.names) > 0
                then pg_catalog.format(
                    ' or %s-%s',
                    v_field.names[1],
                    v_field.names[pg_catalog.cardinality(v_field.names)]
                )
            else ''
        end;
    if cron_value.value collate "C" ~ '^[0-9]+$' then
        if pg_catalog.length(cron_value.value) > 2 then
            perform dever.refuse_field(
                cron_value.field, cron_value.value, 'has more than two digits', v_hint
            );
        end if;
        v_number := cron_value.value::integer;
        if v_number < v_field.low or v_number > v_field.high then
            perform dever.refuse_field(
                cron_value.field, cron_value.value, 'is out of range', v_hint
            );
        end if;
        return v_number;
    end if;
    if v_name = any ((dever.cron_field(4)).names || (dever.cron_field(5)).names) then
        perform dever.refuse_field(
            cron_value.field, cron_value.value, 'is a name of another field', v_hint
        );
    end if;
    perform dever.refuse_field(cron_value.field, cron_value.value, 'is not a value', v_hint);
    return null;
end
$$;

comment on function dever.cron_value(integer, text) is 'One number or name of a cron field';

-- A step over so many values. Raises DV003.
create function dever.cron_step(field integer, item text, digits text, size integer)
returns integer
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if pg_catalog.length(cron_step.digits) > 2 then
        perform dever.refuse_field(
            cron_step.field, cron_step.item, 'has a step of more than two digits',
            'write a smaller step'
        );
    end if;
    if cron_step.digits::integer = 0 then
        perform dever.refuse_field(
            cron_step.field, cron_step.item, 'has a step of zero', 'write a step from 1'
        );
    end if;
    if cron_step.digits::integer >= cron_step.size then
        perform dever.refuse_field(
            cron_step.field,
            cron_step.item,
            pg_catalog.format(
                'has a step that is not smaller than its %s values', cron_step.size
            ),
            pg_catalog.format(
                'write a step below %s, or the one value that it means', cron_step.size
            )
        );
    end if;
    return cron_step.digits::integer;
end
$$;

comment on function dever.cron_step(integer, text, text, integer) is
'The step of a cron field; it must be smaller than the number of values it steps over';

-- How to write a range that runs over the end of its field.
create function dever.cron_unwrapped(field integer, low integer, high integer)
returns text
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_field record := dever.cron_field(cron_unwrapped.field);
    v_top integer := v_field.low + v_field.size - 1;
begin
    if cron_unwrapped.field = 5 and cron_unwrapped.high = 0 then
        return pg_catalog.format('%s-7', cron_unwrapped.low);
    end if;
    if cron_unwrapped.field = 5 and cron_unwrapped.low = 7 then
        return pg_catalog.format('0-%s', cron_unwrapped.high);
    end if;
    return case
        when cron_unwrapped.low = v_top then cron_unwrapped.low::text
        else pg_catalog.format('%s-%s', cron_unwrapped.low, v_top)
    end
    || ','
    || case
        when cron_unwrapped.high = v_field.low then cron_unwrapped.high::text
        else pg_catalog.format('%s-%s', v_field.low, cron_unwrapped.high)
    end;
end
$$;

comment on function dever.cron_unwrapped(integer, integer, integer) is
'A backward range as a list that means the same, for a hint';

-- The bitmap of one field. Raises DV003.
create function dever.cron_bits(field integer, value text)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_field record := dever.cron_field(cron_bits.field);
    v_top integer := v_field.low + v_field.size - 1;
    v_bits bigint := 0;
    v_item text;
    v_part text[];
    v_low integer;
    v_high integer;
begin
    if cron_bits.value = '*' then
        return dever.cron_span(v_field.low, v_top, 1);
    end if;
    if pg_catalog.strpos(cron_bits.value, '*') > 0 then
        if pg_catalog.strpos(cron_bits.value, ',') > 0 then
            perform dever.refuse_field(
                cron_bits.field, cron_bits.value, 'has a star inside a list',
                'write the values, or * or */n alone'
            );
        end if;
        v_part := pg_catalog.regexp_match(cron_bits.value collate "C", '^[*]/([0-9]+)$');
        if v_part is null then
            perform dever.refuse_field(
                cron_bits.field, cron_bits.value, 'has a star that is not alone', 'write * or */n'
            );
        end if;
        return dever.cron_span(
            v_field.low,
            v_top,
            dever.cron_step(cron_bits.field, cron_bits.value, v_part[1], v_field.size)
        );
    end if;

    foreach v_item in array pg_catalog.string_to_array(cron_bits.value, ',') loop
        v_part := pg_catalog.regexp_match(
            v_item collate "C", '^([0-9A-Za-z]+)(?:-([0-9A-Za-z]+))?(?:/([0-9]+))?$'
        );
        if v_part is null then
            perform dever.refuse_field(
                cron_bits.field, cron_bits.value, 'is not a list of values',
                'write *, */n, a, a-b or a-b/n, with commas'
            );
        end if;
        v_low := dever.cron_value(cron_bits.field, v_part[1]);
        v_high := v_low;
        if v_part[2] is null and v_part[3] is not null then
            perform dever.refuse_field(
                cron_bits.field, v_item, 'has a step on a single value',
                pg_catalog.format('write %s-%s/%s', v_part[1], v_top, v_part[3])
            );
        end if;
        if v_part[2] is not null then
            v_high := dever.cron_value(cron_bits.field, v_part[2]);
            if v_low = v_high then
                perform dever.refuse_field(
                    cron_bits.field, v_item, 'is a range of one value',
                    pg_catalog.format('write %s', v_part[1])
                );
            end if;
            if v_low > v_high then
                perform dever.refuse_field(
                    cron_bits.field, v_item, 'runs backwards',
                    'write ' || dever.cron_unwrapped(cron_bits.field, v_low, v_high)
                );
            end if;
        end if;
        v_bits := v_bits | dever.cron_span(
            v_low,
            v_high,
            case
                when v_part[3] is null then 1
                else dever.cron_step(cron_bits.field, v_item, v_part[3], v_high - v_low + 1)
            end
        );
    end loop;
    return v_bits;
end
$$;

comment on function dever.cron_bits(integer, text) is 'The bitmap of one cron field';

-- The one rule of all specs that fire at the same instants. Raises DV003 for dates that never come.
create function dever.cron_canonical(spec text, rule bigint[])
returns bigint[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_lengths integer[] := array[31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    v_every_weekday bigint := dever.cron_span(0, 6, 1);
    v_every_day bigint;
    v_longest integer := 0;
    v_days bigint;
    v_months bigint := cron_canonical.rule[4];
    v_weekdays bigint := cron_canonical.rule[5];
    v_either bigint := cron_canonical.rule[6];
begin
    for v_month in 1..12 loop
        if (v_months & (1::bigint << v_month)) <> 0 then
            v_longest := greatest(v_longest, v_lengths[v_month]);
        end if;
    end loop;
    v_every_day := dever.cron_span(1, v_longest, 1);
    v_days := cron_canonical.rule[3] & v_every_day;

    if v_either = 1 and v_days = 0 then
        v_days := v_every_day;
        v_either := 0;
    elsif v_either = 1 and v_days = v_every_day then
        v_weekdays := v_every_weekday;
        v_either := 0;
    end if;
    if v_either = 0 and v_weekdays = v_every_weekday then
        for v_month in 1..12 loop
            if (v_days & dever.cron_span(1, v_lengths[v_month], 1)) = 0 then
                v_months := v_months & ~(1::bigint << v_month);
            end if;
        end loop;
        if v_months = 0 then
            perform dever.refuse_spec(
                pg_catalog.format(
                    'the day of month field: %s names a date that never comes',
                    dever.shown_spec(cron_canonical.spec)
                ),
                'write a day that one of its months has'
            );
        end if;
    end if;
    return array[
        cron_canonical.rule[1], cron_canonical.rule[2], v_days, v_months, v_weekdays, v_either
    ];
end
$$;

comment on function dever.cron_canonical(text, bigint[]) is
'Leaves out of a cron rule what cannot matter, so that equal instants have equal rules';

-- Raises DV003 for anything that is not five-field cron, @every included.
create function dever.cron_rule(spec text)
returns bigint[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_fields text[];
    v_rule bigint[] := '{}';
    v_either bigint;
    v_field integer;
begin
    -- First of all, so that a hostile text costs nothing.
    if pg_catalog.octet_length(cron_rule.spec) > 512 then
        perform dever.refuse_spec(
            'the schedule spec is longer than 512 bytes',
            'write ranges and steps instead of long lists'
        );
    end if;
    if coalesce(cron_rule.spec, '') = '' then
        perform dever.refuse_spec(
            'the schedule spec is empty', 'write five fields, for example "0 3 * * *"'
        );
    end if;
    if pg_catalog.starts_with(cron_rule.spec, '@') then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s is not five fields', dever.shown_spec(cron_rule.spec)
            ),
            'write five fields (@daily is "0 0 * * *"); '
            '@every <n><s|m|h|d> is for schedule(...) alone'
        );
    end if;
    if pg_catalog.btrim(cron_rule.spec, ' ') <> cron_rule.spec then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s begins or ends with a space',
                dever.shown_spec(cron_rule.spec)
            ),
            'write five fields with spaces between them only'
        );
    end if;
    v_fields := pg_catalog.regexp_split_to_array(cron_rule.spec collate "C", ' +');
    if pg_catalog.cardinality(v_fields) <> 5 then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s has %s fields instead of 5',
                dever.shown_spec(cron_rule.spec),
                pg_catalog.cardinality(v_fields)
            ),
            'write minute, hour, day of month, month, day of week; there are no seconds'
        );
    end if;

    for v_number in 1..5 loop
        v_rule := v_rule || dever.cron_bits(v_number, v_fields[v_number]);
    end loop;
    -- Sunday is 0 and 7; folded only here, after ranges such as 5-7 are expanded.
    if (v_rule[5] & 128) <> 0 then
        v_rule[5] := (v_rule[5] & 127) | 1;
    end if;

    v_either := case when v_fields[3] <> '*' and v_fields[5] <> '*' then 1 else 0 end;
    if v_either = 1 then
        foreach v_field in array array[3, 5] loop
            if pg_catalog.starts_with(v_fields[v_field], '*')
                or v_rule[v_field] = dever.cron_bits(v_field, '*')
            then
                perform dever.refuse_field(
                    v_field,
                    v_fields[v_field],
                    'means different days in different dialects beside a second day field',
                    'write * in one of the two day fields, or a plain list of values in both'
                );
            end if;
        end loop;
    end if;
    return dever.cron_canonical(cron_rule.spec, v_rule || v_either);
end
$$;

comment on function dever.cron_rule(text) is
'The compiled form of a five-field cron spec; DV003 names the field and what to write instead';

-- Raises DV003.
create function dever.every_rule(spec text)
returns bigint[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_part text[];
    v_seconds bigint;
begin
    if pg_catalog.octet_length(every_rule.spec) > 512 then
        perform dever.refuse_spec(
            'the schedule spec is longer than 512 bytes', 'write for example @every 90s'
        );
    end if;
    v_part := pg_catalog.regexp_match(every_rule.spec collate "C", '^@every ([0-9]+)([smhd])$');
    if v_part is null then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s is not of the form @every <n><s|m|h|d>',
                dever.shown_spec(every_rule.spec)
            ),
            'write for example @every 90s, with one space and one lower-case unit'
        );
    end if;
    if pg_catalog.starts_with(v_part[1], '0') then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s has a number that is zero or starts with one',
                dever.shown_spec(every_rule.spec)
            ),
            'write a number from 1 without leading zeros'
        );
    end if;
    -- Ten digits hold the longest interval in seconds; more are never converted.
    if pg_catalog.length(v_part[1]) <= 10 then
        v_seconds := v_part[1]::bigint * case v_part[2]
            when 's' then 1
            when 'm' then 60
            when 'h' then 3600
            else 86400
        end;
    end if;
    if v_seconds is null or v_seconds > 36500::bigint * 86400 then
        perform dever.refuse_spec(
            pg_catalog.format(
                'the schedule spec %s is longer than 36,500 days',
                dever.shown_spec(every_rule.spec)
            ),
            'write a shorter interval'
        );
    end if;
    return array[v_seconds * 1000000];
end
$$;

comment on function dever.every_rule(text) is 'The compiled form of an @every spec: microseconds';

create function dever.schedule_rule(spec text)
returns bigint[]
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select case
        when pg_catalog.starts_with(spec, '@every') then dever.every_rule(spec)
        else dever.cron_rule(spec)
    end
$$;

comment on function dever.schedule_rule(text) is
'The compiled form of what a schedule takes: five-field cron or @every; DV003 otherwise';

create function dever.lowest_bit(bits bigint)
returns integer
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select 64 - pg_catalog.position((bits & (- bits))::bit(64), B'1')
$$;

comment on function dever.lowest_bit(bigint) is 'The number of the lowest bit that is set';

create function dever.highest_bit(bits bigint)
returns integer
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select 64 - pg_catalog.position(bits::bit(64), B'1')
$$;

comment on function dever.highest_bit(bigint) is 'The number of the highest bit that is set';

create function dever.bits_below(bits bigint, n integer)
returns integer
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select pg_catalog.bit_count((bits & ((1::bigint << n) - 1))::bit(64))::integer
$$;

comment on function dever.bits_below(bigint, integer) is 'How many bits below number n are set';

create function dever.cron_days(rule bigint[], first_day date)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_month integer := extract(month from cron_days.first_day);
    v_weekday integer := extract(dow from cron_days.first_day);
    v_length integer;
    v_whole bigint;
    v_by_weekday bigint := 0;
begin
    if (cron_days.rule[4] & (1::bigint << v_month)) = 0 then
        return 0;
    end if;
    v_length := extract(
        day from cron_days.first_day + interval '1 month' - interval '1 day'
    );
    v_whole := (1::bigint << (v_length + 1)) - 2;
    for v_day in 0..6 loop
        if (cron_days.rule[5] & (1::bigint << v_day)) <> 0 then
            -- 270549121: bits 0, 7, 14, 21 and 28, one weekday through a month.
            v_by_weekday := v_by_weekday
                | (270549121::bigint << (1 + (v_day - v_weekday + 7) % 7));
        end if;
    end loop;
    if cron_days.rule[6] = 1 then
        return (cron_days.rule[3] | v_by_weekday) & v_whole;
    end if;
    return cron_days.rule[3] & v_by_weekday & v_whole;
end
$$;

comment on function dever.cron_days(bigint[], date) is
'The bitmap of the days on which a cron rule fires in the month that begins on that day';

-- The first instant after the given one, which for @every is a boundary. Raises DV007 when that is
-- outside the years 1 to 9999.
create function dever.rule_next(rule bigint[], after timestamptz)
returns timestamptz
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_from timestamp;
    v_first date;
    v_day integer;
    v_hour integer;
    v_minute integer;
    v_days bigint;
    v_rest bigint;
begin
    if pg_catalog.cardinality(rule_next.rule) = 1 then
        return dever.check_instant(
            rule_next.after + dever.as_interval(rule_next.rule[1]), 'the next instant'
        );
    end if;

    v_from := pg_catalog.date_trunc('minute', rule_next.after at time zone 'UTC')
        + interval '1 minute';
    v_first := pg_catalog.date_trunc('month', v_from)::date;
    v_day := extract(day from v_from);
    v_hour := extract(hour from v_from);
    v_minute := extract(minute from v_from);
    v_days := dever.cron_days(rule_next.rule, v_first) & ~((1::bigint << v_day) - 1);

    -- Later on the same day: later in this hour, else in a later hour.
    if (v_days & (1::bigint << v_day)) <> 0 then
        v_rest := rule_next.rule[1] & ~((1::bigint << v_minute) - 1);
        if (rule_next.rule[2] & (1::bigint << v_hour)) = 0 or v_rest = 0 then
            v_minute := dever.lowest_bit(rule_next.rule[1]);
            v_rest := rule_next.rule[2] & ~((2::bigint << v_hour) - 1);
            v_hour := case when v_rest <> 0 then dever.lowest_bit(v_rest) end;
        else
            v_minute := dever.lowest_bit(v_rest);
        end if;
        if v_hour is not null then
            return dever.check_instant(
                (v_first + (v_day - 1) + pg_catalog.make_time(v_hour, v_minute, 0))
                    at time zone 'UTC',
                'the next instant'
            );
        end if;
        v_days := v_days & ~(1::bigint << v_day);
    end if;

    -- 97 months reach over the longest gap.
    for v_month in 1..97 loop
        exit when v_days <> 0;
        v_first := (v_first + interval '1 month')::date;
        v_days := dever.cron_days(rule_next.rule, v_first);
    end loop;
    return dever.check_instant(
        (
            v_first + (dever.lowest_bit(v_days) - 1)
            + pg_catalog.make_time(
                dever.lowest_bit(rule_next.rule[2]), dever.lowest_bit(rule_next.rule[1]), 0
            )
        ) at time zone 'UTC',
        'the next instant'
    );
end
$$;

comment on function dever.rule_next(bigint[], timestamptz) is
'The first instant of a compiled spec strictly after an instant; for @every that is a boundary';

-- The last instant at or before the given one, but not before a known boundary.
create function dever.rule_last(rule bigint[], boundary timestamptz, instant timestamptz)
returns timestamptz
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_from timestamp := rule_last.instant at time zone 'UTC';
    v_first date := pg_catalog.date_trunc('month', v_from)::date;
    v_day integer := extract(day from v_from);
    v_hour integer := extract(hour from v_from);
    v_minute integer := extract(minute from v_from);
    v_days bigint;
    v_rest bigint;
begin
    if pg_catalog.cardinality(rule_last.rule) = 1 then
        return rule_last.boundary + dever.as_interval(
            dever.rule_count(rule_last.rule, rule_last.boundary, rule_last.instant)
            * rule_last.rule[1]
        );
    end if;

    v_days := dever.cron_days(rule_last.rule, v_first) & ((2::bigint << v_day) - 1);
    -- Earlier on the same day: earlier in this hour, else in an earlier hour.
    if (v_days & (1::bigint << v_day)) <> 0 then
        v_rest := rule_last.rule[1] & ((2::bigint << v_minute) - 1);
        if (rule_last.rule[2] & (1::bigint << v_hour)) = 0 or v_rest = 0 then
            v_minute := dever.highest_bit(rule_last.rule[1]);
            v_rest := rule_last.rule[2] & ((1::bigint << v_hour) - 1);
            v_hour := case when v_rest <> 0 then dever.highest_bit(v_rest) end;
        else
            v_minute := dever.highest_bit(v_rest);
        end if;
        if v_hour is not null then
            return greatest(
                rule_last.boundary,
                (v_first + (v_day - 1) + pg_catalog.make_time(v_hour, v_minute, 0))
                    at time zone 'UTC'
            );
        end if;
        v_days := v_days & ~(1::bigint << v_day);
    end if;

    while v_days = 0 and v_first >= (rule_last.boundary at time zone 'UTC')::date loop
        v_first := (v_first - interval '1 month')::date;
        v_days := dever.cron_days(rule_last.rule, v_first);
    end loop;
    if v_days = 0 then
        return rule_last.boundary;
    end if;
    return greatest(
        rule_last.boundary,
        (
            v_first + (dever.highest_bit(v_days) - 1)
            + pg_catalog.make_time(
                dever.highest_bit(rule_last.rule[2]), dever.highest_bit(rule_last.rule[1]), 0
            )
        ) at time zone 'UTC'
    );
end
$$;

comment on function dever.rule_last(bigint[], timestamptz, timestamptz) is
'The newest boundary of a compiled spec at or before an instant, at least the given boundary';

-- The windows of a cron rule from the first of the instant's month up to the instant, included.
create function dever.cron_elapsed(rule bigint[], instant timestamptz)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_utc timestamp := cron_elapsed.instant at time zone 'UTC';
    v_day integer := extract(day from v_utc);
    v_hour integer := extract(hour from v_utc);
    v_minute integer := extract(minute from v_utc);
    v_days bigint := dever.cron_days(
        cron_elapsed.rule, pg_catalog.date_trunc('month', v_utc)::date
    );
    v_an_hour bigint := dever.bits_below(cron_elapsed.rule[1], 60);
    v_total bigint;
begin
    v_total := dever.bits_below(v_days, v_day)
        * dever.bits_below(cron_elapsed.rule[2], 24) * v_an_hour;
    if (v_days & (1::bigint << v_day)) <> 0 then
        v_total := v_total + dever.bits_below(cron_elapsed.rule[2], v_hour) * v_an_hour;
        if (cron_elapsed.rule[2] & (1::bigint << v_hour)) <> 0 then
            v_total := v_total + dever.bits_below(cron_elapsed.rule[1], v_minute + 1);
        end if;
    end if;
    return v_total;
end
$$;

comment on function dever.cron_elapsed(bigint[], timestamptz) is
'How often a cron rule fires from the first of the month up to an instant, which is included';

-- Millions of windows are counted by arithmetic: closed form for @every, bitmaps per month for
-- cron.
create function dever.rule_count(rule bigint[], after timestamptz, until timestamptz)
returns bigint
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_first date := pg_catalog.date_trunc('month', rule_count.after at time zone 'UTC')::date;
    v_last date := pg_catalog.date_trunc('month', rule_count.until at time zone 'UTC')::date;
    v_a_day bigint;
    v_total bigint;
begin
    if rule_count.until <= rule_count.after then
        return 0;
    end if;
    if pg_catalog.cardinality(rule_count.rule) = 1 then
        return pg_catalog.div(
            extract(epoch from rule_count.until - rule_count.after) * 1000000, rule_count.rule[1]
        )::bigint;
    end if;
    v_a_day := dever.bits_below(rule_count.rule[1], 60) * dever.bits_below(rule_count.rule[2], 24);
    v_total := dever.cron_elapsed(rule_count.rule, rule_count.until)
        - dever.cron_elapsed(rule_count.rule, rule_count.after);
    while v_first < v_last loop
        v_total := v_total
            + dever.bits_below(dever.cron_days(rule_count.rule, v_first), 32) * v_a_day;
        v_first := (v_first + interval '1 month')::date;
    end loop;
    return v_total;
end
$$;

comment on function dever.rule_count(bigint[], timestamptz, timestamptz) is
'How many instants of a compiled spec lie in (after, until]; for @every after is a boundary';

create function dever.cron_next(spec text, after timestamptz)
returns timestamptz
language plpgsql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_rule bigint[] := dever.schedule_rule(cron_next.spec);
begin
    if cron_next.after is null then
        raise exception using
            errcode = 'DV007',
            message = 'after is missing',
            hint = 'say after which instant';
    end if;
    return dever.rule_next(v_rule, dever.check_instant(cron_next.after, 'after'));
end
$$;

comment on function dever.cron_next(text, timestamptz) is
'The first instant of a spec strictly after an instant, which for @every counts as a boundary';

create function dever.cron_preview(spec text, after timestamptz, n integer)
returns setof timestamptz
language plpgsql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_rule bigint[] := dever.schedule_rule(cron_preview.spec);
    v_next timestamptz := dever.check_instant(cron_preview.after, 'after');
begin
    if v_next is null or cron_preview.n is null or cron_preview.n > 10000 then
        raise exception using
            errcode = 'DV007',
            message = 'after or n is missing, or n is above 10,000',
            hint = 'say after which instant, and ask for at most 10,000';
    end if;
    for v_i in 1..cron_preview.n loop
        v_next := dever.rule_next(v_rule, v_next);
        return next v_next;
    end loop;
end
$$;

comment on function dever.cron_preview(text, timestamptz, integer) is
'The first n instants of a spec after an instant; n <= 0 returns nothing';
