DROP TABLE t_stock_movement
