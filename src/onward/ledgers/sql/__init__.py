"""What SQLite, Postgres and the archive share: schema, statements, plans, the store."""
