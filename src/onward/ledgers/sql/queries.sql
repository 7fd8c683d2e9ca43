-- Every statement that the SQL ledgers share, by name; how to read them: dialect.py. `-- :rows` names the
-- columns of a batch. No statement decides anything: a guard compares what the move expected with what
-- is there.

-- :name insert_tasks
INSERT INTO task ({fields}) {rows};

-- :name apply
-- :rows id text, expect text, fence bigint, rev bigint, state text, due_at bigint, events bigint, due_by bigint, seen bigint
-- The guard: a move decided on another state, an older fence or an older rev changes nothing, and a
-- clock's move changes nothing if a heartbeat has set the alarm later than the clock that struck.
WITH m ({row}) AS ({rows})
UPDATE task SET
    rev = task.rev + 1, due_at = m.due_at, events = task.events + m.events, mail = task.mail - m.seen{changes}
FROM m
WHERE task.id = m.id AND task.state = m.expect AND task.fence = m.fence AND task.rev = m.rev
    AND (m.due_by IS NULL OR task.due_at <= m.due_by)
RETURNING task.id, task.tid, task.events, task.generation, task.queue, task.lane, task.priority, task.type,
    task.partition, task.strict = 1 AND task.started_at IS NOT NULL, task.batch, task.mail;

-- :name look
SELECT id, state, fence, rev FROM task WHERE id {in:text};

-- :name extend
-- :rows id text, fence bigint, until bigint, progress text, events bigint
WITH m ({row}) AS ({rows})
UPDATE task SET
    lease_until = m.until, progress = coalesce(m.progress, task.progress), events = task.events + m.events,
    due_at = {least}(
        m.until, coalesce(task.attempt_by, {never}), coalesce(task.expires_at, {never}),
        coalesce(task.cancel_by, {never})
    )
FROM m WHERE task.id = m.id AND task.fence = m.fence AND task.state = 'running'
RETURNING task.id, task.fence, task.tid, task.events, task.generation, task.cancel_by IS NOT NULL;

-- :name addressees
SELECT id, tid, state = 'waiting' FROM task
WHERE state IN ('scheduled', 'queued', 'running', 'waiting') AND id {in:text} ORDER BY tid{lock};

-- :name lying
-- The unread letters of each of these tasks: how many, how many bytes.
SELECT t.id, count(*), sum(octet_length(l.name) + octet_length(l.body))
FROM task t JOIN letter l USING (tid) WHERE t.mail > 0 AND t.id {in:text} GROUP BY t.id;

-- :name post_letters
-- :rows tid bigint, n bigint, name text, body text
WITH m ({row}) AS ({rows})
INSERT INTO letter (tid, n, name, body) SELECT tid, {place_after}n, name, body FROM m WHERE TRUE;

-- :name count_mail
-- :rows tid bigint, letters bigint
WITH m ({row}) AS ({rows})
UPDATE task SET mail = mail + m.letters FROM m WHERE task.tid = m.tid;

-- :name wake
-- :rows tid bigint, place bigint, now bigint
-- Not out of an approval: a signal or a child's end would otherwise do what only a person may.
WITH m ({row}) AS ({rows})
UPDATE task SET
    state = 'queued', rev = rev + 1, events = events + 1, due_at = expires_at, waiting_for = NULL,
    place = {place_after}m.place, queued_at = m.now
FROM m
WHERE task.tid = m.tid AND state = 'waiting' AND waiting_for IS DISTINCT FROM 'approval'
RETURNING task.tid, events, generation, queue, lane, priority, partition;

-- :name claim_these
-- As `claim` does, but of rows that were chosen.
UPDATE task SET
    state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
    attempt = attempt + 1, worker = ?1, started_at = ?2, lease_until = ?4, attempt_by = ?3 + attempt_ms,
    due_at = {least}(coalesce(?4, {never}), coalesce(?3 + attempt_ms, {never}), coalesce(expires_at, {never}))
WHERE state = 'queued' AND tid {in:bigint}
RETURNING tid, events, mail, place, {claimed_fields};

-- :name rates
SELECT name, each, partition, paid_at FROM rate;

-- :name save_rates
-- :rows name text, each bigint, partition text, paid_at bigint, forget_at bigint
WITH m ({row}) AS ({rows})
INSERT INTO rate ({row}) SELECT {row} FROM m WHERE TRUE
ON CONFLICT (name, each, partition) DO UPDATE SET paid_at = excluded.paid_at, forget_at = excluded.forget_at;

-- :name forget_rates
DELETE FROM rate WHERE forget_at <= ? RETURNING name, each, partition;

-- :name letters
SELECT t.id, l.name, l.body FROM letter l JOIN task t USING (tid)
WHERE l.tid {in:bigint} ORDER BY l.tid, l.n;

-- :name delete_all_letters
DELETE FROM letter WHERE tid {in:bigint};

-- :name delete_letters
DELETE FROM letter WHERE tid = ?1
    AND n IN (SELECT n FROM letter WHERE tid = ?1 ORDER BY n LIMIT ?2);

-- :name due
SELECT {task_fields} FROM task WHERE due_at <= ? ORDER BY due_at LIMIT ?;

