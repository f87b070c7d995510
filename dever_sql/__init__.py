"""Durable background jobs and UTC cron in the database you already have."""
