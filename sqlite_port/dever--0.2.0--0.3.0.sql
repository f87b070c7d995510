-- Upgrades Dever SQL 0.2.0 to 0.3.0. Built by scripts/build-sql; do not edit.

insert into dever_raise (message)
select
    'DV009 SchemaVersion: this database has Dever SQL ' || i.version
    || ', this file upgrades 0.2.0 to 0.3.0'
from dever_installation as i
where i.version <> '0.2.0';

update dever_installation
set version = '0.3.0', protocol_min = 1, protocol_max = 1,
    upgraded_at = (select c.now from dever_clock as c);
