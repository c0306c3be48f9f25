DROP TABLE t_trade
