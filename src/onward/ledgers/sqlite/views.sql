-- The tables of the flow centre (S4), for people who ask a ledger's file themselves: `sqlite3 FILE 'select *
-- from node_runs'`. Read by nothing here. The columns are the seed's. What is sealed does not open in SQL
-- and is NULL; a long text is read from where it lies.
--
-- `tasks` has the runs that belong to no session. Its `shared_json` is without the engine's own records,
-- which the API shows; `retry_state_json` is of the one call that it waits for. `node_runs` has an attempt a row, and a row for each
-- node that made no call; `worker_id` is the worker that had it, not the server's own caller or stream.

CREATE VIEW IF NOT EXISTS flows AS
SELECT json_extract(body, '$.id') AS id, json_extract(body, '$.name') AS name,
    json_extract(body, '$.created_at') AS created_at
FROM document WHERE kind = 'flow' AND json_valid(body);

CREATE VIEW IF NOT EXISTS flow_versions AS
SELECT json_extract(body, '$.id') AS id, json_extract(body, '$.flow_id') AS flow_id,
    json_extract(body, '$.version') AS version, json_extract(body, '$.definition') AS definition_json,
    json_extract(body, '$.status') AS status, json_extract(body, '$.created_at') AS created_at
FROM document WHERE kind = 'flow_version' AND json_valid(body);

CREATE VIEW IF NOT EXISTS workers AS
SELECT json_extract(body, '$.id') AS id, json_extract(body, '$.url') AS url,
    json_extract(body, '$.services') AS services_json, coalesce(json_extract(body, '$.load'), 0) AS load,
    json_extract(body, '$.beat_at') AS last_heartbeat,
    CASE WHEN json_extract(body, '$.draining') THEN 'draining' ELSE 'registered' END AS status
FROM document WHERE kind = 'http_worker' AND json_valid(body);

-- A task's texts, wherever they lie; NULL if they are no JSON.
CREATE VIEW IF NOT EXISTS task_json AS
SELECT tid, CASE WHEN json_valid(payload) THEN payload END AS payload,
    CASE WHEN json_valid(result) THEN result END AS result, CASE WHEN json_valid(error) THEN error END AS error,
    CASE WHEN json_valid(journal) THEN coalesce(json_extract(journal, '$.split'), journal) END AS journal,
    CASE WHEN json_valid(bulk) THEN bulk END AS bulk
FROM (
    SELECT tid, {payload} AS payload, {result} AS result, {error} AS error, {journal} AS journal, {bulk} AS bulk
    FROM task
);

CREATE VIEW IF NOT EXISTS tasks AS
SELECT t.id AS id, json_extract(j.payload, '$.version') AS flow_version_id,
    CASE
        WHEN t.state = 'succeeded' THEN 'completed'
        WHEN t.state IN ('failed', 'dead') THEN 'failed'
        WHEN t.state = 'canceled' THEN 'canceled'
        WHEN t.cancel_by IS NOT NULL THEN 'canceling'
        WHEN t.state IN ('queued', 'scheduled') AND t.fence = 0 THEN 'pending'
        ELSE 'running'
    END AS status,
    coalesce(json_extract(j.payload, '$.params'), '{}') AS params_json,
    coalesce(
        CASE WHEN t.state = 'succeeded' THEN j.result END, json_extract(j.bulk, '$.shared[0]'),
        json_extract(j.journal, '$.frames[0].shared'), json_extract(j.payload, '$.shared'), '{}'
    ) AS shared_json,
    coalesce(
        (SELECT group_concat(json_extract(value, '$.node'), '/') FROM json_each(j.journal, '$.frames')),
        json_extract(j.payload, '$.at')
    ) AS current_node_key,
    coalesce(json_extract(j.journal, '$.last_action'), '') AS last_action,
    coalesce(json_extract(j.journal, '$.step_count'), 0) AS step_count,
    coalesce((
        SELECT json_object(
            'task_id', c.id, 'attempt_no', c.attempt, 'failures', c.failures, 'max_retries',
            CASE WHEN json_valid(c.overrides) THEN json_extract(c.overrides, '$.max_retries') END, 'last_error',
            coalesce(json_extract(cj.error, '$.message'), ''), 'next_at', CASE WHEN c.state = 'scheduled' THEN c.run_at END
        )
        FROM task c JOIN task_json cj USING (tid)
        WHERE t.state = 'waiting' AND c.parent = t.id AND c.profile = 'node' AND c.failures > 0
            AND c.state IN ('queued', 'scheduled', 'running') AND NOT EXISTS (
                SELECT 1 FROM task other WHERE other.parent = t.id AND other.profile = 'node' AND other.id <> c.id
                    AND other.state IN ('queued', 'scheduled', 'running', 'waiting')
            )
    ), '{}') AS retry_state_json,
    CASE WHEN t.state = 'running' THEN t.worker ELSE '' END AS lease_owner,
    CASE WHEN t.state = 'running' THEN t.lease_until END AS lease_expiry,
    coalesce(t.key, '') AS request_id, t.created_at AS created_at,
    coalesce(t.finished_at, t.queued_at, t.created_at) AS updated_at
