-- The rescue job's way to what is due, and the clean-up's to what is settled.
ALTER TABLE t_outbox ADD KEY ix_look (next_look_at, id)
