-- What the timeout job has to look at: NULL once an order needs no closing.
ALTER TABLE t_order ADD KEY ix_close (next_close_at)
