-- What `python -m inbox report` shows, for any SQL client.

create view inbox_report as
select
    s.repository,
    sum(s.deliveries) as deliveries,
    count(*) as kinds_of_event,
    max(s.deliveries) as most_of_one_kind
from repository_statistic as s
group by s.repository;
