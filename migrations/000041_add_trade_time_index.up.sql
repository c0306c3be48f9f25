-- The money of one of a channel's days.
ALTER TABLE t_trade ADD KEY ix_channel_time (channel, occurred_at)
