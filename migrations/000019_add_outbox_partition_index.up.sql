-- The messages of one order, for its timeline and for the invariants.
ALTER TABLE t_outbox ADD KEY ix_partition (partition_key, version)
