-- Upgrades Dever SQL {before} to {after}. Built by scripts/build-sql; do not edit.

insert into dever_raise (message)
select
    'DV009 SchemaVersion: this database has Dever SQL ' || i.version
    || ', this file upgrades {before} to {after}'
from dever_installation as i
where i.version <> '{before}';
