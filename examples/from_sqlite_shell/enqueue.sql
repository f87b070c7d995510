-- Any SQLite client can do this: the view checks the payload and drops duplicates.
-- Your own rows and the job are one transaction.
begin immediate;
create table if not exists orders (id integer primary key, email text not null);
insert into orders (id, email) values (7, 'ada@example.org');
insert into dever_enqueue (job, key, payload)
values (
    'receipts.send_receipt',
    'receipt:7',
    json_object('order_id', 7, 'email', 'ada@example.org')
);
commit;

select id, state, key from dever_jobs where target = 'receipts.send_receipt';
