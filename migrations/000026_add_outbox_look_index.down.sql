ALTER TABLE t_outbox DROP KEY ix_look
