-- What only SQLite has beside ../sql/schema.sql.

-- Tasks by queue and state; queued ones alone by lane and priority too.
CREATE TABLE tally (
    queue    TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    lane     TEXT    NOT NULL,
    priority INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    PRIMARY KEY (queue, state, lane, priority)
) STRICT, WITHOUT ROWID;

CREATE TABLE rate (
    name      TEXT    NOT NULL,
    each      INTEGER NOT NULL,
    partition TEXT    NOT NULL,
    paid_at   INTEGER NOT NULL,
    forget_at INTEGER NOT NULL,
    PRIMARY KEY (name, each, partition)
) STRICT, WITHOUT ROWID;
CREATE INDEX rate_forgotten ON rate (forget_at);

-- Hands out numbers that are never used twice.
CREATE TABLE counter (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    tid   INTEGER NOT NULL,
    place INTEGER NOT NULL,
    event INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES (1, 0, 0, 0);

-- SQLite writes a row anew, overflow pages and all, whichever of its columns changes. A long text of a
-- task therefore lies here, and its column holds '', which no JSON text is: claim, wake and park of a
-- task with a large payload cost a small row. Rows of earlier versions keep theirs where they are.
CREATE TABLE long_text (
    tid   INTEGER NOT NULL,
    field TEXT    NOT NULL,
    body  TEXT    NOT NULL,
    PRIMARY KEY (tid, field)
) STRICT, WITHOUT ROWID;


-- What a column no longer refers to is gone with the reference.
CREATE TRIGGER long_payload AFTER UPDATE OF payload ON task WHEN old.payload = '' AND new.payload IS NOT ''
BEGIN DELETE FROM long_text WHERE tid = new.tid AND field = 'payload'; END;
CREATE TRIGGER long_result AFTER UPDATE OF result ON task WHEN old.result = '' AND new.result IS NOT ''
BEGIN DELETE FROM long_text WHERE tid = new.tid AND field = 'result'; END;
CREATE TRIGGER long_journal AFTER UPDATE OF journal ON task WHEN old.journal = '' AND new.journal IS NOT ''
BEGIN DELETE FROM long_text WHERE tid = new.tid AND field = 'journal'; END;
CREATE TRIGGER long_bulk AFTER UPDATE OF bulk ON task WHEN old.bulk = '' AND new.bulk IS NOT ''
BEGIN DELETE FROM long_text WHERE tid = new.tid AND field = 'bulk'; END;
