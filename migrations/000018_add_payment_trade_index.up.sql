-- Whose trade a notice speaks of: a trade that a channel opened for one attempt pays no other.
ALTER TABLE t_payment ADD KEY ix_trade (channel, trade_no)
