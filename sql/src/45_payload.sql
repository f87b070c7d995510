-- The payload check: does a JSON value fit a wire schema (docs/wire.md), and if not, where and why.
--
-- payload_fault walks schema and value together, depth first in the schema's order, and returns the
-- first fault as "<path> <what>", or null. It never puts a value into its text: payloads are private.

create function dever.is_wire_decimal(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return value ~ '^-?(0|[1-9][0-9]*)([.][0-9]+)?(E[+-]?[0-9]{1,6})?$';
end
$$;

comment on function dever.is_wire_decimal(text) is 'The form of an exact decimal on the wire';

create function dever.is_wire_date(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    -- By arithmetic, not by a cast: a cast raises, and what it accepts depends on DateStyle.
    return case
        when value ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$' and pg_catalog.substr(value, 1, 4) <> '0000'
            then
                pg_catalog.substr(value, 6, 2)::integer between 1 and 12
                and pg_catalog.substr(value, 9, 2)::integer between 1 and case
                    when pg_catalog.substr(value, 6, 2) in ('04', '06', '09', '11') then 30
                    when pg_catalog.substr(value, 6, 2) <> '02' then 31
                    when pg_catalog.substr(value, 1, 4)::integer % 4 = 0
                        and (
                            pg_catalog.substr(value, 1, 4)::integer % 100 <> 0
                            or pg_catalog.substr(value, 1, 4)::integer % 400 = 0
                        ) then 29
                    else 28
                end
        else false
    end;
end
$$;

comment on function dever.is_wire_date(text) is 'The form of a real calendar date on the wire, years 1 to 9999';

create function dever.is_wire_time(value text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return value ~ '^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?$';
end
$$;

comment on function dever.is_wire_time(text) is 'The form of a time of day on the wire';

create function dever.is_wire_integer(value jsonb)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when pg_catalog.jsonb_typeof(value) = 'number' and value::text ~ '^-?[0-9]{1,19}$'
            then value::text::numeric between -9223372036854775808 and 9223372036854775807
        else false
    end;
end
$$;

comment on function dever.is_wire_integer(jsonb) is 'A JSON integer of 64 bits, without fraction or exponent';

create function dever.is_wire_float(value jsonb)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Below 2^1024 - 2^970, where rounding to a float64 gives infinity.
    return case
        when pg_catalog.jsonb_typeof(value) = 'number'
            then pg_catalog.abs(value::text::numeric) < (2::numeric ^ 1024 - 2::numeric ^ 970)
        else false
    end;
end
$$;

comment on function dever.is_wire_float(jsonb) is 'A JSON number that is finite as a float64';

-- Fault of a scalar kind, null when it fits. The text goes behind the path.
create function dever.scalar_fault(schema jsonb, payload jsonb)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_kind text := scalar_fault.schema ->> 'kind';
    v_type text := pg_catalog.jsonb_typeof(scalar_fault.payload);
    v_text text;
    v_got text := ', got ' || case v_type when 'string' then 'text' else v_type end;
begin
    if v_kind in ('text', 'decimal', 'uuid', 'datetime', 'date', 'time') then
        if v_type <> 'string' then
            return case v_kind
                when 'text' then 'must be text'
                when 'uuid' then 'must be a uuid as text'
                else 'must be a ' || v_kind || ' as text'
            end || v_got;
        end if;
        v_text := scalar_fault.payload #>> '{}';
    end if;
    case v_kind
        when 'text' then
            return null;
        when 'int' then
            if v_type <> 'number' then
                return 'must be an integer' || v_got;
            end if;
            if not dever.is_wire_integer(scalar_fault.payload) then
                return 'must be an integer of 64 bits without fraction or exponent';
            end if;
        when 'bool' then
            if v_type <> 'boolean' then
                return 'must be true or false' || v_got;
            end if;
        when 'float' then
            if v_type <> 'number' then
                return 'must be a number' || v_got;
            end if;
            if not dever.is_wire_float(scalar_fault.payload) then
                return 'must be a finite number';
            end if;
        when 'decimal' then
            if not dever.is_wire_decimal(v_text) then
                return 'is not a decimal (such as 12.50)';
            end if;
        when 'uuid' then
            if v_text !~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' then
                return 'is not a uuid (8-4-4-4-12 hexadecimal digits)';
            end if;
        when 'datetime' then
            if not (
                dever.is_wire_date(pg_catalog.substr(v_text, 1, 10))
                and v_text ~ '^.{10}T.*Z$'
                and dever.is_wire_time(pg_catalog.substr(v_text, 12, pg_catalog.length(v_text) - 12))
            ) then
                return 'is not a datetime (RFC 3339, UTC, ends in Z)';
            end if;
        when 'date' then
            if not dever.is_wire_date(v_text) then
                return 'is not a date (YYYY-MM-DD)';
            end if;
        when 'time' then
            if not dever.is_wire_time(v_text) then
                return 'is not a time (HH:MM:SS, up to six decimals)';
            end if;
        when 'duration' then
            if v_type <> 'number' then
                return 'must be a duration in integer microseconds' || v_got;
            end if;
            if not dever.is_wire_integer(scalar_fault.payload) then
                return 'must be a duration in integer microseconds of 64 bits';
            end if;
        when 'enum' then
            if v_type not in ('string', 'number') then
                return 'must be one of the values of ' || (scalar_fault.schema ->> 'name') || v_got;
            end if;
            -- By text: jsonb takes 1 and 1.0 for equal, the wire does not.
            if not exists (
                select
                from pg_catalog.jsonb_array_elements(scalar_fault.schema -> 'values') as e
                where e.value::text = scalar_fault.payload::text
            ) then
                return 'is not one of the values of ' || (scalar_fault.schema ->> 'name');
            end if;
        when 'model' then
            if v_type = 'number' then
                if not dever.is_wire_integer(scalar_fault.payload) then
                    return 'must be a model id: an integer of 64 bits or text';
                end if;
            elsif v_type <> 'string' then
                return 'must be a model id: an integer of 64 bits or text' || v_got;
            elsif scalar_fault.payload #>> '{}' = '' then
                return 'must be a model id, got empty text';
            end if;
        when 'null' then
            if v_type <> 'null' then
                return 'must be null: the job takes no input' || v_got;
            end if;
        else
            return 'has a schema of a kind that this version does not know';
    end case;
    return null;
end
$$;

comment on function dever.scalar_fault(jsonb, jsonb) is 'Why a scalar does not fit its wire kind, null when it fits';

-- Any JSON value of kind "json": the limits that hold for every number in it.
create function dever.json_fault(payload jsonb)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- jsonb writes every number as plain digits: short ones cannot be out of range.
    if json_fault.payload::text !~ '[0-9]{19}' then
        return null;
    end if;
    if exists (
        with recursive
        part as (
            select json_fault.payload as value
            union all
            select c.value
            from part as p
            cross join lateral (
                select e.value
                from pg_catalog.jsonb_array_elements(
                    case when pg_catalog.jsonb_typeof(p.value) = 'array' then p.value end
                ) as e
                union all
                select m.value
                from pg_catalog.jsonb_each(
                    case when pg_catalog.jsonb_typeof(p.value) = 'object' then p.value end
                ) as m
            ) as c
        )
        select
        from part as p
        where pg_catalog.jsonb_typeof(p.value) = 'number'
            and not dever.is_wire_integer(p.value)
            -- jsonb writes 1e300 as 301 digits. No float64 needs more than 17 of them: with more an
            -- integer was meant exactly, and it is outside 64 bits.
            and not (
                dever.is_wire_float(p.value)
                and (
                    p.value::text !~ '^-?[0-9]+$'
                    or pg_catalog.length(pg_catalog.rtrim(pg_catalog.ltrim(p.value::text, '-'), '0')) <= 17
                )
            )
    ) then
        return 'holds a number outside 64 bits';
    end if;
    return null;
end
$$;

comment on function dever.json_fault(jsonb) is 'Why a free JSON value is refused, null when it is fine';

-- First fault of a payload against a node of the wire schema, as "<path> <what>"; null when it fits.
create function dever.payload_fault(schema jsonb, payload jsonb, path text default 'payload')
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_kind text := payload_fault.schema ->> 'kind';
    v_type text := pg_catalog.jsonb_typeof(payload_fault.payload);
    v_got text := ', got ' || case v_type when 'string' then 'text' else v_type end;
    v_item jsonb;
    v_index bigint := 0;
    v_name text;
    v_node jsonb;
    v_fault text;
begin
    case v_kind
        when 'optional' then
            if v_type = 'null' then
                return null;
            end if;
            return dever.payload_fault(
                payload_fault.schema -> 'item', payload_fault.payload, payload_fault.path
            );
        when 'json' then
            return payload_fault.path || ' ' || dever.json_fault(payload_fault.payload);
        when 'list' then
            if v_type <> 'array' then
                return payload_fault.path || ' must be a list' || v_got;
            end if;
            v_node := payload_fault.schema -> 'item';
            if v_node ->> 'kind' in ('optional', 'json', 'list', 'record') then
                for v_item in
                    select e.value
                    from pg_catalog.jsonb_array_elements(payload_fault.payload) as e
                loop
                    v_fault := dever.payload_fault(
                        v_node, v_item, payload_fault.path || '[' || v_index || ']'
                    );
                    if v_fault is not null then
                        return v_fault;
                    end if;
                    v_index := v_index + 1;
                end loop;
                return null;
            end if;
            select payload_fault.path || '[' || (s.ordinal - 1) || '] ' || s.fault into v_fault
            from (
                select e.ordinal, dever.scalar_fault(v_node, e.value) as fault
                from pg_catalog.jsonb_array_elements(payload_fault.payload)
                    with ordinality as e (value, ordinal)
            ) as s
            where s.fault is not null
            limit 1;
            return v_fault;
        when 'record' then
            if v_type <> 'object' then
                return payload_fault.path || ' must be an object ('
                    || (payload_fault.schema ->> 'name') || ')' || v_got;
            end if;
            for v_name, v_node in
                select f.value ->> 'name', f.value -> 'type'
                from pg_catalog.jsonb_array_elements(payload_fault.schema -> 'fields') as f
            loop
                v_item := payload_fault.payload -> v_name;
                if v_item is null then
                    return payload_fault.path || '.' || v_name || ' is missing';
                end if;
                v_fault := dever.payload_fault(v_node, v_item, payload_fault.path || '.' || v_name);
                if v_fault is not null then
                    return v_fault;
                end if;
                v_index := v_index + 1;
            end loop;
            if v_index < (select pg_catalog.count(*) from pg_catalog.jsonb_object_keys(payload_fault.payload)) then
                -- Cut: a client chose this name, and an error line should stay a line.
                select payload_fault.path || '.' || pg_catalog.left(k.name, 100) || ' is not a known field'
                into v_fault
                from pg_catalog.jsonb_object_keys(payload_fault.payload) as k (name)
                where not exists (
                    select
                    from pg_catalog.jsonb_array_elements(payload_fault.schema -> 'fields') as f
                    where f.value ->> 'name' = k.name
                )
                order by k.name collate "C"
                limit 1;
                return v_fault;
            end if;
            return null;
        else
            return payload_fault.path || ' ' || dever.scalar_fault(payload_fault.schema, payload_fault.payload);
    end case;
end
$$;

comment on function dever.payload_fault(jsonb, jsonb, text) is
'Where and why a payload does not fit a wire schema, null when it fits; never shows a value';

-- Nesting depth and number of values, by levels. Reads only its argument.
create function dever.json_extent(payload jsonb, out depth integer, out value_count bigint)
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_level jsonb[] := array[json_extent.payload];
    v_containers jsonb[];
begin
    depth := 0;
    value_count := 1;
    loop
        v_containers := array(
            select v.value
            from pg_catalog.unnest(v_level) as v (value)
            where pg_catalog.jsonb_typeof(v.value) in ('array', 'object')
        );
        exit when pg_catalog.cardinality(v_containers) = 0;
        depth := depth + 1;
        exit when depth > 64;
        v_level := array(
            select e.value
            from pg_catalog.unnest(v_containers) as c (value)
            cross join lateral pg_catalog.jsonb_array_elements(
                case when pg_catalog.jsonb_typeof(c.value) = 'array' then c.value end
            ) as e (value)
            union all
            select m.value
            from pg_catalog.unnest(v_containers) as c (value)
            cross join lateral pg_catalog.jsonb_each(
                case when pg_catalog.jsonb_typeof(c.value) = 'object' then c.value end
            ) as m
        );
        value_count := value_count + pg_catalog.cardinality(v_level);
        exit when value_count > 65536;
    end loop;
end
$$;

comment on function dever.json_extent(jsonb) is
'Nesting and number of values of a JSON value; stops counting once a limit is passed';

-- Raises DV005 when the payload is larger, deeper or more than any payload may be. subject goes into
-- the message, such as "payload of job shop.order".
create function dever.check_payload_limits(payload jsonb, subject text)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_text text := check_payload_limits.payload::text;
    v_length bigint := pg_catalog.octet_length(v_text);
    v_extent record;
    v_fault text;
begin
    if v_length > 16777216 then
        v_fault := pg_catalog.format('it is %s bytes long, 16,777,216 (16 MiB) are the limit', v_length);
    elsif v_length > 65536
        or pg_catalog.length(pg_catalog.translate(v_text, '[{', '')) < pg_catalog.length(v_text) - 64
    then
        -- Only a text this long or with this many brackets can pass the other two limits.
        v_extent := dever.json_extent(check_payload_limits.payload);
        if v_extent.depth > 64 then
            v_fault := 'it is nested more than 64 levels deep';
        elsif v_extent.value_count > 65536 then
            v_fault := 'it holds more than 65,536 values';
        end if;
    end if;
    if v_fault is not null then
        raise exception using
            errcode = 'DV005',
            message = pg_catalog.format('%s is too large: %s', check_payload_limits.subject, v_fault),
            hint = 'store the data in a table of your own and send its id';
    end if;
end
$$;

comment on function dever.check_payload_limits(jsonb, text) is
'The limits of every payload: 16 MiB of text, 64 levels, 65,536 values';

-- Raises DV005 unless the payload fits the contract. item: place in a batch, null for a single call.
create function dever.check_payload(contract dever.contract, payload jsonb, item bigint)
returns void
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_subject text := 'payload of job ' || (check_payload.contract).target
        || coalesce(' (item ' || check_payload.item || ')', '');
    v_fault text;
begin
    perform dever.check_payload_limits(check_payload.payload, v_subject);
    v_fault := dever.payload_fault((check_payload.contract).wire_schema, check_payload.payload);
    if v_fault is not null then
        raise exception using
            errcode = 'DV005',
            message = pg_catalog.format('%s does not fit: %s', v_subject, v_fault),
            detail = pg_catalog.format(
                'target=%s fingerprint=%s', (check_payload.contract).target, (check_payload.contract).fingerprint
            ),
            hint = 'send the fields that the job declares; dever.contract.wire_schema shows them';
    end if;
end
$$;

comment on function dever.check_payload(dever.contract, jsonb, bigint) is
'Refuses a payload that does not fit the contract, naming the field';

create function dever.may_see_payload()
returns boolean
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select
        pg_catalog.has_function_privilege('dever.claim(text,text,integer,interval,integer[])', 'execute')
        or pg_catalog.has_function_privilege('dever.cancel(bigint[])', 'execute')
$$;

comment on function dever.may_see_payload() is 'Whether the current role may work or administer, and so see payloads';
