"""The lint of the PostgreSQL source, see scripts/lint-sql."""
