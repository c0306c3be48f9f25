ALTER TABLE t_refund DROP KEY ix_decided_channel
