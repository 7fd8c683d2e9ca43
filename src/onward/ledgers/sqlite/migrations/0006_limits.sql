-- When all that has started under a limit by time is paid off, in microseconds.
CREATE TABLE rate (
    name      TEXT NOT NULL,
    each      INTEGER NOT NULL,
    partition TEXT NOT NULL,
    paid_at   INTEGER NOT NULL,
    forget_at INTEGER NOT NULL,
    PRIMARY KEY (name, each, partition)
) STRICT, WITHOUT ROWID;
CREATE INDEX rate_forgotten ON rate (forget_at);

-- What is queued goes by its partition first: another index has it.
DROP INDEX IF EXISTS task_ready;
-- A list of states is slow to evaluate, and it was for every change of a state: another index has them.
DROP INDEX IF EXISTS task_trouble;
