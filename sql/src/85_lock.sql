-- Named locks with a lease and a fencing token.
--
-- A row is a lock that somebody took; expired ones may be taken over by the next lock_acquire.
-- Tokens come from one sequence, so whoever takes a lock later carries a larger one: hand it to
-- what the lock protects, and a holder that was frozen past its lease can be told from the new one.

create table dever.lock (
    name text collate "C" not null,
    owner text not null,
    token bigint not null,
    expires_at timestamptz not null,
    constraint lock_pkey primary key (name)
)
with (fillfactor = 70);

comment on table dever.lock is
'Named locks that somebody took; held while expires_at is in the future';

create view dever.locks as
select
    l.name,
    l.owner,
    l.token,
    l.expires_at
from dever.lock as l
where l.expires_at > dever.clock();

comment on view dever.locks is 'Named locks that are held';

create function dever.check_lock_name(name text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
    select case
        when check_lock_name.name = '__dever_scheduler' then check_lock_name.name
        else dever.check_name(check_lock_name.name, 'lock')
    end
$$;

comment on function dever.check_lock_name(text) is
'The name of a lock that may be renewed and released: the scheduler''s own is one';

-- Takes a lock under a name that the caller has checked. The clock is read after the row is locked.
create function dever.take_lock(name text, owner text, ttl interval)
returns bigint
language plpgsql
volatile
parallel unsafe
security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_ttl bigint := dever.positive_microseconds(take_lock.ttl, 'ttl');
    v_token bigint;
begin
    if take_lock.owner is null or dever.is_blank(take_lock.owner) or v_ttl is null then
        raise exception using
            errcode = 'DV007',
            message = 'a lock needs an owner and a ttl',
            hint = 'name the process that holds it, and how long without renewal';
    end if;
    if pg_catalog.octet_length(take_lock.owner) > 1024 then
        raise exception using
            errcode = 'DV007',
            message = 'the owner of a lock is longer than 1024 bytes',
            hint = 'name the process that holds it, such as host and pid';
    end if;
    insert into dever.lock as l (name, owner, token, expires_at)
    values (
        take_lock.name,
        take_lock.owner,
        pg_catalog.nextval('dever.token_seq'),
        dever.clock() + dever.as_interval(v_ttl)
    )
    on conflict (name) do update
    set
        owner = excluded.owner,
        token = pg_catalog.nextval('dever.token_seq'),
        expires_at = dever.clock() + dever.as_interval(v_ttl)
    where l.expires_at <= dever.clock()
    returning l.token into v_token;
    return v_token;
end
$$;

comment on function dever.take_lock(text, text, interval) is
'dever.lock_acquire for a checked or a reserved name';

-- Null while anyone holds the lock, the same owner included. One short transaction; in an open one
-- of the caller others wait for its end. Raises DV001, DV002, DV007.
create function dever.lock_acquire(name text, owner text, ttl interval)
returns bigint
language sql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select dever.take_lock(
        dever.check_name(lock_acquire.name, 'lock'), lock_acquire.owner, lock_acquire.ttl
    )
$$;

comment on function dever.lock_acquire(text, text, interval) is
'Takes a named lock for ttl and returns its fencing token; null while anyone holds it';

-- A full new ttl from now. False: lost or expired, nothing changed. One short transaction.
create function dever.lock_renew(name text, owner text, token bigint, ttl interval)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_ttl bigint := dever.positive_microseconds(lock_renew.ttl, 'ttl');
    v_now timestamptz;
begin
    if v_ttl is null then
        raise exception using
            errcode = 'DV007',
            message = 'ttl is missing',
            hint = 'say how long the lock is held without another renewal';
    end if;
    perform dever.check_lock_name(lock_renew.name);
    perform from dever.lock as l where l.name = lock_renew.name for no key update;
    v_now := dever.clock();
    update dever.lock as l
    set expires_at = v_now + dever.as_interval(v_ttl)
    where l.name = lock_renew.name
        and l.owner = lock_renew.owner
        and l.token = lock_renew.token
        and l.expires_at > v_now;
    return found;
end
$$;

comment on function dever.lock_renew(text, text, bigint, interval) is
'Holds a lock for a full new ttl; false when it was lost or has expired';

-- False: lost or expired, nothing changed. One short transaction.
create function dever.lock_release(name text, owner text, token bigint)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    perform dever.check_lock_name(lock_release.name);
    perform from dever.lock as l where l.name = lock_release.name for update;
    v_now := dever.clock();
    delete from dever.lock as l
    where l.name = lock_release.name
        and l.owner = lock_release.owner
        and l.token = lock_release.token
        and l.expires_at > v_now;
    return found;
end
$$;

comment on function dever.lock_release(text, text, bigint) is
'Gives a lock back; false when it was lost or has expired';

-- The lock of those who run schedules: a reserved name that lock_acquire refuses. It saves work and
-- decides nothing, the row locks of dever.tick are what make a window fire once.
create function dever.scheduler_acquire(owner text, ttl interval)
returns bigint
language sql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select dever.take_lock('__dever_scheduler', scheduler_acquire.owner, scheduler_acquire.ttl)
$$;

comment on function dever.scheduler_acquire(text, interval) is
'Takes the lock __dever_scheduler as lock_acquire takes others; renew and release it as any lock';