FROM task t JOIN task_json j USING (tid) WHERE t.profile = 'flow' AND t.session IS NULL;

CREATE VIEW IF NOT EXISTS node_runs AS
SELECT t.id || ':' || row_number() OVER attempts AS id, t.parent AS task_id,
    json_extract(j.journal, '$.node') AS node_key, row_number() OVER attempts AS attempt_no,
    CASE e.type
        WHEN 'task.succeeded' THEN 'ok' WHEN 'task.canceled' THEN 'canceled'
        ELSE CASE WHEN e.type IS NULL THEN 'running' ELSE 'error' END
    END AS status,
    CASE
        WHEN json_type(j.payload, '$.input') IS NOT NULL AND json_type(j.payload, '$.params') = 'object'
            AND (SELECT count(*) FROM json_each(j.payload)) = 2
        THEN json_quote(json_extract(j.payload, '$.input')) ELSE j.payload
    END AS prep_json,
    j.payload AS exec_input_json,
    CASE WHEN e.type = 'task.succeeded' THEN j.result ELSE '' END AS exec_output_json,
    coalesce(CASE WHEN json_valid(e.data) THEN json_extract(e.data, '$.error.message') END, '') AS error_text,
    coalesce((
        SELECT json_extract(n.data, '$.action') FROM event n JOIN task r ON r.tid = n.tid
        WHERE r.id = t.parent AND n.type = 'node.finished' AND json_valid(n.data)
            AND json_extract(n.data, '$.seq') = json_extract(j.journal, '$.seq') AND e.type = 'task.succeeded'
    ), '') AS action,
    c.at AS started_at, e.at AS finished_at,
    coalesce((
        SELECT json_extract(s.data, '$.worker') FROM event s
        WHERE s.tid = t.tid AND s.type IN ('task.claimed', 'task.sent', 'task.delivered') AND s.n >= c.n
            AND s.n < coalesce(e.n, s.n + 1) AND json_valid(s.data)
        ORDER BY s.n DESC LIMIT 1
    ), '') AS worker_id,
    coalesce((
        SELECT json_extract(s.data, '$.url') FROM event s
        WHERE s.tid = t.tid AND s.type = 'task.sent' AND s.n > c.n AND s.n < coalesce(e.n, s.n + 1)
        ORDER BY s.n DESC LIMIT 1
    ), '') AS worker_url
FROM task t
JOIN task_json j USING (tid)
JOIN event c ON c.tid = t.tid AND c.type = 'task.claimed'
LEFT JOIN event e ON e.tid = t.tid AND e.n = (
    SELECT min(x.n) FROM event x WHERE x.tid = t.tid AND x.n > c.n AND x.type IN (
        'task.succeeded', 'task.retrying', 'task.failed', 'task.reclaimed', 'task.canceled', 'task.released'
    )
)
WHERE t.profile = 'node' AND t.type <> 'flow:approval' AND e.type IS NOT 'task.released'
WINDOW attempts AS (PARTITION BY t.tid ORDER BY c.n)
UNION ALL
SELECT t.id || ':' || json_extract(n.data, '$.seq'), t.id, json_extract(n.data, '$.node'), 1,
    json_extract(n.data, '$.status'), coalesce(json_extract(n.data, '$.input'), ''),
    coalesce(json_extract(n.data, '$.input'), ''), coalesce(json_extract(n.data, '$.output'), ''),
    coalesce(json_extract(n.data, '$.error.message'), ''), coalesce(json_extract(n.data, '$.action'), ''),
    n.at, n.at, '', ''
FROM task t JOIN event n USING (tid)
WHERE t.profile = 'flow' AND n.type = 'node.finished' AND json_valid(n.data)
    AND json_extract(n.data, '$.kind') NOT IN ('executor', 'local', 'parallel', 'foreach', 'compensation');
