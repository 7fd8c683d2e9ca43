-- How many tasks of each batch are in which state: counted by the write that changes it.
CREATE TABLE IF NOT EXISTS batch_count (
    batch TEXT    NOT NULL,
    state TEXT    NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (batch, state)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS batch_grows AFTER INSERT ON task WHEN new.batch IS NOT NULL
BEGIN
    INSERT INTO batch_count VALUES (new.batch, new.state, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS batch_moves AFTER UPDATE OF state ON task
WHEN new.batch IS NOT NULL AND new.state <> old.state
BEGIN
    UPDATE batch_count SET count = count - 1 WHERE batch = new.batch AND state = old.state;
    INSERT INTO batch_count VALUES (new.batch, new.state, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
-- What is purged still counts, until the task that the batch is goes too.
CREATE TRIGGER IF NOT EXISTS batch_goes AFTER DELETE ON task WHEN old.queue = 'onward:batches'
BEGIN DELETE FROM batch_count WHERE batch = old.id; END;