-- :name set_aside
UPDATE task SET due_at = ?1 WHERE id {in:text};

-- :name get
SELECT {task_fields} FROM task WHERE id {in:text};

-- :name find
SELECT {task_fields}, tid FROM task WHERE {where} ORDER BY tid DESC LIMIT ?1;

-- :name place_of
SELECT queue, priority, lane, partition, place FROM task WHERE id = ? AND state = 'queued';

-- :name ahead
SELECT count(*) FROM (
    SELECT 1 FROM task{by_line}
    WHERE state = 'queued' AND queue = ? AND priority = ? AND lane = ? AND partition = ? AND place < ? LIMIT ?
) AS before;

-- :name oldest
-- :rows queue text, priority bigint, lane text
WITH m ({row}) AS ({rows})
SELECT m.queue, (
    SELECT coalesce(t.queued_at, t.created_at) FROM task t{by_line}
    WHERE t.state = 'queued' AND t.queue = m.queue AND t.priority = m.priority AND t.lane = m.lane
        AND t.partition = ''
    ORDER BY t.place LIMIT 1
), (
    SELECT coalesce(t.queued_at, t.created_at) FROM task t
    WHERE t.state = 'queued' AND t.queue = m.queue AND t.priority = m.priority AND t.lane = m.lane
        AND t.partition <> ''
    ORDER BY t.place LIMIT 1
) FROM m;

-- :name open_approvals
SELECT id, generation, type, coalesce(queued_at, created_at) FROM task
WHERE waiting_for = 'approval' AND state = 'waiting' ORDER BY tid LIMIT ?;

-- :name log
SELECT e.seq, t.id, e.n, e.generation, e.type, e.at, e.data
FROM event e JOIN task t USING (tid) WHERE e.seq > ? ORDER BY e.seq LIMIT ?;

-- :name log_end
SELECT coalesce(max(seq), 0) FROM event;

-- :name history
SELECT e.n, t.id, e.n, e.generation, e.type, e.at, e.data
FROM event e JOIN task t USING (tid) WHERE t.id = ? AND e.n > ? ORDER BY e.n LIMIT ?;

-- :name cursors
SELECT body FROM document WHERE kind = 'cursor';

-- :name over
SELECT t.tid, t.id, t.queue, t.state, (SELECT max(seq) FROM event e WHERE e.tid = t.tid)
FROM task t
WHERE t.id {in:text} AND t.state IN ('succeeded', 'failed', 'dead', 'canceled'){lock};

-- :name postpone
UPDATE task SET due_at = ?1 WHERE due_at IS NOT NULL AND tid {in:bigint};

-- :name purge_events
DELETE FROM event WHERE tid {in:bigint};

-- :name purge_tasks
DELETE FROM task WHERE tid {in:bigint};

-- :name date_keys
UPDATE submission_key SET forget_at = ?1 WHERE task {in:text};

-- :name purge_effects
DELETE FROM effect WHERE scope = '' AND key {in:text};

-- :name forget_effects
DELETE FROM effect
WHERE (scope, key) IN (SELECT scope, key FROM submission_key WHERE forget_at <= ?);

-- :name forget_keys
DELETE FROM submission_key WHERE forget_at <= ?;

-- :name hold_keys
-- :rows scope text, key text, body text, task text
-- The first to write a key holds it; those that come later, also from another server, get no row here.
WITH m ({row}) AS ({rows})
INSERT INTO submission_key (scope, key, body, task) SELECT scope, key, body, task FROM m WHERE TRUE
ON CONFLICT (scope, key) DO NOTHING RETURNING task;

-- :name find_keys
-- :rows scope text, key text
WITH m ({row}) AS ({rows})
SELECT k.scope, k.key, k.body, k.task FROM m JOIN submission_key k ON k.scope = m.scope AND k.key = m.key;

-- :name rivals
-- :rows unique_key text, state text
-- Only of the states that count: behind one that runs any number may be queued.
WITH m ({row}) AS ({rows})
SELECT t.unique_key, t.id, t.state FROM m CROSS JOIN task t
WHERE t.unique_key = m.unique_key AND t.state = m.state ORDER BY t.tid;

-- :name waiting_rivals
SELECT debounce_key, id FROM task WHERE debounce_key {in:text} AND state = 'scheduled' AND fence = 0;

-- :name hand_keys_on
-- :rows task text, heir text
WITH m ({row}) AS ({rows})
UPDATE submission_key SET task = m.heir FROM m WHERE submission_key.task = m.task;

-- :name live_batches
SELECT batch FROM batch_count
WHERE batch {in:text} AND state IN ('scheduled', 'queued', 'running', 'waiting')
GROUP BY batch HAVING sum(count) > 0;

-- :name batches
SELECT batch, state, CAST(sum(count) AS {number}) FROM batch_count WHERE batch {in:text}
GROUP BY batch, state HAVING sum(count) <> 0;

-- :name drop_keys
DELETE FROM submission_key WHERE task {in:text};

-- :name offered
SELECT queue, lane, count(*) FROM task WHERE state = 'running' AND lease_until IS NULL
GROUP BY queue, lane;

