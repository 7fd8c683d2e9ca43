-- The statements that only Postgres has. The others: ../sql/queries.sql.

-- :name insert_tasks
INSERT INTO task ({fields}) {rows} RETURNING tid;

-- :name claim
-- The heads of several lanes, each from a place on, in their order, until there are enough. Rows that
-- another server is about to claim are passed over. If one of the queues has partitions nothing is claimed,
-- and one row of NULLs is returned. `due_at` is whichever clock of a running task strikes first; a task that is
-- only offered (no lease) has none but its age: $8 (from) and $9 (until) are NULL.
WITH ringed AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM ring WHERE queue = ANY($1))
        OR EXISTS (SELECT 1 FROM ring_news WHERE queue = ANY($1)) AS yes
), want AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[])
        WITH ORDINALITY AS w (queue, priority, lane, most, start, nth)
), head AS MATERIALIZED (
    SELECT t.tid, w.nth FROM want w CROSS JOIN LATERAL (
        SELECT tid FROM task
        WHERE state = 'queued' AND queue = w.queue AND priority = w.priority AND lane = w.lane
            AND partition = '' AND place >= w.start
        ORDER BY place LIMIT w.most FOR UPDATE SKIP LOCKED
    ) t WHERE NOT (SELECT yes FROM ringed) LIMIT $10
), claimed AS (
    UPDATE task SET
        state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
        attempt = attempt + 1, worker = $6, started_at = $7, lease_until = $9, attempt_by = $8 + attempt_ms,
        due_at = least(coalesce($9, {never}), coalesce($8 + attempt_ms, {never}), coalesce(expires_at, {never}))
    FROM head WHERE task.tid = head.tid
    RETURNING head.nth, task.tid, task.events, task.mail, task.place, {claimed_fields}
)
SELECT claimed.* FROM ringed LEFT JOIN claimed ON TRUE WHERE yes OR claimed.nth IS NOT NULL;

-- :name claim_these
-- The same of rows that were chosen; not of one that somebody else is about to move.
UPDATE task SET
    state = 'running', fence = fence + 1, rev = rev + 1, events = events + 1,
    attempt = attempt + 1, worker = ?1, started_at = ?2, lease_until = ?4, attempt_by = ?3 + attempt_ms,
    due_at = least(coalesce(?4, {never}), coalesce(?3 + attempt_ms, {never}), coalesce(expires_at, {never}))
WHERE tid IN (SELECT tid FROM task WHERE state = 'queued' AND tid {in:bigint} FOR UPDATE SKIP LOCKED)
RETURNING tid, events, mail, place, {claimed_fields};

-- :name hear
-- Notes of what was queued in these queues, oldest first ($1), and of partitions in which something that
-- bounds count has ended: in the queues ($2) or of the types ($3) of those bounds. The latter without an n.
WITH joined AS (
    DELETE FROM ring_news WHERE n IN (
        SELECT n FROM ring_news WHERE queue = ANY($1::text[]) ORDER BY n LIMIT $4 FOR UPDATE SKIP LOCKED
    ) RETURNING n, queue, priority, lane, partition
), freed AS (
    DELETE FROM ring_freed WHERE n IN (
        SELECT n FROM ring_freed WHERE queue = ANY($2::text[]) OR type = ANY($3::text[])
        ORDER BY n LIMIT $4 FOR UPDATE SKIP LOCKED
    ) RETURNING partition
)
SELECT n, queue, priority, lane, partition FROM joined
UNION ALL SELECT 0, '', 0, '', partition FROM freed;

-- :name oldest_freed
SELECT n, queue FROM ring_freed ORDER BY n LIMIT 100;

-- :name note_joined
-- :rows queue text, priority bigint, lane text, partition text
INSERT INTO ring_news ({row}) {rows};

-- :name note_freed
-- :rows queue text, type text, partition text
INSERT INTO ring_freed ({row}) {rows};

-- :name join_ring
-- :rows queue text, priority bigint, lane text, partition text
INSERT INTO ring (queue, priority, lane, partition, turn)
SELECT queue, priority, lane, partition, nextval('turn_number')
FROM ({rows}) AS m ({row})
ON CONFLICT (queue, priority, lane, partition)
DO UPDATE SET turn = coalesce(ring.turn, excluded.turn), until = NULL;

