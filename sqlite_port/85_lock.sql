-- Named locks with a lease and a fencing token.
--
-- A row is a lock that somebody took; expired ones may be taken over by the next lock_acquire.
-- Tokens come from one sequence, so whoever takes a lock later carries a larger one: hand it to
-- what the lock protects, and a holder that was frozen past its lease can be told from the new one.

-- Named locks that somebody took; held while expires_at is in the future.
create table dever_lock (
    name text not null primary key,
    owner text not null,
    token integer not null,
    expires_at integer not null
) strict, without rowid;

-- Named locks that are held.
create view dever_locks as
select l.name, l.owner, l.token, l.expires_at
from dever_lock as l
where l.expires_at > (select c.now from dever_clock as c);

-- lock_acquire: no row while anyone holds the lock, the same owner included; when there is one, its
-- token is taken from the sequence.

-- name: lock_check
insert into dever_raise (message)
select 'DV007 InvalidArgument: a lock needs an owner and a ttl
hint: name the process that holds it, and how long without renewal'
where :owner is null or trim(:owner, char(32, 9, 10, 13, 12, 11)) = '' or :ttl_us is null
union all
select 'DV007 InvalidArgument: the owner of a lock is longer than 1024 bytes
hint: name the process that holds it, such as host and pid'
where length(cast(:owner as blob)) > 1024
union all
select 'DV001 InvalidName: the owner of a lock contains U+0000'
where instr(:owner, char(0)) > 0;

-- name: lock_acquire
insert into dever_lock (name, owner, token, expires_at)
select :name, :owner, s.value + 1, c.now + :ttl_us
from dever_clock as c
inner join dever_sequence as s on s.name = 'token'
where true
on conflict (name) do update
set owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at
where dever_lock.expires_at <= (select c.now from dever_clock as c)
returning token;

-- name: lock_token
update dever_sequence
set value = :token
where name = 'token';

-- A full new ttl from now. No row: lost or expired, nothing changed.

-- name: lock_renew
update dever_lock
set expires_at = c.now + :ttl_us
from dever_clock as c
where name = :name and owner = :owner and token = :token and expires_at > c.now
returning name;

-- name: lock_release
delete from dever_lock
where name = :name
    and owner = :owner
    and token = :token
    and expires_at > (select c.now from dever_clock as c)
returning name;

-- name: locks
select l.name, l.owner, l.token, l.expires_at
from dever_locks as l
order by l.name;
