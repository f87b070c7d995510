-- The payload check: does a JSON text fit a wire schema (docs/wire.md), and if not, where and why.
--
-- Never puts a value into its text: payloads are private. Differs by necessity: the walk is one
-- query over json_tree, joined level by level to the flattened schema (dever_schema_node); json_tree
-- is read once into a materialized table, or the walk would be quadratic. The raw text is looked at
-- too, because SQLite accepts what jsonb refuses: U+0000, lone surrogates, repeated members, numbers
-- beyond 64 bits (whose json_type is integer and whose value is not) and 1e400 (infinity).

-- Raises DV005 when the payload is not JSON, or larger, deeper or more than any payload may be.
-- subject goes into the message, such as "payload of job shop.order".
create view dever_check_payload_limits (payload, subject) as
select null, null
where false;

create trigger dever_check_payload_limits_call
instead of insert on dever_check_payload_limits
begin
    insert into dever_raise (message)
    values (
        case
            when typeof(new.payload) <> 'text'
                then 'DV005 InvalidPayload: ' || new.subject || ' is not JSON text'
            when length(cast(new.payload as blob)) > 16777216
                then format(
                    'DV005 InvalidPayload: %s is too large: it is %,d bytes long, 16,777,216 (16 MiB) are the limit
hint: store the data in a table of your own and send its id',
                    new.subject, length(cast(new.payload as blob))
                )
            when instr(new.payload, char(0)) > 0 or not json_valid(new.payload)
                then 'DV005 InvalidPayload: ' || new.subject || ' is not valid JSON'
        end
    );

    -- U+0000, which PostgreSQL cannot store and SQLite cuts at. `\\` is respelt first, so that every
    -- backslash that is left begins an escape.
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' does not fit: payload'
        || replace(replace(substr(t.fullkey, 2), '"', ''), '\ue000dever-nul', '')
        || ' holds U+0000'
    from json_tree(
        replace(replace(new.payload, '\\', '\u005c'), '\u0000', '\ue000dever-nul')
    ) as t
    where instr(replace(new.payload, '\\', ''), '\u0000') > 0
        and (
            instr(t.key, char(57344) || 'dever-nul') > 0
            or (t.type = 'text' and instr(t.atom, char(57344) || 'dever-nul') > 0)
        )
    limit 1;

    -- Half of a surrogate pair, or what is no UTF-8: glob reads either as U+FFFD, and U+FFFE and
    -- U+FFFF too, so those that really stand there are taken out first.
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' does not fit: payload'
        || replace(substr(t.fullkey, 2), '"', '') || ' holds a lone surrogate'
    from (
        select t.fullkey, t.key, iif(t.type = 'text', t.atom, null) as atom
        from json_tree(new.payload) as t
        where lower(new.payload) glob '*\ud[89a-f]*'
            or new.payload glob '*' || char(65533) || '*'
    ) as t
    where replace(replace(replace(t.key, char(65533), ''), char(65534), ''), char(65535), '')
        glob '*' || char(65533) || '*'
        or replace(replace(replace(t.atom, char(65533), ''), char(65534), ''), char(65535), '')
        glob '*' || char(65533) || '*'
    limit 1;

    -- Only a text this long or with this many brackets can pass the other two limits.
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' is too large: it holds more than 65,536 values
hint: store the data in a table of your own and send its id'
    where length(new.payload) > 65536
        and (select count(*) from json_tree(new.payload) as t) > 65536;
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' is too large: it is nested more than 64 levels deep
hint: store the data in a table of your own and send its id'
    where length(new.payload) - 64
        > length(replace(replace(new.payload, '[', ''), '{', ''))
        and exists (
            with recursive
            container as materialized (
                select t.id, t.parent
                from json_tree(new.payload) as t
                where t.type in ('array', 'object')
            ),
            nested (id, depth) as (
                select t.id, 1
                from container as t
                where t.parent is null
                union all
                select t.id, n.depth + 1
                from nested as n
                inner join container as t on t.parent = n.id
                where n.depth <= 64
            )
            select 1
            from nested as n
            where n.depth > 64
        );
