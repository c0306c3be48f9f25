-- The relay's way to what is unsent, shard by shard in order.
ALTER TABLE t_outbox ADD KEY ix_shard_unsent (sent_at, shard, id)
