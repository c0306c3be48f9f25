ALTER TABLE t_outbox DROP KEY ix_shard_unsent
