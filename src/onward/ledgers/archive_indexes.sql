-- An archive that lacks one of these gets it when it is opened.

CREATE INDEX IF NOT EXISTS archived_task_place ON archived_task (tid);
CREATE INDEX IF NOT EXISTS archived_task_age ON archived_task (profile, finished_at);
CREATE INDEX IF NOT EXISTS archived_task_type ON archived_task (type, tid);
CREATE INDEX IF NOT EXISTS archived_task_session ON archived_task (session, tid) WHERE session IS NOT NULL;
CREATE INDEX IF NOT EXISTS archived_task_owner ON archived_task (owner, tid) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS archived_task_parent ON archived_task (parent, tid) WHERE parent IS NOT NULL;
CREATE INDEX IF NOT EXISTS archived_task_troubled ON archived_task (state, tid)
    WHERE state <> 'queued' AND state <> 'running' AND state <> 'succeeded';
DROP INDEX IF EXISTS archived_task_trouble;
