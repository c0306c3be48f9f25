ALTER TABLE t_trade DROP KEY ix_time_channel
