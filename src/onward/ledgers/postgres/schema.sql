-- What only Postgres has beside ../sql/schema.sql. Everything lies in a schema of its own, so that the ledger
-- may share a database with its users' tables.

-- Many servers write at once: counts are what each transaction has changed, added up where they are read
-- and by `compact`. No row is updated by two of them.
CREATE TABLE tally (
    queue    TEXT   NOT NULL,
    state    TEXT   NOT NULL,
    lane     TEXT   NOT NULL,
    priority BIGINT NOT NULL,
    count    BIGINT NOT NULL
);

-- A task's row is written three times and more in a short life: room beside it for its next versions, and
-- a vacuum that comes early.
ALTER TABLE task SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE event SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What callers hand in inside transactions of their own (onward.enqueue). A server submits it after the
-- commit, which rings the bell.
CREATE TABLE enqueued (
    id   TEXT PRIMARY KEY,
    body TEXT NOT NULL
);
CREATE FUNCTION ring_enqueued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_TABLE_SCHEMA || '_bell', '["enqueued"]');
    RETURN NULL;
END $$;
CREATE TRIGGER enqueued_rings AFTER INSERT ON enqueued FOR EACH STATEMENT EXECUTE FUNCTION ring_enqueued();
