-- Texts at rest, table by table, each from a key on; written anew only where they are as they were read.

-- :name task
SELECT tid, id, payload, result, error, progress, journal, bulk, approval FROM task
WHERE tid > ? ORDER BY tid LIMIT ?;

-- :name archived_task
SELECT rowid, id, payload, result, error, progress, journal, bulk, approval FROM archived_task
WHERE rowid > ? ORDER BY rowid LIMIT ?;

-- :name rewrite_task
UPDATE task SET {field} = ? WHERE tid = ? AND {field} = ? RETURNING 1;

-- :name rewrite_archived_task
UPDATE archived_task SET {field} = ? WHERE rowid = ? AND {field} = ? RETURNING 1;

-- :name long_text
SELECT l.tid, l.field, t.id, l.body FROM long_text l JOIN task t USING (tid)
WHERE (l.tid, l.field) > (?, ?) ORDER BY l.tid, l.field LIMIT ?;

-- :name rewrite_long_text
UPDATE long_text SET body = ? WHERE tid = ? AND field = ? AND body = ? RETURNING 1;

-- :name event
SELECT e.seq, t.id, e.type, e.data FROM event e JOIN task t USING (tid)
WHERE e.seq > ? AND e.data IS NOT NULL ORDER BY e.seq LIMIT ?;

-- :name event_log
SELECT rowid, task_id, type, data FROM event_log
WHERE rowid > ? AND data IS NOT NULL ORDER BY rowid LIMIT ?;

-- :name rewrite_event
UPDATE event SET data = ? WHERE seq = ? AND data = ? RETURNING 1;

-- :name rewrite_event_log
UPDATE event_log SET data = ? WHERE rowid = ? AND data = ? RETURNING 1;

-- :name letter
SELECT l.n, t.id, l.name, l.body FROM letter l JOIN task t USING (tid)
WHERE l.n > ? ORDER BY l.n LIMIT ?;

-- :name rewrite_letter
UPDATE letter SET body = ? WHERE n = ? AND body = ? RETURNING 1;

-- :name document
SELECT kind, key, body FROM document WHERE (kind, key) > (?, ?) ORDER BY kind, key LIMIT ?;

-- :name rewrite_document
UPDATE document SET body = ? WHERE kind = ? AND key = ? AND body = ? RETURNING 1;

-- :name effect
SELECT scope, key, name, value FROM effect
WHERE (scope, key, name) > (?, ?, ?) AND value IS NOT NULL ORDER BY scope, key, name LIMIT ?;

-- :name rewrite_effect
UPDATE effect SET value = ? WHERE scope = ? AND key = ? AND name = ? AND value = ? RETURNING 1;
