-- The ledger in SQL, as SQLite and Postgres share it. Words in braces differ: see dialect.py.
--
-- `task` holds one row a task; its columns are the fields of core.task.Task, by the same names (schema.py
-- writes them), and three of the store's own: `tid` (row number, which every other table refers to),
-- `place` (order within its queue, given whenever it is queued anew) and `mail` (how many letters are
-- unread). `event` is the log and the outbox: `seq` is the cursor of the whole log, (`tid`, `n`) that of
-- one task. `final` repeats the generation for the one event that ends it, and is unique per task.
-- `letter` is every task's inbox. `submission_key` remembers idempotency keys, also after their task is
-- gone (until forget_at). `effect` is what handlers did to the outside world, kept under the idempotency
-- key in its scope or, with the scope '', under their task. `document` is small named JSON. Each database
-- adds a `tally` that counts tasks, written in the transaction that changes them, and `rate`: when all that
-- has started under a limit by time is paid off, in microseconds. indexes.sql has the indexes of tasks, which
-- are made whenever one is missing.

CREATE TABLE task (
    tid   {number}{next_tid} PRIMARY KEY,
{task_columns},
    place {number}{next_place} NOT NULL,
    mail  {number} NOT NULL DEFAULT 0
){table};

CREATE UNIQUE INDEX task_id ON task (id);
CREATE TABLE event (
    seq        {number}{next_seq} PRIMARY KEY,
    tid        {number} NOT NULL,
    n          {number} NOT NULL,
    generation {number} NOT NULL,
    type       TEXT NOT NULL,
    at         {number} NOT NULL,
    data       TEXT,
    final      {number}
){table};

CREATE UNIQUE INDEX event_of_task ON event (tid, n);
CREATE UNIQUE INDEX event_final ON event (tid, final) WHERE final IS NOT NULL;

CREATE TABLE letter (
    tid  {number} NOT NULL,
    n    {number} NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tid, n)
){keyed_table};

CREATE TABLE submission_key (
    scope     TEXT NOT NULL,
    key       TEXT NOT NULL,
    body      TEXT NOT NULL,
    task      TEXT NOT NULL,
    forget_at {number},
    PRIMARY KEY (scope, key)
){keyed_table};
CREATE INDEX submission_key_of_task ON submission_key (task);
CREATE INDEX submission_key_forgotten ON submission_key (forget_at) WHERE forget_at IS NOT NULL;

CREATE TABLE effect (
    scope    TEXT NOT NULL,
    key      TEXT NOT NULL,
    name     TEXT NOT NULL,
    task     TEXT NOT NULL,
    fence    {number} NOT NULL,
    begun_at {number} NOT NULL,
    value    TEXT,
    PRIMARY KEY (scope, key, name)
){keyed_table};

CREATE TABLE document (
    kind       TEXT NOT NULL,
    key        TEXT NOT NULL,
    body       TEXT NOT NULL,
    version    {number} NOT NULL,
    expires_at {number},
    PRIMARY KEY (kind, key)
){keyed_table};
-- Every write of a document throws out those past their time: found here, not by a look at all.
CREATE INDEX document_expiry ON document (expires_at) WHERE expires_at IS NOT NULL;

-- The log as people ask for it; the same columns as the archive of a ledger that forgets.
CREATE VIEW event_log AS
SELECT t.id || ':' || e.n AS event_id, t.id AS task_id, e.n, e.generation, e.type, e.at, e.data
FROM event e JOIN task t USING (tid);
