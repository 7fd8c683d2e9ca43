-- What has left a ledger that forgets, in one SQLite file.
--
-- `event_log` is the log: one row an event, `event_id` its task and number, so that a batch that is
-- read twice is written once. `archived_task` holds one row a finished task, as it was last seen: the
-- fields of core.task.Task by the same names, and `tid`, its place among all tasks, which the ledger
-- gave it at birth and `find` walks. A task that is replayed lives in the ledger again, and its row is
-- gone until it ends. `identity` names this file: a reader's cursor belongs to one file. The indexes of
-- tasks are in archive_indexes.sql.

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
    tid INTEGER NOT NULL,
{task_columns}
) STRICT;
CREATE UNIQUE INDEX archived_task_id ON archived_task (id);
