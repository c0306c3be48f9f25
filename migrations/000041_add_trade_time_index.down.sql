ALTER TABLE t_trade DROP KEY ix_channel_time
