-- The indexes of tasks, for SQLite and Postgres: a ledger that lacks one gets it when it is opened.

CREATE INDEX IF NOT EXISTS task_line ON task (queue, priority, lane, partition, place) WHERE state = 'queued';
-- Which partitions a lane has, and what has waited longest in any of them.
CREATE INDEX IF NOT EXISTS task_parted ON task (queue, priority, lane, place, partition)
    WHERE state = 'queued' AND partition <> '';
-- In strict order a task that waits to be tried again occupies its partition.
CREATE INDEX IF NOT EXISTS task_strict ON task (queue, partition, type)
    WHERE state = 'scheduled' AND strict = 1 AND started_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_partition ON task (partition, tid) WHERE partition <> '';
CREATE INDEX IF NOT EXISTS task_alarm ON task (due_at) WHERE due_at IS NOT NULL;
-- The states a person looks for; none of them lies on the way of a task that goes well.
CREATE INDEX IF NOT EXISTS task_troubled ON task (state, tid)
    WHERE state <> 'queued' AND state <> 'running' AND state <> 'succeeded';
-- What is only offered is shown, and counted, as queued: few tasks, found without a look at all that run.
CREATE INDEX IF NOT EXISTS task_offered ON task (queue, lane) WHERE state = 'running' AND lease_until IS NULL;
CREATE INDEX IF NOT EXISTS task_waiting ON task (waiting_for, tid) WHERE waiting_for IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_approval ON task (({approval_status}), tid) WHERE approval IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_fingerprint ON task (fingerprint, tid) WHERE fingerprint IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_session ON task (session, tid) WHERE session IS NOT NULL;
-- A key that may not read all tasks lists its own.
CREATE INDEX IF NOT EXISTS task_owner ON task (owner, tid) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_parent ON task (parent, tid) WHERE parent IS NOT NULL;
-- Those that a new task must not meet, and the one that it takes the place of.
CREATE INDEX IF NOT EXISTS task_unique ON task (unique_key, state) WHERE unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_debounce ON task (debounce_key, state) WHERE debounce_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_batch ON task (batch, tid) WHERE batch IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_tags ON task {tags_index} WHERE tags IS NOT NULL;
