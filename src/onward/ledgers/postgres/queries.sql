-- The statements that only Postgres has. The others: ../sql/queries.sql.

-- :name insert_tasks
INSERT INTO task ({fields}) {rows} RETURNING tid;

-- :name claim
-- The heads of several lanes, in their order, until there are enough. Rows that another server is about
-- to claim are passed over. `due_at` is whichever clock of a running task strikes first; a task that is
-- only offered (no lease) has none but its age: $7 (from) and $8 (until) are NULL.
WITH want AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[])
        WITH ORDINALITY AS w (queue, priority, lane, most, nth)
), head AS MATERIALIZED (
    SELECT t.tid, w.nth FROM want w CROSS JOIN LATERAL (
        SELECT tid FROM task
        WHERE state = 'queued' AND queue = w.queue AND priority = w.priority AND lane = w.lane
        ORDER BY place LIMIT w.most FOR UPDATE SKIP LOCKED
    ) t LIMIT $9
)
UPDATE task SET
    state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
    attempt = attempt + 1, worker = $5, started_at = $6, lease_until = $8, attempt_by = $7 + attempt_ms,
    due_at = least(coalesce($8, {never}), coalesce($7 + attempt_ms, {never}), coalesce(expires_at, {never}))
FROM head WHERE task.tid = head.tid
RETURNING head.nth, task.tid, task.events, task.mail, task.place, {claimed_fields};

-- :name add_counts
-- :rows queue text, state text, lane text, priority bigint, count bigint
INSERT INTO tally ({row}) {rows};

-- :name insert_events
-- :rows tid bigint, n bigint, generation bigint, type text, at bigint, data text, final bigint
-- The transaction's number comes back, to ask for its fate should the reply to COMMIT be lost.
WITH written AS (INSERT INTO event ({row}) {rows})
SELECT pg_current_xact_id()::text;

-- :name lock_queues
-- One server at a time adds to a queue that has a cap: else two could each take its last place.
SELECT pg_advisory_xact_lock(hashtextextended(queue, 70)) FROM unnest(?::text[]) AS q (queue);

-- :name depths
SELECT queue, sum(count)::bigint FROM tally WHERE state = 'queued' AND queue {in:text} GROUP BY queue;

-- :name tallies
SELECT queue, state, lane, priority, sum(count)::bigint FROM tally
GROUP BY queue, state, lane, priority HAVING sum(count) <> 0;

-- :name compact
-- Two servers may do it at once: a row that the other has taken is passed over.
WITH old AS (
    DELETE FROM tally WHERE (SELECT count(*) FROM tally) > ? RETURNING *
)
INSERT INTO tally SELECT queue, state, lane, priority, sum(count) FROM old
GROUP BY queue, state, lane, priority HAVING sum(count) <> 0;

-- :name writers
-- The transactions under way that have written, or are about to write, to the log.
SELECT virtualtransaction FROM pg_locks
WHERE relation = 'event'::regclass AND mode = 'RowExclusiveLock' AND granted;

-- :name fate
SELECT pg_xact_status(?::text::xid8);

-- :name time
SELECT extract(epoch FROM clock_timestamp());

-- :name read_enqueued
SELECT id, CASE WHEN octet_length(body) <= ?3 THEN body END FROM enqueued
WHERE id > ?1 AND NOT id {in:text} ORDER BY id LIMIT ?2;

-- :name forget_enqueued
DELETE FROM enqueued WHERE id {in:text};
