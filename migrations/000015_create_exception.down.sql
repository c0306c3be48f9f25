DROP TABLE t_exception
