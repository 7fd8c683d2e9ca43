-- Every statement of the archive, by name; its tables are explained in archive_migrations/.
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
