-- The part of a parked task's memory that is large and seldom changes.
ALTER TABLE archived_task ADD COLUMN bulk TEXT;
