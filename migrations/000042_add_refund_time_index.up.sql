-- The refunds of one of a channel's days; the time first, as for trades.
ALTER TABLE t_refund ADD KEY ix_decided_channel (decided_at, channel)
