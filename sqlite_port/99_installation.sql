-- The version row, last: an install that did not get here installed nothing.

insert into dever_installation (
    id, version, protocol_min, protocol_max, installed_at, upgraded_at
)
select
    lower(
        substr(r.digits, 1, 8) || '-' || substr(r.digits, 9, 4) || '-4' || substr(r.digits, 14, 3)
        || '-a' || substr(r.digits, 18, 3) || '-' || substr(r.digits, 21)
    ),
    '0.3.0',
    1,
    1,
    c.now,
    c.now
from (select hex(randomblob(16)) as digits) as r
cross join dever_clock as c;
