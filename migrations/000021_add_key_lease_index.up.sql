-- Claims whose runs died, for the job that ends them.
ALTER TABLE t_idempotency_key ADD KEY ix_lease (state, lease_until)
