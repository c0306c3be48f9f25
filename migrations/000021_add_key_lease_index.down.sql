ALTER TABLE t_idempotency_key DROP KEY ix_lease
