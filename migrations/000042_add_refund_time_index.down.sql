ALTER TABLE t_refund DROP KEY ix_channel_decided
