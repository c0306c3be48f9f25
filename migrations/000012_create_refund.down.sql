DROP TABLE t_refund
