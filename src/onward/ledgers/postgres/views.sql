-- The tables of the flow centre (S4), for people who ask the ledger themselves: `select * from onward.node_runs`.
-- Read by nothing here. The columns are the seed's, and the rows those of ../sqlite/views.sql, where more is
-- said. What is sealed does not open in SQL and is NULL.

-- NULL if it is no JSON. Not IS JSON, which Postgres 15 has not; json and not jsonb, so that texts stay as
-- they were written.
CREATE OR REPLACE FUNCTION as_json(given text) RETURNS json LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN given::json;
EXCEPTION WHEN invalid_text_representation OR untranslatable_character THEN
    RETURN NULL;
END $$;

CREATE OR REPLACE VIEW flows AS
SELECT j ->> 'id' AS id, j ->> 'name' AS name, (j ->> 'created_at')::bigint AS created_at
FROM document, as_json(body) AS j WHERE kind = 'flow' AND j IS NOT NULL;

CREATE OR REPLACE VIEW flow_versions AS
SELECT j ->> 'id' AS id, j ->> 'flow_id' AS flow_id, (j ->> 'version')::bigint AS version,
    (j -> 'definition')::text AS definition_json, j ->> 'status' AS status,
    (j ->> 'created_at')::bigint AS created_at
FROM document, as_json(body) AS j WHERE kind = 'flow_version' AND j IS NOT NULL;

CREATE OR REPLACE VIEW workers AS
SELECT j ->> 'id' AS id, j ->> 'url' AS url, (j -> 'services')::text AS services_json,
    coalesce((j ->> 'load')::numeric, 0) AS load, (j ->> 'beat_at')::bigint AS last_heartbeat,
    CASE WHEN (j ->> 'draining')::boolean THEN 'draining' ELSE 'registered' END AS status
FROM document, as_json(body) AS j WHERE kind = 'http_worker' AND j IS NOT NULL;

CREATE OR REPLACE VIEW tasks AS
SELECT t.id AS id, p ->> 'version' AS flow_version_id,
    CASE
        WHEN t.state = 'succeeded' THEN 'completed'
        WHEN t.state IN ('failed', 'dead') THEN 'failed'
        WHEN t.state = 'canceled' THEN 'canceled'
        WHEN t.cancel_by IS NOT NULL THEN 'canceling'
        WHEN t.state IN ('queued', 'scheduled') AND t.fence = 0 THEN 'pending'
        ELSE 'running'
    END AS status,
    coalesce((p -> 'params')::text, '{}') AS params_json,
    coalesce(
        CASE WHEN t.state = 'succeeded' THEN r::text END, (b #> '{shared,0}')::text,
        (j #> '{frames,0,shared}')::text, (p -> 'shared')::text, '{}'
    ) AS shared_json,
    coalesce(
        (SELECT string_agg(f.value ->> 'node', '/' ORDER BY f.place)
         FROM json_array_elements(CASE WHEN json_typeof(j -> 'frames') = 'array' THEN j -> 'frames' END)
             WITH ORDINALITY AS f (value, place)),
        p ->> 'at'
    ) AS current_node_key,
    coalesce(j ->> 'last_action', '') AS last_action, coalesce((j ->> 'step_count')::bigint, 0) AS step_count,
    coalesce((
        SELECT json_build_object(
            'task_id', c.id, 'attempt_no', c.attempt, 'failures', c.failures,
            'max_retries', as_json(c.overrides) -> 'max_retries',
            'last_error', coalesce(as_json(c.error) ->> 'message', ''),
            'next_at', CASE WHEN c.state = 'scheduled' THEN c.run_at END
        )::text
        FROM task c
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
FROM task t, as_json(t.payload) AS p, as_json(t.result) AS r, as_json(t.bulk) AS b, as_json(t.journal) AS whole,
    LATERAL (SELECT coalesce(whole -> 'split', whole) AS j) AS state
WHERE t.profile = 'flow' AND t.session IS NULL;

CREATE OR REPLACE VIEW node_runs AS
SELECT t.id || ':' || row_number() OVER attempts AS id, t.parent AS task_id, j ->> 'node' AS node_key,
    row_number() OVER attempts AS attempt_no,
    CASE e.type
        WHEN 'task.succeeded' THEN 'ok' WHEN 'task.canceled' THEN 'canceled'
        ELSE CASE WHEN e.type IS NULL THEN 'running' ELSE 'error' END
    END AS status,
    CASE
        WHEN json_typeof(p) <> 'object' OR json_typeof(p -> 'params') IS DISTINCT FROM 'object' THEN p::text
        WHEN p -> 'input' IS NULL OR (SELECT count(*) FROM json_object_keys(p)) <> 2 THEN p::text
        ELSE (p -> 'input')::text
    END AS prep_json,
    p::text AS exec_input_json,
    CASE WHEN e.type = 'task.succeeded' THEN r::text ELSE '' END AS exec_output_json,
    coalesce(as_json(e.data) #>> '{error,message}', '') AS error_text,
    coalesce((
        SELECT as_json(n.data) ->> 'action' FROM event n JOIN task run USING (tid)
        WHERE run.id = t.parent AND n.type = 'node.finished' AND as_json(n.data) ->> 'seq' = j ->> 'seq'
            AND e.type = 'task.succeeded'
    ), '') AS action,
    c.at AS started_at, e.at AS finished_at,
    coalesce((
        SELECT as_json(s.data) ->> 'worker' FROM event s
        WHERE s.tid = t.tid AND s.type IN ('task.claimed', 'task.sent', 'task.delivered') AND s.n >= c.n
            AND s.n < coalesce(e.n, s.n + 1)
        ORDER BY s.n DESC LIMIT 1
    ), '') AS worker_id,
    coalesce((
        SELECT as_json(s.data) ->> 'url' FROM event s
        WHERE s.tid = t.tid AND s.type = 'task.sent' AND s.n > c.n AND s.n < coalesce(e.n, s.n + 1)
        ORDER BY s.n DESC LIMIT 1
    ), '') AS worker_url
FROM task t
JOIN event c ON c.tid = t.tid AND c.type = 'task.claimed'
LEFT JOIN event e ON e.tid = t.tid AND e.n = (
    SELECT min(x.n) FROM event x WHERE x.tid = t.tid AND x.n > c.n AND x.type IN (
        'task.succeeded', 'task.retrying', 'task.failed', 'task.reclaimed', 'task.canceled', 'task.released'
    )
)
CROSS JOIN LATERAL as_json(t.payload) AS p
CROSS JOIN LATERAL as_json(t.result) AS r
CROSS JOIN LATERAL as_json(t.journal) AS whole
CROSS JOIN LATERAL (SELECT coalesce(whole -> 'split', whole) AS j) AS state
WHERE t.profile = 'node' AND t.type <> 'flow:approval' AND e.type IS DISTINCT FROM 'task.released'
WINDOW attempts AS (PARTITION BY t.tid ORDER BY c.n)
UNION ALL
SELECT t.id || ':' || (d ->> 'seq'), t.id, d ->> 'node', 1, d ->> 'status', coalesce((d -> 'input')::text, ''),
    coalesce((d -> 'input')::text, ''), coalesce((d -> 'output')::text, ''), coalesce(d #>> '{error,message}', ''),
    coalesce(d ->> 'action', ''), n.at, n.at, '', ''
FROM task t JOIN event n USING (tid), as_json(n.data) AS d
WHERE t.profile = 'flow' AND n.type = 'node.finished' AND d IS NOT NULL
    AND d ->> 'kind' NOT IN ('executor', 'local', 'parallel', 'foreach', 'compensation');
