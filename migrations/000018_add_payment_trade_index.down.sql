ALTER TABLE t_payment DROP KEY ix_trade
