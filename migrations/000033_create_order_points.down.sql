DROP TABLE t_order_points
