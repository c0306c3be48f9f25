DROP TABLE t_activity
