-- Sessions and their tasks. {table} is the ledger's `task`, or the archive's `archived_task`: both have an
-- index on (session, tid), by which every statement here goes.

-- :name newest
-- From one name to the next: a step a session, however many tasks each of them has.
WITH RECURSIVE known (session) AS (
    SELECT min(session) FROM {table} WHERE session IS NOT NULL
    UNION ALL
    SELECT (SELECT min(session) FROM {table} WHERE session > known.session)
    FROM known WHERE session IS NOT NULL
), placed (session, place) AS (
    SELECT session, (SELECT max(tid) FROM {table} WHERE session = known.session)
    FROM known WHERE session IS NOT NULL
)
SELECT session, place FROM placed WHERE place < :after ORDER BY place DESC LIMIT :limit;

-- :name tally
SELECT
    (SELECT count(*) FROM {table} WHERE session = :session), max(tid), state, count(*),
    max(max(created_at), max(ifnull(started_at, 0)), max(ifnull(finished_at, 0)))
FROM (
    SELECT tid, created_at, started_at, finished_at,
        iif(state = 'running' AND lease_until IS NULL, 'queued', state) AS state -- only offered
    FROM {table}
    WHERE session = :session ORDER BY tid DESC LIMIT :counted
)
GROUP BY state;
