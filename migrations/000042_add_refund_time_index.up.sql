-- The refunds of one of a channel's days.
ALTER TABLE t_refund ADD KEY ix_channel_decided (channel, decided_at)
