-- How many tasks of each batch are in which state: each write adds what it changes, so that no row is
-- updated by two servers; `compact_batches` adds them up.
CREATE TABLE IF NOT EXISTS batch_count (
    batch TEXT   NOT NULL,
    state TEXT   NOT NULL,
    count BIGINT NOT NULL,
    added BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX IF NOT EXISTS batch_count_of ON batch_count (batch);
CREATE INDEX IF NOT EXISTS batch_change ON batch_count (batch) WHERE NOT added;

CREATE OR REPLACE FUNCTION count_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO batch_count VALUES (new.batch, new.state, 1);
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO batch_count VALUES (new.batch, old.state, -1), (new.batch, new.state, 1);
    ELSE
        -- What is purged still counts, until the task that the batch is goes too.
        DELETE FROM batch_count WHERE batch = old.id;
    END IF;
    RETURN NULL;
END $$;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'task'::regclass AND tgname = 'batch_grows') THEN
        CREATE TRIGGER batch_grows AFTER INSERT ON task
            FOR EACH ROW WHEN (new.batch IS NOT NULL) EXECUTE FUNCTION count_batch();
        CREATE TRIGGER batch_moves AFTER UPDATE OF state ON task
            FOR EACH ROW WHEN (new.batch IS NOT NULL AND new.state <> old.state) EXECUTE FUNCTION count_batch();
        CREATE TRIGGER batch_goes AFTER DELETE ON task
            FOR EACH ROW WHEN (old.queue = 'onward:batches') EXECUTE FUNCTION count_batch();
    END IF;
END $$;
