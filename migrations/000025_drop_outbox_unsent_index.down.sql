ALTER TABLE t_outbox ADD KEY ix_unsent (sent_at, id)