end;

-- Raises DV005 when a number of a free JSON value (a message) is beyond 64 bits: an integer of more
-- than the 17 digits that a float64 can need, or infinity. One below a member whose name has a quote in
-- it cannot be read back by its path, and is refused.
create view dever_check_json (payload, subject) as
select null, null
where false;

create trigger dever_check_json_call
instead of insert on dever_check_json
begin
    insert into dever_raise (message)
    select 'DV005 InvalidPayload: ' || new.subject || ' holds a number outside 64 bits
hint: send large numbers as text'
    from json_tree(new.payload) as t
    where t.type in ('integer', 'real')
        and typeof(t.atom) = 'real'
        and (
            abs(t.atom) > 1.7976931348623157e308
            or (
                t.type = 'integer'
                and coalesce(length(rtrim(ltrim(new.payload -> t.fullkey, '-'), '0')), 18) > 17
            )
        )
    limit 1;
end;

-- Raises DV005 unless the payload fits the contract. item: place in a batch, null for a single call.
create view dever_check_payload (contract_id, target, payload, item) as
select null, null, null, null
where false;

create trigger dever_check_payload_call
instead of insert on dever_check_payload
begin
    insert into dever_check_payload_limits (payload, subject)
    values (
        new.payload,
        'payload of job ' || new.target || coalesce(' (item ' || new.item || ')', '')
    );
    insert into dever_raise (message)
    select
        'DV005 InvalidPayload: payload of job ' || new.target
        || coalesce(' (item ' || new.item || ')', '') || ' does not fit: payload'
        -- SQLite quotes a name with an underscore.
        || replace(
            (select substr(t.fullkey, 2) from json_tree(new.payload) as t where t.id = f.id),
            '"', ''
        )
        -- Cut: a client chose this name, and an error line should stay a line.
        || coalesce('.' || substr(f.name, 1, 100), '') || ' ' || f.fault || '
