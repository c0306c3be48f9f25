DROP TABLE t_subscription
