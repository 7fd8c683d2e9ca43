-- Effects are kept under the idempotency key in its scope, or, with the scope '', under their task: the
-- same key at another door, or a key like another task's id, is another owner. `task` and `fence` are
-- the attempt that began it. A note that two scopes shared is kept for both: neither acts again.
CREATE TABLE scoped_effect (
    scope    TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    task     TEXT    NOT NULL,
    fence    INTEGER NOT NULL,
    begun_at INTEGER NOT NULL,
    value    TEXT,
    PRIMARY KEY (scope, key, name)
) STRICT, WITHOUT ROWID;

INSERT INTO scoped_effect
SELECT k.scope, e.key, e.name, k.task, e.fence, e.begun_at, e.value
FROM effect e JOIN submission_key k USING (key)
UNION ALL
SELECT '', e.key, e.name, t.id, e.fence, e.begun_at, e.value
FROM effect e JOIN task t ON t.id = e.key;

DROP TABLE effect;
ALTER TABLE scoped_effect RENAME TO effect;
