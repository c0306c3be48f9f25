-- ix_shard_unsent does its work.
ALTER TABLE t_outbox DROP KEY ix_unsent
