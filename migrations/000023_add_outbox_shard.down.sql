ALTER TABLE t_outbox DROP COLUMN shard, DROP COLUMN next_look_at
