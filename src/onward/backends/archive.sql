-- What has left a ledger that forgets, in one SQLite file. Every statement, by name.
--
-- `event_log` is the log: one row an event, `event_id` its task and number, so that a batch that is
-- read twice is written once. `archived_task` holds one row a finished task, as it was last seen: the
-- fields of core.task.Task by the same names, and `tid`, its place among all tasks, which the ledger
-- gave it at birth and `find` walks. A task that is replayed lives in the ledger again, and its row is
-- gone until it ends. `identity` names this file: a reader's cursor belongs to one file.
--
-- A batch comes as one JSON text and is written in one step: the library gives the interpreter lock
-- up once a step, and gets it back late when the loop is busy.

-- :name schema
CREATE TABLE identity (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    name TEXT    NOT NULL
) STRICT;

CREATE TABLE event_log (
    event_id   TEXT    NOT NULL UNIQUE,
    task_id    TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    type       TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    data       TEXT
) STRICT;
CREATE INDEX event_log_of_task ON event_log (task_id, n);

CREATE TABLE archived_task (
    tid          INTEGER NOT NULL,
    id           TEXT    NOT NULL UNIQUE,
    type         TEXT    NOT NULL,
    queue        TEXT    NOT NULL,
    profile      TEXT    NOT NULL,
    payload      TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    state        TEXT    NOT NULL,
    lane         TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    rev          INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    events       INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    failures     INTEGER NOT NULL,
    retries      INTEGER NOT NULL,
    lost         INTEGER NOT NULL,
    run_at       INTEGER,
    start_by     INTEGER,
    attempt_ms   INTEGER,
    expires_at   INTEGER,
    lease_until  INTEGER,
    attempt_by   INTEGER,
    cancel_by    INTEGER,
    due_at       INTEGER,
    queued_at    INTEGER,
    started_at   INTEGER,
    finished_at  INTEGER,
    worker       TEXT,
    result       TEXT,
    error        TEXT,
    fingerprint  TEXT,
    progress     TEXT,
    journal      TEXT,
    bulk         TEXT,
    overrides    TEXT,
    session      TEXT,
    parent       TEXT,
    key          TEXT,
    waiting_for  TEXT,
    approval     TEXT,
    overdue      INTEGER NOT NULL
) STRICT;
CREATE INDEX archived_task_place ON archived_task (tid);
CREATE INDEX archived_task_age ON archived_task (profile, finished_at);
CREATE INDEX archived_task_type ON archived_task (type, tid);
CREATE INDEX archived_task_session ON archived_task (session, tid) WHERE session IS NOT NULL;
CREATE INDEX archived_task_parent ON archived_task (parent, tid) WHERE parent IS NOT NULL;
CREATE INDEX archived_task_trouble ON archived_task (state, tid)
    WHERE state IN ('scheduled', 'waiting', 'failed', 'dead', 'canceled');

-- :name since_1
ALTER TABLE archived_task ADD COLUMN bulk TEXT;

-- :name christen
INSERT INTO identity VALUES (1, ?);

-- :name name
SELECT name FROM identity;

-- :name keep_events
INSERT OR IGNORE INTO event_log (event_id, task_id, n, generation, type, at, data)
SELECT (value ->> 0) || ':' || (value ->> 1),
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(?) ORDER BY key;

-- :name keep_tasks
-- The newest reading wins: an archiver that was held up may come with an older one.
INSERT INTO archived_task (tid, {columns}) SELECT {values} FROM json_each(?) WHERE TRUE
ON CONFLICT (id) DO UPDATE SET {changes} WHERE excluded.rev >= archived_task.rev;

-- :name revive_tasks
DELETE FROM archived_task WHERE rowid IN (
    SELECT a.rowid FROM json_each(?) alive JOIN archived_task a ON a.id = alive.value ->> 0
    WHERE a.rev <= alive.value ->> 1
);

-- :name get
SELECT {columns} FROM archived_task WHERE id IN (SELECT value FROM json_each(?));

-- :name find
SELECT {columns}, tid FROM archived_task WHERE tid > :floor AND {where} ORDER BY tid DESC LIMIT :limit;

-- :name history
SELECT task_id, n, generation, type, at, data FROM event_log
WHERE task_id = ? AND n > ? ORDER BY n LIMIT ?;

-- :name last_place
SELECT ifnull(max(tid), 0) FROM archived_task;

-- :name outlived
SELECT id FROM archived_task
WHERE profile = ? AND finished_at <= ? AND state != 'dead' LIMIT ?;

-- :name forget_events
DELETE FROM event_log WHERE task_id IN (SELECT value FROM json_each(?));

-- :name forget_tasks
DELETE FROM archived_task WHERE id IN (SELECT value FROM json_each(?));
