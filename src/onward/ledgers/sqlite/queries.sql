-- Every statement of the SQLite ledger, by name. {rows} stands for a list of (?, ?, …) as long as the
-- batch, {columns} and {changes} for field names. No statement decides anything: a guard compares
-- what the move expected with what is there.

-- :name insert_tasks
INSERT INTO task ({columns}) VALUES {rows};

-- :name put_long_texts
INSERT INTO long_text (tid, field, body) VALUES {rows} ON CONFLICT DO UPDATE SET body = excluded.body;

-- :name long_texts
SELECT field, body FROM long_text WHERE tid = ? AND field <> 'result';

-- :name insert_events
INSERT INTO event (seq, tid, n, generation, type, at, data, final) VALUES {rows};

-- :name claim
-- The head of one lane. `due_at` is whichever clock of a running task strikes first; a task that is
-- only offered (no lease) has none but its age, and :from is NULL.
UPDATE task SET
    state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
    attempt = attempt + 1, worker = :worker, started_at = :now,
    lease_until = :until, attempt_by = :from + attempt_ms,
    due_at = min(ifnull(:until, 9e15), ifnull(:from + attempt_ms, 9e15), ifnull(expires_at, 9e15))
WHERE tid IN (
    SELECT tid FROM task INDEXED BY task_ready
    WHERE state = 'queued' AND queue = :queue AND priority = :priority AND lane = :lane
    ORDER BY place LIMIT :limit
)
RETURNING tid, events, mail, place, {columns};

-- :name apply
-- The guard: a move decided on another state, an older fence or an older rev changes nothing, and a
-- clock's move changes nothing if a heartbeat has set the alarm later than the clock that struck.
UPDATE task SET
    rev = rev + 1, due_at = m.column6, events = events + m.column7, mail = mail - m.column9{changes}
FROM (VALUES {rows}) AS m
WHERE task.id = m.column1 AND state = m.column2 AND fence = m.column3 AND rev = m.column4
    AND (m.column8 IS NULL OR task.due_at <= m.column8)
RETURNING id, tid, events, generation, queue, lane, priority, mail;

-- :name look
SELECT id, state, fence, rev FROM task WHERE id IN ({rows});

-- :name extend
UPDATE task SET
    lease_until = m.column3, progress = ifnull(m.column4, progress), events = events + m.column5,
    due_at = min(
        m.column3, ifnull(attempt_by, 9e15), ifnull(expires_at, 9e15), ifnull(cancel_by, 9e15)
    )
FROM (VALUES {rows}) AS m
WHERE task.id = m.column1 AND fence = m.column2 AND state = 'running'
RETURNING id, fence, tid, events, generation, cancel_by IS NOT NULL;

-- :name addressees
SELECT id, tid, state = 'waiting' FROM task
WHERE state IN ('scheduled', 'queued', 'running', 'waiting') AND id IN ({rows});

-- :name lying
-- The unread letters of each of these tasks: how many, how many bytes.
SELECT t.id, count(*), sum(octet_length(l.name) + octet_length(l.body))
FROM task t JOIN letter l USING (tid) WHERE t.mail > 0 AND t.id IN ({rows}) GROUP BY t.tid;

-- :name post_letters
INSERT INTO letter (tid, n, name, body) VALUES {rows};

-- :name count_mail
UPDATE task SET mail = mail + m.column2 FROM (VALUES {rows}) AS m WHERE tid = m.column1;

-- :name wake
-- Not out of an approval: a signal or a child's end would otherwise do what only a person may.
UPDATE task SET
    state = 'queued', rev = rev + 1, events = events + 1, due_at = expires_at, waiting_for = NULL,
    place = m.column2, queued_at = m.column3
FROM (VALUES {rows}) AS m
WHERE tid = m.column1 AND state = 'waiting' AND waiting_for IS NOT 'approval'
RETURNING tid, events, generation, queue, lane, priority;

-- :name letters
SELECT t.id, l.name, l.body FROM letter l JOIN task t USING (tid)
WHERE l.tid IN ({rows}) ORDER BY l.tid, l.n;

-- :name delete_all_letters
DELETE FROM letter WHERE tid IN ({rows});

-- :name delete_letters
DELETE FROM letter WHERE tid = :tid
    AND n IN (SELECT n FROM letter WHERE tid = :tid ORDER BY n LIMIT :seen);

-- :name due
SELECT {columns} FROM task WHERE due_at <= :now ORDER BY due_at LIMIT :limit;

-- :name set_aside
UPDATE task SET due_at = ? WHERE id IN ({rows});

-- :name get
SELECT {columns} FROM task WHERE id IN ({rows});

-- :name find
SELECT {columns}, tid FROM task WHERE {where} ORDER BY tid DESC LIMIT :limit;

