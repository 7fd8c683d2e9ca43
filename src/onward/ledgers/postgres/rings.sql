-- What a ledger of an earlier version lacks, made whenever one is opened.
--
-- `ring` has the partitions of a lane that have something queued, by turn. One that waits for a bound has no
-- turn, and perhaps an instant (`until`); `bounds` is a hash of the bounds that it waits under. It is written
-- by claims alone, one at a time for a queue. `ring_news` and `ring_freed` are notes for the next claim:
-- something was queued in this partition; something has ended that bounds count.

CREATE TABLE IF NOT EXISTS rate (
    name      TEXT   NOT NULL,
    each      BIGINT NOT NULL,
    partition TEXT   NOT NULL,
    paid_at   BIGINT NOT NULL,
    forget_at BIGINT NOT NULL,
    PRIMARY KEY (name, each, partition)
);
CREATE INDEX IF NOT EXISTS rate_forgotten ON rate (forget_at);

CREATE SEQUENCE IF NOT EXISTS turn_number;
CREATE TABLE IF NOT EXISTS ring (
    queue     TEXT   NOT NULL,
    priority  BIGINT NOT NULL,
    lane      TEXT   NOT NULL,
    partition TEXT   NOT NULL,
    turn      BIGINT,
    until     BIGINT,
    bounds    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority, lane, partition)
);
CREATE INDEX IF NOT EXISTS ring_turn ON ring (queue, priority, lane, turn) WHERE turn IS NOT NULL;
CREATE INDEX IF NOT EXISTS ring_until ON ring (queue, until) WHERE turn IS NULL;
CREATE INDEX IF NOT EXISTS ring_bounds ON ring (queue, bounds) WHERE turn IS NULL;
CREATE INDEX IF NOT EXISTS ring_partition ON ring (partition) WHERE turn IS NULL;

CREATE TABLE IF NOT EXISTS ring_news (
    n         BIGSERIAL PRIMARY KEY,
    queue     TEXT   NOT NULL,
    priority  BIGINT NOT NULL,
    lane      TEXT   NOT NULL,
    partition TEXT   NOT NULL
);
CREATE INDEX IF NOT EXISTS ring_news_queue ON ring_news (queue, n);
CREATE TABLE IF NOT EXISTS ring_freed (
    n         BIGSERIAL PRIMARY KEY,
    queue     TEXT   NOT NULL,
    type      TEXT   NOT NULL,
    partition TEXT   NOT NULL
);

-- What bounds count: what runs, or is offered.
CREATE INDEX IF NOT EXISTS task_running ON task (queue, partition, type) WHERE state = 'running';

DROP INDEX IF EXISTS task_ready, task_trouble;