-- :name put_document
INSERT INTO document (kind, key, body, version, expires_at) VALUES (?1, ?2, ?3, 1, ?4)
ON CONFLICT (kind, key) DO UPDATE SET body = ?3, version = document.version + 1, expires_at = ?4
RETURNING version;

-- :name create_document
INSERT INTO document (kind, key, body, version, expires_at) VALUES (?1, ?2, ?3, 1, ?4)
ON CONFLICT (kind, key) DO NOTHING RETURNING version;

-- :name replace_document
UPDATE document SET body = ?3, version = version + 1, expires_at = ?4
WHERE kind = ?1 AND key = ?2 AND version = ?5 RETURNING version;

-- :name get_document
SELECT key, body, version FROM document
WHERE kind = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?);

-- :name list_documents
SELECT key, body, version FROM document
WHERE kind = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY {bytewise};

-- :name expire_documents
DELETE FROM document WHERE expires_at <= ?;

-- :name delete_document
DELETE FROM document
WHERE kind = ?1 AND key = ?2 AND (CAST(?3 AS {number}) IS NULL OR version = ?3) RETURNING version;

-- :name scope_of_key
SELECT scope FROM submission_key WHERE task = ? AND key = ?;

-- :name begin_effect
INSERT INTO effect (scope, key, name, task, fence, begun_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key, name) DO NOTHING RETURNING fence;

-- :name get_effect
SELECT task, fence, value FROM effect WHERE scope = ? AND key = ? AND name = ?;

-- :name finish_effect
UPDATE effect SET value = ? WHERE scope = ? AND key = ? AND name = ? AND fence = ? AND value IS NULL;

-- :name undo_effect
-- Not after the next claim: an attempt that was let to repeat an unknown effect finishes this very note.
DELETE FROM effect
WHERE scope = ? AND key = ? AND name = ? AND task = ? AND fence = ? AND value IS NULL
    AND fence = (SELECT fence FROM task WHERE id = effect.task);

-- :name newest_sessions
-- From one name to the next: a step a session, however many tasks each of them has.
WITH RECURSIVE known (session) AS (
    SELECT min(session) FROM {table_of_tasks} WHERE session IS NOT NULL
    UNION ALL
    SELECT (SELECT min(session) FROM {table_of_tasks} t WHERE t.session > known.session)
    FROM known WHERE session IS NOT NULL
), placed (session, place) AS (
    SELECT session, (SELECT max(tid) FROM {table_of_tasks} t WHERE t.session = known.session)
    FROM known WHERE session IS NOT NULL
)
SELECT session, place FROM placed WHERE place < ? ORDER BY place DESC LIMIT ?;

-- :name tally_session
SELECT
    (SELECT count(*) FROM {table_of_tasks} WHERE session = ?1), max(tid), state, count(*),
    {greatest}(max(created_at), max(coalesce(started_at, 0)), max(coalesce(finished_at, 0)))
FROM (
    SELECT tid, created_at, started_at, finished_at,
        CASE WHEN state = 'running' AND lease_until IS NULL THEN 'queued' ELSE state END AS state -- only offered
    FROM {table_of_tasks}
    WHERE session = ?1 ORDER BY tid DESC LIMIT ?2
) AS newest
GROUP BY state;

-- Texts at rest, table by table, each from a key on; written anew only where they are as they were read.

-- :name texts_of_task
SELECT {task_key}, id, {fields} FROM {table_of_tasks}
WHERE {task_key} > ? ORDER BY {task_key} LIMIT ?;

-- :name rewrite_task
UPDATE {table_of_tasks} SET {changes} = ?1 WHERE {task_key} = ?2 AND {changes} = ?3 RETURNING id;

-- :name texts_of_event
SELECT e.seq, t.id, e.type, e.data FROM event e JOIN task t USING (tid)
WHERE e.seq > ? AND e.data IS NOT NULL ORDER BY e.seq LIMIT ?;

-- :name rewrite_event
UPDATE event SET data = ?1 WHERE seq = ?2 AND data = ?3 RETURNING seq;

-- :name texts_of_letter
SELECT l.n, t.id, l.name, l.body FROM letter l JOIN task t USING (tid)
WHERE l.n > ? ORDER BY l.n LIMIT ?;

-- :name rewrite_letter
UPDATE letter SET body = ?1 WHERE n = ?2 AND body = ?3 RETURNING n;

-- :name texts_of_document
SELECT kind, key, body FROM document WHERE (kind, key) > (?, ?) ORDER BY kind, key LIMIT ?;

-- :name rewrite_document
UPDATE document SET body = ?1 WHERE kind = ?2 AND key = ?3 AND body = ?4 RETURNING key;

-- :name texts_of_effect
SELECT scope, key, name, value FROM effect
WHERE (scope, key, name) > (?, ?, ?) AND value IS NOT NULL ORDER BY scope, key, name LIMIT ?;

-- :name rewrite_effect
UPDATE effect SET value = ?1 WHERE scope = ?2 AND key = ?3 AND name = ?4 AND value = ?5 RETURNING key;
