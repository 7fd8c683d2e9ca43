-- The ledger on one SQLite file.
--
-- `task` holds one row a task; its columns are the fields of core.task.Task, by the same names, and
-- three of the store's own: `tid` (row number, which every other table refers to), `place` (order
-- within its queue, given whenever it is queued anew) and `mail` (how many letters are unread).
-- `event` is the log and the outbox: `seq` is the cursor of the whole log, (`tid`, `n`) that of one
-- task. `final` repeats the generation for the one event that ends it, and is unique per task.
-- `letter` is every task's inbox. `tally` counts tasks, kept in the transaction that changes them, so
-- that nothing is ever counted by a scan; queued tasks alone are counted by lane and priority.
-- `submission_key` remembers idempotency keys, also after their task is gone (until forget_at).
-- `effect` is what handlers did to the outside world, one row a (key, name).
-- `document` is small named JSON. `counter` hands out numbers that are never used twice.

CREATE TABLE task (
    tid          INTEGER PRIMARY KEY,
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
    overdue      INTEGER NOT NULL,
    place        INTEGER NOT NULL,
    mail         INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX task_ready ON task (queue, priority, lane, place) WHERE state = 'queued';
CREATE INDEX task_alarm ON task (due_at) WHERE due_at IS NOT NULL;
-- The states a person looks for; none of them lies on the way of a task that goes well.
CREATE INDEX task_trouble ON task (state, tid)
    WHERE state IN ('scheduled', 'waiting', 'failed', 'dead', 'canceled');
CREATE INDEX task_waiting ON task (waiting_for, tid) WHERE waiting_for IS NOT NULL;
CREATE INDEX task_approval ON task (json_extract(approval, '$.status'), tid)
    WHERE approval IS NOT NULL;
CREATE INDEX task_fingerprint ON task (fingerprint, tid) WHERE fingerprint IS NOT NULL;
CREATE INDEX task_session ON task (session, tid) WHERE session IS NOT NULL;
CREATE INDEX task_parent ON task (parent, tid) WHERE parent IS NOT NULL;

CREATE TABLE event (
    seq        INTEGER PRIMARY KEY,
    tid        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    type       TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    data       TEXT,
    final      INTEGER
) STRICT;

CREATE UNIQUE INDEX event_of_task ON event (tid, n);
CREATE UNIQUE INDEX event_final ON event (tid, final) WHERE final IS NOT NULL;

CREATE TABLE letter (
    tid  INTEGER NOT NULL,
    n    INTEGER NOT NULL,
    name TEXT    NOT NULL,
    body TEXT    NOT NULL,
    PRIMARY KEY (tid, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE tally (
    queue    TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    lane     TEXT    NOT NULL,
    priority INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    PRIMARY KEY (queue, state, lane, priority)
) STRICT, WITHOUT ROWID;

CREATE TABLE counter (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    tid   INTEGER NOT NULL,
    place INTEGER NOT NULL,
    event INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES (1, 0, 0, 0);

CREATE TABLE submission_key (
    scope     TEXT NOT NULL,
    key       TEXT NOT NULL,
    body      TEXT NOT NULL,
    task      TEXT NOT NULL,
    forget_at INTEGER,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_key_of_task ON submission_key (task);
CREATE INDEX submission_key_forgotten ON submission_key (forget_at) WHERE forget_at IS NOT NULL;

CREATE TABLE effect (
    key      TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    fence    INTEGER NOT NULL,
    begun_at INTEGER NOT NULL,
    value    TEXT,
    PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE document (
    kind       TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

-- The log as people ask for it; the same columns as the archive of a ledger that forgets.
CREATE VIEW event_log AS
SELECT t.id || ':' || e.n AS event_id, t.id AS task_id, e.n, e.generation, e.type, e.at, e.data
FROM event e JOIN task t USING (tid);
