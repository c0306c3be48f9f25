-- The money of one of a channel's days. The time comes first: with the channel first, joins by channel and number would take this index
-- for theirs and read every row of the channel.
ALTER TABLE t_trade ADD KEY ix_time_channel (occurred_at, channel)