hint: send the fields that the job declares; dever_contract.wire_schema shows them'
    from (
        with recursive
        value as materialized (
            select t.id, t.parent, t.key, t.type, t.atom
            from json_tree(new.payload) as t
        ),
        -- As in dever_check_json.
        large as materialized (
            select t.id
            from json_tree(new.payload) as t
            where t.type = 'integer'
                and typeof(t.atom) = 'real'
                and coalesce(length(rtrim(ltrim(new.payload -> t.fullkey, '-'), '0')), 18) > 17
        ),
        -- Every value with its node of the schema, in the schema's order by rank; unknown members
        -- have no node. What lies below a free JSON value is walked with that node.
        walk (id, parent, key, type, atom, node, kind, nullable, label, allowed, fields, rank) as (
            select
                v.id, -1, null, v.type, v.atom, n.id, n.kind, n.nullable, n.label, n.allowed,
                n.fields, ''
            from value as v
            inner join dever_schema_node as n
                on n.contract_id = new.contract_id and n.parent = -1 and n.name = ''
            where v.parent is null
            union all
            select
                v.id, w.id, v.key, v.type, v.atom,
                iif(w.kind = 'json', w.node, n.id),
                iif(w.kind = 'json', 'json', n.kind),
                n.nullable, n.label, n.allowed, n.fields,
                w.rank || format('%06d', iif(w.kind = 'record', coalesce(n.position, 999999), v.key))
            from walk as w
            inner join value as v on v.parent = w.id
            left join dever_schema_node as n
                on n.contract_id = new.contract_id
                    and n.parent = w.node
                    and n.name = iif(w.kind = 'record', v.key, '')
            where (w.kind = 'record' and w.type = 'object')
                or (w.kind = 'list' and w.type = 'array')
                or w.kind = 'json'
        ),
        member as materialized (
            select
                w.*,
                ', got ' || case
                    when w.type in ('true', 'false') then 'boolean'
                    when w.type in ('integer', 'real') then 'number'
                    else w.type
                end as got
            from walk as w
        ),
        -- Members of records that occur, each once.
        present as materialized (
            select m.parent, m.node, min(m.id) as id, min(m.rank) as rank, count(*) as times
            from member as m
            inner join member as r on r.id = m.parent and r.kind = 'record'
            where m.node is not null
            group by m.parent, m.node
        ),
        fault (id, name, rank, fault) as (
            select m.parent, m.key, m.rank, 'is not a known field'
            from member as m
            where m.node is null
            union all
            select m.id, null, m.rank, case
                when m.type = 'null' and m.nullable then null
                when m.kind = 'json'
                    then iif(
                        typeof(m.atom) = 'real'
                        and (
                            abs(m.atom) > 1.7976931348623157e308
                            or (m.type = 'integer' and m.id in (select l.id from large as l))
                        ),
                        'holds a number outside 64 bits',
                        null
                    )
                when m.kind = 'record'
                    then iif(
                        m.type <> 'object', 'must be an object (' || m.label || ')' || m.got, null
                    )
                when m.kind = 'list' then iif(m.type <> 'array', 'must be a list' || m.got, null)
                when m.kind = 'text' then iif(m.type <> 'text', 'must be text' || m.got, null)
                when m.kind in ('int', 'duration') and m.type not in ('integer', 'real')
                    then iif(
                        m.kind = 'int', 'must be an integer',
                        'must be a duration in integer microseconds'
                    ) || m.got
                when m.kind in ('int', 'duration')
                    then iif(
                        m.type = 'integer' and typeof(m.atom) = 'integer',
                        null,
                        iif(
                            m.kind = 'int',
                            'must be an integer of 64 bits without fraction or exponent',
                            'must be a duration in integer microseconds of 64 bits'
                        )
                    )
                when m.kind = 'bool'
                    then iif(m.type not in ('true', 'false'), 'must be true or false' || m.got, null)
                when m.kind = 'float'
                    then case
                        when m.type not in ('integer', 'real') then 'must be a number' || m.got
                        when abs(cast(m.atom as real)) > 1.7976931348623157e308
                            then 'must be a finite number'
                    end
                when m.kind = 'enum'
                    then case
                        when m.type not in ('text', 'integer', 'real')
                            then 'must be one of the values of ' || m.label || m.got
                        when not exists (
                            select 1
                            from json_each(m.allowed) as e
                            where e.type = m.type and e.atom = m.atom
                        ) then 'is not one of the values of ' || m.label
                    end
                when m.kind = 'model'
                    then case
                        when m.type = 'text'
                            then iif(m.atom = '', 'must be a model id, got empty text', null)
                        when m.type = 'integer' and typeof(m.atom) = 'integer' then null
                        when m.type in ('integer', 'real')
                            then 'must be a model id: an integer of 64 bits or text'
                        else 'must be a model id: an integer of 64 bits or text' || m.got
                    end
                when m.kind = 'null'
                    then iif(
                        m.type <> 'null', 'must be null: the job takes no input' || m.got, null
                    )
                when m.kind not in ('decimal', 'uuid', 'datetime', 'date', 'time')
                    then 'has a schema of a kind that this version does not know'
                when m.type <> 'text'
                    then iif(m.kind = 'uuid', 'must be a uuid', 'must be a ' || m.kind)
                    || ' as text' || m.got
                when m.kind = 'uuid'
                    then iif(
                        length(m.atom) = 36
                        and substr(m.atom, 9, 1) || substr(m.atom, 14, 1) || substr(m.atom, 19, 1)
                        || substr(m.atom, 24, 1) = '----'
                        and length(replace(m.atom, '-', '')) = 32
                        and replace(m.atom, '-', '') not glob '*[^0-9a-fA-F]*',
                        null,
                        'is not a uuid (8-4-4-4-12 hexadecimal digits)'
                    )
                when m.kind = 'decimal'
                    then iif(
                        (
                            select
                                d.whole not glob '*[^0-9]*'
                                and d.whole <> ''
                                and (d.whole = '0' or substr(d.whole, 1, 1) <> '0')
                                and (
                                    d.point = 0
                                    or (d.fraction <> '' and d.fraction not glob '*[^0-9]*')
                                )
                                and (
                                    d.e = 0
                                    or (
                                        length(d.exponent) between 1 and 6
                                        and d.exponent not glob '*[^0-9]*'
                                    )
                                )
                            from (
                                select
                                    s.e,
                                    instr(s.mantissa, '.') as point,
                                    substr(
                                        s.mantissa, 1,
                                        iif(
                                            instr(s.mantissa, '.'),
                                            instr(s.mantissa, '.') - 1,
                                            length(s.mantissa)
                                        )
                                    ) as whole,
                                    substr(s.mantissa, instr(s.mantissa, '.') + 1) as fraction,
                                    substr(
                                        s.number,
                                        s.e + 1
                                        + (substr(s.number, s.e + 1, 1) in ('+', '-'))
                                    ) as exponent
                                from (
                                    select
                                        u.number,
                                        instr(u.number, 'E') as e,
                                        substr(
                                            u.number, 1,
                                            iif(
                                                instr(u.number, 'E'),
                                                instr(u.number, 'E') - 1,
                                                length(u.number)
                                            )
                                        ) as mantissa
                                    from (
                                        select iif(
                                            substr(m.atom, 1, 1) = '-', substr(m.atom, 2), m.atom
                                        ) as number
                                    ) as u
                                ) as s
                            ) as d
                        ),
                        null,
                        'is not a decimal (such as 12.50)'
                    )
                when m.kind = 'date'
                    then iif(
                        m.atom glob '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]'
                        and substr(m.atom, 1, 4) <> '0000'
                        and date(m.atom, '+0 days') = m.atom,
                        null,
                        'is not a date (YYYY-MM-DD)'
                    )
                when m.kind = 'time'
                    then iif(
                        substr(m.atom, 1, 8) glob '[0-2][0-9]:[0-5][0-9]:[0-5][0-9]'
                        and substr(m.atom, 1, 2) <= '23'
                        and (
                            length(m.atom) = 8
                            or (
                                substr(m.atom, 9, 1) = '.'
                                and length(m.atom) between 10 and 15
                                and substr(m.atom, 10) not glob '*[^0-9]*'
                            )
                        ),
                        null,
                        'is not a time (HH:MM:SS, up to six decimals)'
                    )
                when m.kind = 'datetime'
                    then iif(
                        substr(m.atom, 1, 19)
                        glob '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]'
                        and substr(m.atom, 1, 4) <> '0000'
                        and date(substr(m.atom, 1, 10), '+0 days') = substr(m.atom, 1, 10)
                        and substr(m.atom, 12, 2) <= '23'
                        and (
                            substr(m.atom, 20) = 'Z'
                            or (
                                substr(m.atom, 20, 1) = '.'
                                and length(m.atom) between 22 and 27
                                and substr(m.atom, -1) = 'Z'
                                and substr(m.atom, 21, length(m.atom) - 21) not glob '*[^0-9]*'
                            )
                        ),
                        null,
                        'is not a datetime (RFC 3339, UTC, ends in Z)'
                    )
            end
            from member as m
            where m.node is not null
            union all
            select p.id, null, p.rank, 'is given twice'
            from present as p
            where p.times > 1
            union all
            select r.id, n.name, r.rank || format('%06d', n.position), 'is missing'
            from member as r
            inner join dever_schema_node as n
                on n.contract_id = new.contract_id and n.parent = r.node
            left join present as p on p.parent = r.id and p.node = n.id
            where r.kind = 'record'
                and r.type = 'object'
                and p.id is null
                -- Only when something is missing: this join is the dear part of the check.
                and (select count(*) from present as q)
                < (
                    select sum(s.fields)
                    from member as s
                    where s.kind = 'record' and s.type = 'object'
                )
        )
        select f.id, f.name, f.fault
        from fault as f
        where f.fault is not null
        order by f.rank, f.name, f.id
        limit 1
    ) as f;
end;
