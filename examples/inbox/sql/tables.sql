-- The inbox's own tables. The same text runs on SQLite and on PostgreSQL.

create table if not exists delivery (
    id text not null primary key,
    event text not null,
    action text,
    body text not null
);

create table if not exists repository_statistic (
    repository text not null,
    event text not null,
    deliveries integer not null,
    primary key (repository, event)
);

create table if not exists hourly_summary (
    hour text not null primary key,
    repositories integer not null,
    deliveries integer not null
);
