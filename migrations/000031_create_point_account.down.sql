DROP TABLE t_point_account
