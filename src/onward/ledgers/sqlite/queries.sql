-- The statements that only SQLite has. The others: ../sql/queries.sql.

-- :name put_long_texts
-- :rows tid bigint, field text, body text
INSERT INTO long_text (tid, field, body) {rows} ON CONFLICT DO UPDATE SET body = excluded.body;

-- :name long_texts
SELECT field, body FROM long_text WHERE tid = ? AND field <> 'result';

-- :name purge_long_texts
DELETE FROM long_text WHERE tid {in:bigint};

-- :name insert_events
-- :rows seq bigint, tid bigint, n bigint, generation bigint, type text, at bigint, data text, final bigint
INSERT INTO event ({row}) {rows};

-- :name claim
-- The head of one lane without partitions. `due_at` is whichever clock of a running task strikes first; a task that is
-- only offered (no lease) has none but its age: ?3 (from) and ?4 (until) are NULL.
UPDATE task SET
    state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
    attempt = attempt + 1, worker = ?1, started_at = ?2, lease_until = ?4, attempt_by = ?3 + attempt_ms,
    due_at = min(coalesce(?4, {never}), coalesce(?3 + attempt_ms, {never}), coalesce(expires_at, {never}))
WHERE tid IN (
    SELECT tid FROM task INDEXED BY task_line
    WHERE state = 'queued' AND queue = ?5 AND priority = ?6 AND lane = ?7 AND partition = ''
    ORDER BY place LIMIT ?8
)
RETURNING tid, events, mail, place, {claimed_fields};

-- :name heads
-- :rows queue text, priority bigint, lane text, partition text, passed text
-- The first {changes} of each of these partitions, without those of the types that are passed over.
WITH m ({row}) AS ({rows})
SELECT m.partition, t.tid, t.type, t.costs FROM m CROSS JOIN task t
WHERE t.tid IN (
    SELECT tid FROM task INDEXED BY task_line
    WHERE state = 'queued' AND queue = m.queue AND priority = m.priority AND lane = m.lane
        AND partition = m.partition AND (m.passed = '' OR instr(m.passed, {separator} || type || {separator}) = 0)
    ORDER BY place LIMIT {changes}
) ORDER BY t.place;

-- :name rings
-- Every partition that has something queued, by what waits longest in it.
SELECT queue, priority, lane, partition, count(*) FROM task INDEXED BY task_parted
WHERE state = 'queued' AND partition <> ''
GROUP BY queue, priority, lane, partition ORDER BY min(place);

-- :name count_offered
SELECT count(*) FROM task INDEXED BY task_offered WHERE state = 'running' AND lease_until IS NULL;

-- :name occupied
-- What bounds count: what runs, is offered, or waits to be tried again in strict order. Leases end soon:
-- those that run are among the first of all alarms, and it is known how many they are.
SELECT queue, type, partition, count(*) FROM (
    SELECT queue, type, partition FROM (
        SELECT queue, type, partition FROM task INDEXED BY task_alarm
        WHERE due_at IS NOT NULL AND state = 'running' AND lease_until IS NOT NULL ORDER BY due_at LIMIT ?
    )
    UNION ALL
    SELECT queue, type, partition FROM task INDEXED BY task_offered
    WHERE state = 'running' AND lease_until IS NULL
    UNION ALL
    SELECT queue, type, partition FROM task INDEXED BY task_strict
    WHERE state = 'scheduled' AND strict = 1 AND started_at IS NOT NULL
) GROUP BY queue, type, partition;

-- :name counters
SELECT tid, place, event FROM counter;

-- :name save_counters
UPDATE counter SET tid = ?, place = ?, event = ?;

-- :name tallies
SELECT queue, state, lane, priority, count FROM tally;

-- :name save_tallies
-- :rows queue text, state text, lane text, priority bigint, count bigint
INSERT INTO tally ({row}) {rows} ON CONFLICT DO UPDATE SET count = excluded.count;

-- :name drop_tallies
-- :rows queue text, state text, lane text, priority bigint
DELETE FROM tally WHERE ({row}) IN ({rows});

-- :name drop_empty_tallies
DELETE FROM tally WHERE count = 0;

-- :name texts_of_long_text
SELECT l.tid, l.field, t.id, l.body FROM long_text l JOIN task t USING (tid)
WHERE (l.tid, l.field) > (?, ?) ORDER BY l.tid, l.field LIMIT ?;

-- :name rewrite_long_text
UPDATE long_text SET body = ?1 WHERE tid = ?2 AND field = ?3 AND body = ?4 RETURNING tid;
