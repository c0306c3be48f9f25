DROP TABLE t_order_history