-- :name free_ring
UPDATE ring SET turn = nextval('turn_number'), until = NULL
WHERE turn IS NULL AND queue = ANY($1::text[]) AND partition = ANY($2::text[]);

-- :name free_others
-- In other queues a partition that waits is the matter of their claims.
INSERT INTO ring_news (queue, priority, lane, partition)
SELECT queue, priority, lane, partition FROM ring
WHERE turn IS NULL AND queue <> ALL($1::text[]) AND partition = ANY($2::text[]);

-- :name ring_back
-- Those that do not wait any more, or waited under other bounds: for each queue their two hashes are given.
UPDATE ring SET turn = nextval('turn_number'), until = NULL
WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS h (queue, one, two) CROSS JOIN LATERAL (
        SELECT ctid FROM ring WHERE turn IS NULL AND queue = h.queue AND until <= $4
        UNION SELECT ctid FROM ring WHERE turn IS NULL AND queue = h.queue AND bounds < least(one, two)
        UNION SELECT ctid FROM ring WHERE turn IS NULL AND queue = h.queue AND bounds > greatest(one, two)
        UNION SELECT ctid FROM ring
        WHERE turn IS NULL AND queue = h.queue AND bounds > least(one, two) AND bounds < greatest(one, two)
    ) r
));

-- :name first_back
SELECT q.queue, r.until FROM unnest(?::text[]) AS q (queue) CROSS JOIN LATERAL (
    SELECT until FROM ring WHERE turn IS NULL AND queue = q.queue AND until IS NOT NULL ORDER BY until LIMIT 1
) r;

-- :name members
-- The partitions of each lane whose turn is next, and whether the partition "" is in its ring.
SELECT w.nth, r.partition, EXISTS (
    SELECT 1 FROM ring WHERE queue = w.queue AND priority = w.priority AND lane = w.lane AND partition = ''
) FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[]) AS w (queue, priority, lane, nth) CROSS JOIN LATERAL (
    SELECT partition, turn FROM ring
    WHERE queue = w.queue AND priority = w.priority AND lane = w.lane AND turn IS NOT NULL ORDER BY turn LIMIT $5
) r ORDER BY w.nth, r.turn;

-- :name heads
-- :rows nth bigint, queue text, priority bigint, lane text, partition text, passed text, most bigint
-- The first of each of these partitions, without those of the types that are passed over.
WITH m ({row}) AS MATERIALIZED ({rows})
SELECT m.nth, m.partition, t.tid, t.type, t.costs FROM m CROSS JOIN LATERAL (
    SELECT tid, type, costs, place FROM task
    WHERE state = 'queued' AND queue = m.queue AND priority = m.priority AND lane = m.lane
        AND partition = m.partition AND (m.passed = '' OR strpos(m.passed, {separator} || type || {separator}) = 0)
    ORDER BY place LIMIT m.most
) t ORDER BY m.nth, t.place;

-- :name save_turns
-- :rows queue text, priority bigint, lane text, partition text, out bigint, until bigint, bounds bigint
-- To the end of its ring, or out of it.
INSERT INTO ring (queue, priority, lane, partition, turn, until, bounds)
SELECT queue, priority, lane, partition, CASE WHEN out = 0 THEN nextval('turn_number') END, until, bounds
FROM ({rows}) AS m ({row})
ON CONFLICT (queue, priority, lane, partition)
DO UPDATE SET turn = excluded.turn, until = excluded.until, bounds = excluded.bounds;

-- :name drop_turns
-- :rows queue text, priority bigint, lane text, partition text, alone bigint
-- Perhaps only if it is alone: the partition "" is in a ring for the sake of others.
-- Row by row: joined the other way round, the whole ring would be read for each of them.
DELETE FROM ring WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM ({rows}) AS m ({row}) CROSS JOIN LATERAL (
        SELECT ctid FROM ring
        WHERE queue = m.queue AND priority = m.priority AND lane = m.lane AND partition = m.partition OFFSET 0
    ) r
    WHERE m.alone = 0 OR NOT EXISTS (
        SELECT 1 FROM ring o
        WHERE o.queue = m.queue AND o.priority = m.priority AND o.lane = m.lane AND o.partition <> ''
    )
));

