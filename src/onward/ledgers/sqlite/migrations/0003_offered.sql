-- What is only offered is shown, and counted, as queued: few tasks, found without a look at all that run.
CREATE INDEX IF NOT EXISTS task_offered ON task (queue, lane) WHERE state = 'running' AND lease_until IS NULL;
