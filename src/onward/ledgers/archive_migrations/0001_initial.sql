-- What has left a ledger that forgets, in one SQLite file.
--
-- `event_log` is the log: one row an event, `event_id` its task and number, so that a batch that is
-- read twice is written once. `archived_task` holds one row a finished task, as it was last seen: the
-- fields of core.task.Task by the same names, and `tid`, its place among all tasks, which the ledger
-- gave it at birth and `find` walks. A task that is replayed lives in the ledger again, and its row is
-- gone until it ends. `identity` names this file: a reader's cursor belongs to one file.
--
-- A later step may add columns that may be NULL or have a default: an older server on the same file
-- goes on writing without them.

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
