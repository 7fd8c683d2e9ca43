-- The statements of the archive; those that it shares with the ledgers are in sql/queries.sql, its tables
-- in archive_schema.sql.
--
-- A batch comes as one JSON text and is written in one step: the library gives the interpreter lock
-- up once a step, and gets it back late when the loop is busy.

-- :name name_archive
INSERT OR IGNORE INTO identity VALUES (1, ?);

-- :name name
SELECT name FROM identity;

-- :name keep_events
INSERT OR IGNORE INTO event_log (event_id, task_id, n, generation, type, at, data)
SELECT (value ->> 0) || ':' || (value ->> 1),
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(?) ORDER BY key;

-- :name keep_tasks
-- The newest reading wins: an archiver that was held up may come with an older one.
INSERT INTO archived_task (tid, {task_fields}) SELECT {json_values} FROM json_each(?) WHERE TRUE
ON CONFLICT (id) DO UPDATE SET {json_changes} WHERE excluded.rev >= archived_task.rev;

-- :name revive_tasks
DELETE FROM archived_task WHERE rowid IN (
    SELECT a.rowid FROM json_each(?) alive JOIN archived_task a ON a.id = alive.value ->> 0
    WHERE a.rev <= alive.value ->> 1
);

-- :name get
SELECT {task_fields} FROM archived_task WHERE id IN (SELECT value FROM json_each(?));

-- :name find
SELECT {task_fields}, tid FROM archived_task WHERE {where} ORDER BY tid DESC LIMIT ?1;

-- :name history
SELECT task_id, n, generation, type, at, data FROM event_log
WHERE task_id = ? AND n > ? ORDER BY n LIMIT ?;

-- :name last_place
SELECT coalesce(max(tid), 0) FROM archived_task;

-- :name outlived
SELECT id FROM archived_task
WHERE profile = ? AND finished_at <= ? AND state != 'dead' LIMIT ?;

-- :name forget_events
DELETE FROM event_log WHERE task_id IN (SELECT value FROM json_each(?));

-- :name forget_tasks
DELETE FROM archived_task WHERE id IN (SELECT value FROM json_each(?));

-- :name texts_of_event
SELECT rowid, task_id, type, data FROM event_log
WHERE rowid > ? AND data IS NOT NULL ORDER BY rowid LIMIT ?;

-- :name rewrite_event
UPDATE event_log SET data = ?1 WHERE rowid = ?2 AND data = ?3 RETURNING rowid;
