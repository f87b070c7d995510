-- Names, keys, durations, instants: one check each, used by every verb before anything is stored.

-- Raises with a text made at run time. Differs by necessity: before SQLite 3.47 raise() takes only a
-- literal, so the text goes out as a broken JSON path, which the error quotes whole. Verbs that a
-- shell reaches use raise(abort, '...') wherever the text is fixed.
create view dever_raise (message) as
select null
where false;

create trigger dever_raise_call
instead of insert on dever_raise
when new.message is not null
begin
    select json_extract('{}', new.message);
    -- Never reached; tells SQLite that the statement may abort and has to be undone.
    select raise(abort, 'DV007 InvalidArgument: refused');
end;

-- Raises DV001, DV002. The one rule for names of queues, schedules, locks, outboxes and workers.
create view dever_check_name (name) as
select null
where false;

create trigger dever_check_name_call
instead of insert on dever_check_name
begin
    select case
        when new.name is null or trim(new.name, char(32, 9, 10, 13, 12, 11)) = ''
            then raise(abort, 'DV001 InvalidName: the name is empty
hint: give a name of 1 to 255 bytes that is not only whitespace')
        when typeof(new.name) <> 'text'
            then raise(abort, 'DV001 InvalidName: the name is not text')
        when length(cast(new.name as blob)) > 255
            then raise(abort, 'DV001 InvalidName: the name is longer than 255 bytes
hint: give a name of 1 to 255 bytes')
        when instr(new.name, char(0)) > 0
            then raise(abort, 'DV001 InvalidName: the name contains U+0000')
        when substr(new.name, 1, 8) = '__dever_'
            then raise(abort, 'DV002 ReservedName: the name starts with __dever_, which is reserved
hint: names that start with __dever_ belong to Dever SQL, choose another one')
    end;
end;

-- Raises DV006, DV002. The one rule for idempotency keys, of jobs and of messages.
create view dever_check_key (key) as
select null
where false;

create trigger dever_check_key_call
instead of insert on dever_check_key
begin
    select case
        when new.key is null or trim(new.key, char(32, 9, 10, 13, 12, 11)) = ''
            then raise(abort, 'DV006 InvalidKey: the idempotency key is missing or blank
hint: name the business event, for example receipt:7')
        when typeof(new.key) <> 'text'
            then raise(abort, 'DV006 InvalidKey: the idempotency key is not text')
        when length(cast(new.key as blob)) > 1024
            then raise(abort, 'DV006 InvalidKey: the idempotency key is longer than 1024 bytes
hint: give a key of 1 to 1024 bytes')
        when instr(new.key, char(0)) > 0
            then raise(abort, 'DV006 InvalidKey: the idempotency key contains U+0000')
        when substr(new.key, 1, 8) = '__dever_'
            then raise(abort, 'DV002 ReservedName: the idempotency key starts with __dever_, which is reserved
hint: keys that start with __dever_ belong to Dever SQL, choose another one')
    end;
end;

-- Raises DV007. Microseconds; null is fine. positive: whether it must be above zero.
create view dever_check_duration (duration_us, what, positive) as
select null, null, null
where false;

create trigger dever_check_duration_call
instead of insert on dever_check_duration
begin
    insert into dever_raise (message)
    values (
        case
            when abs(new.duration_us) > 36500 * 86400000000
                then 'DV007 InvalidArgument: ' || new.what || ' is longer than 36,500 days
hint: give a shorter duration'
            when new.positive and new.duration_us <= 0
                then 'DV007 InvalidArgument: ' || new.what || ' is not positive
hint: give a duration above zero'
        end
    );
end;

-- Raises DV007. Null is fine. Text: RFC 3339 with seconds, up to six decimals and a zone; read
-- by its form and a round trip through a number, because the date functions of SQLite accept 30
-- February and 24:00.
create view dever_check_run_at (run_at) as
select null
where false;

create trigger dever_check_run_at_call
instead of insert on dever_check_run_at
begin
    select raise(abort, 'DV007 InvalidArgument: run_at is not an RFC 3339 instant
hint: write it like 2027-01-31T08:30:00Z')
    from (
        select
            substr(new.run_at, 1, 19) as second,
            case when upper(substr(new.run_at, -1)) = 'Z' then 'Z' else substr(new.run_at, -6) end as zone
    ) as part
    where typeof(new.run_at) not in ('integer', 'null')
        and not coalesce(
            typeof(new.run_at) = 'text'
            and instr(new.run_at, char(0)) = 0
            and part.second
            glob '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9][Tt][0-2][0-9]:[0-5][0-9]:[0-5][0-9]'
            and strftime('%Y-%m-%dT%H:%M:%S', unixepoch(upper(part.second)), 'unixepoch')
            = upper(part.second)
            -- No zone is further off than 14 hours, and SQLite reads none that is.
            and unixepoch(upper(part.second) || part.zone) is not null
            and (
                part.zone = 'Z'
                or part.zone glob '[-+][0-1][0-9]:[0-5][0-9]'
                or part.zone glob '[-+]2[0-3]:[0-5][0-9]'
            )
            and (
                length(new.run_at) = 19 + length(part.zone)
                or (
                    substr(new.run_at, 20, 1) = '.'
                    and length(new.run_at) - 20 - length(part.zone) between 1 and 6
                    and substr(new.run_at, 21, length(new.run_at) - 20 - length(part.zone))
                    not glob '*[^0-9]*'
                )
            ),
            false
        );
    select raise(abort, 'DV007 InvalidArgument: run_at is outside the years 1 to 9999
hint: give an instant between 0001-01-01 and 9999-12-31 (UTC)')
    where new.run_at is not null
        and not case
            when typeof(new.run_at) = 'integer' then new.run_at
            when upper(substr(new.run_at, -1)) = 'Z'
                then unixepoch(upper(substr(new.run_at, 1, 19))) * 1000000
            else
                unixepoch(upper(substr(new.run_at, 1, 19)) || substr(new.run_at, -6)) * 1000000
        end between -62135596800000000 and 253402300799999999;
end;

-- Raises DV007 when the lists that run beside each other have unequal lengths or are too long.
create view dever_check_lengths (expected, actual) as
select null, null
where false;

create trigger dever_check_lengths_call
instead of insert on dever_check_lengths
begin
    insert into dever_raise (message)
    values (
        case
            when new.actual <> new.expected
                then format(
                    'DV007 InvalidArgument: the arrays have unequal lengths: %d and %d
hint: give one element per item in every array', new.expected, new.actual
                )
            when new.expected > 100000
                then format(
                    'DV007 InvalidArgument: %d items in one call
hint: send at most 100,000 items a call', new.expected
                )
        end
    );
end;

-- name: check_name
insert into dever_check_name (name) values (:name);

-- name: check_duration
insert into dever_check_duration (duration_us, what, positive)
select d.value ->> 1, d.value ->> 0, :positive
from json_each(:durations) as d;

-- name: check_lengths
insert into dever_check_lengths (expected, actual)
select :expected, l.value
from json_each(:lengths) as l;

-- Nothing, as an INSERT.

-- name: take_write_lock
insert into dever_raise (message) values (null);