-- :name place_of
SELECT queue, priority, lane, place FROM task WHERE id = ? AND state = 'queued';

-- :name ahead
SELECT count(*) FROM (
    SELECT 1 FROM task INDEXED BY task_ready
    WHERE state = 'queued' AND queue = ? AND priority = ? AND lane = ? AND place < ? LIMIT ?
);

-- :name log
SELECT e.seq, t.id, e.n, e.generation, e.type, e.at, e.data
FROM event e JOIN task t USING (tid) WHERE e.seq > ? ORDER BY e.seq LIMIT ?;

-- :name log_end
SELECT ifnull(max(seq), 0) FROM event;

-- :name history
SELECT e.n, t.id, e.n, e.generation, e.type, e.at, e.data
FROM event e JOIN task t USING (tid) WHERE t.id = ? AND e.n > ? ORDER BY e.n LIMIT ?;

-- :name slowest_cursor
-- One that cannot be read stands at the beginning: what its reader has seen is not known.
SELECT min(CASE WHEN json_valid(body) THEN CAST(json_extract(body, '$') AS INTEGER) ELSE 0 END)
FROM document WHERE kind = 'cursor';

-- :name over
SELECT t.tid, t.id, t.queue, t.state, max(e.seq)
FROM task t LEFT JOIN event e USING (tid)
WHERE t.id IN ({rows}) AND t.state IN ('succeeded', 'failed', 'dead', 'canceled') GROUP BY t.tid;

-- :name postpone
UPDATE task SET due_at = ? WHERE due_at IS NOT NULL AND tid IN ({rows});

-- :name purge_events
DELETE FROM event WHERE tid IN ({rows});

-- :name purge_letters
DELETE FROM letter WHERE tid IN ({rows});

-- :name purge_long_texts
DELETE FROM long_text WHERE tid IN ({rows});

-- :name purge_tasks
DELETE FROM task WHERE tid IN ({rows});

-- :name date_keys
UPDATE submission_key SET forget_at = ? WHERE task IN ({rows});

-- :name purge_effects
DELETE FROM effect WHERE scope = '' AND key IN ({rows});

-- :name forget_effects
DELETE FROM effect
WHERE (scope, key) IN (SELECT scope, key FROM submission_key WHERE forget_at <= ?);

-- :name forget_keys
DELETE FROM submission_key WHERE forget_at <= ?;

-- :name find_key
SELECT body, task FROM submission_key WHERE scope = ? AND key = ?;

-- :name keep_key
INSERT INTO submission_key (scope, key, body, task) VALUES (?, ?, ?, ?);

-- :name counters
SELECT tid, place, event FROM counter;

-- :name save_counters
UPDATE counter SET tid = ?, place = ?, event = ?;

-- :name tallies
SELECT queue, state, lane, priority, count FROM tally;

-- :name offered
SELECT queue, lane, count(*) FROM task WHERE state = 'running' AND lease_until IS NULL
GROUP BY queue, lane;

-- :name save_tallies
INSERT INTO tally (queue, state, lane, priority, count) VALUES {rows}
ON CONFLICT DO UPDATE SET count = excluded.count;

-- :name drop_tallies
DELETE FROM tally WHERE (queue, state, lane, priority) IN (VALUES {rows});

-- :name drop_empty_tallies
DELETE FROM tally WHERE count = 0;

-- :name put_document
INSERT INTO document (kind, key, body, version, expires_at) VALUES (:kind, :key, :body, 1, :expires_at)
ON CONFLICT DO UPDATE SET body = :body, version = version + 1, expires_at = :expires_at
RETURNING version;

-- :name get_document
SELECT key, body, version FROM document
WHERE kind = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?);

-- :name list_documents
SELECT key, body, version FROM document
WHERE kind = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key;

-- :name expire_documents
DELETE FROM document WHERE expires_at <= ?;

-- :name delete_document
DELETE FROM document WHERE kind = ?1 AND key = ?2 AND (?3 IS NULL OR version = ?3) RETURNING 1;

-- :name scope_of_key
SELECT scope FROM submission_key WHERE task = ? AND key = ?;

-- :name begin_effect
INSERT INTO effect (scope, key, name, task, fence, begun_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1;

-- :name get_effect
SELECT task, fence, value FROM effect WHERE scope = ? AND key = ? AND name = ?;

-- :name finish_effect
UPDATE effect SET value = ? WHERE scope = ? AND key = ? AND name = ? AND fence = ? AND value IS NULL;

-- :name undo_effect
-- Not after the next claim: an attempt that was let to repeat an unknown effect finishes this very note.
DELETE FROM effect
WHERE scope = ? AND key = ? AND name = ? AND task = ? AND fence = ? AND value IS NULL
    AND fence = (SELECT fence FROM task WHERE id = effect.task);
