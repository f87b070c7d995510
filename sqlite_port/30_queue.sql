-- Queues: created at first use with the defaults of the table, and never deleted.

-- Inserts the queue when it is new; expects a checked name. Differs by necessity: nothing wakes
-- sleeping workers here; they notice the commit by themselves (dever_sql/sqlite.py).
create view dever_queue_for (name) as
select null
where false;

create trigger dever_queue_for_call
instead of insert on dever_queue_for
begin
    insert into dever_queue (name, created_at)
    select new.name, c.now
    from dever_clock as c
    where not exists (select 1 from dever_queue as q where q.name = new.name);
end;