-- :name used
-- How many occupy what each of these bounds ($1) counts, in each of these partitions ($2, $3), at most as
-- many as it lets run. By type they are found in the queues where something runs, and in those ($4) where
-- this very transaction may have claimed.
WITH bound AS MATERIALIZED (
    SELECT nth, most, "each", ARRAY(SELECT jsonb_array_elements_text(queues)) AS queues,
        ARRAY(SELECT jsonb_array_elements_text(types)) AS types
    FROM jsonb_to_recordset($1::jsonb) AS b (nth bigint, most bigint, "each" boolean, queues jsonb, types jsonb)
), others AS MATERIALIZED (
    SELECT ARRAY(SELECT queue FROM tally WHERE state = 'running' UNION SELECT unnest($4::text[])) AS queues
)
SELECT p.nth, p.partition, CASE WHEN b."each" THEN (
    SELECT count(*) FROM (
        SELECT 1 FROM task WHERE state = 'running' AND queue = ANY(b.queues) AND partition = p.partition
        UNION ALL
        SELECT 1 FROM task WHERE state = 'scheduled' AND strict = 1 AND started_at IS NOT NULL
            AND queue = ANY(b.queues) AND partition = p.partition
        UNION ALL
        SELECT 1 FROM task WHERE cardinality(b.types) > 0 AND state = 'running' AND queue = ANY(o.queues)
            AND partition = p.partition AND type = ANY(b.types) AND queue <> ALL(b.queues)
        UNION ALL
        SELECT 1 FROM task WHERE cardinality(b.types) > 0 AND state = 'scheduled' AND strict = 1
            AND started_at IS NOT NULL AND partition = p.partition AND type = ANY(b.types)
            AND queue <> ALL(b.queues)
        LIMIT b.most
    ) AS one
) ELSE (
    SELECT count(*) FROM (
        SELECT 1 FROM task WHERE state = 'running' AND queue = ANY(b.queues)
        UNION ALL
        SELECT 1 FROM task WHERE state = 'scheduled' AND strict = 1 AND started_at IS NOT NULL
            AND queue = ANY(b.queues)
        UNION ALL
        SELECT 1 FROM task WHERE cardinality(b.types) > 0 AND state = 'running' AND queue = ANY(o.queues)
            AND type = ANY(b.types) AND queue <> ALL(b.queues)
        UNION ALL
        SELECT 1 FROM task WHERE cardinality(b.types) > 0 AND state = 'scheduled' AND strict = 1
            AND started_at IS NOT NULL AND type = ANY(b.types) AND queue <> ALL(b.queues)
        LIMIT b.most
    ) AS one
) END
FROM unnest($2::bigint[], $3::text[]) AS p (nth, partition) JOIN bound b USING (nth) CROSS JOIN others o;

-- :name paid
SELECT r.name, r."each", r.partition, r.paid_at
FROM unnest(?::text[], ?::bigint[], ?::text[]) AS k (name, "each", partition)
JOIN rate r ON r.name = k.name AND r."each" = k."each" AND r.partition = k.partition;

-- :name add_counts
-- :rows queue text, state text, lane text, priority bigint, count bigint
INSERT INTO tally ({row}) {rows};

-- :name insert_events
-- :rows tid bigint, n bigint, generation bigint, type text, at bigint, data text, final bigint
-- The transaction's number comes back, to ask for its fate should the reply to COMMIT be lost.
WITH written AS (INSERT INTO event ({row}) {rows})
SELECT pg_current_xact_id()::text;

-- :name lock
-- In the order given, which is the same for all: else two servers could wait for each other.
SELECT pg_advisory_xact_lock(hashtextextended(name, 71)) FROM unnest(?::text[]) AS n (name);

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

-- :name compact_batches
-- As `compact`; those that are added up already, of batches that nothing happens to, are not read.
WITH old AS (
    DELETE FROM batch_count
    WHERE batch IN (SELECT batch FROM batch_count WHERE NOT added)
        AND (SELECT count(*) FROM batch_count WHERE NOT added) > ? RETURNING *
)
INSERT INTO batch_count SELECT batch, state, sum(count), TRUE FROM old
GROUP BY batch, state HAVING sum(count) <> 0;

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
