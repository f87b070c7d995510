-- The version row, last: an install that did not get here installed nothing.

insert into dever.installation (version, protocol_min, protocol_max)
values ('0.3.0', 1, 1);

-- As an extension, pg_dump must be told which tables hold user data. The rows that this script itself
-- inserts (installation, sweep_cursor) are not dumped: a restore runs this script again.
do $$
declare
    v_relation text;
begin
    if exists (select from pg_catalog.pg_extension as e where e.extname = 'dever') then
        foreach v_relation in array array[
            'dever.queue', 'dever.queue_id_seq',
            'dever.contract', 'dever.contract_id_seq',
            'dever.policy', 'dever.policy_id_seq',
            'dever.worker', 'dever.worker_policy',
            'dever.token_seq',
            'dever.job', 'dever.job_id_seq',
            'dever.finished',
            'dever.schedule', 'dever.lock'
        ] loop
            perform pg_catalog.pg_extension_config_dump(v_relation::pg_catalog.regclass, '');
        end loop;
    end if;
end
$$;
