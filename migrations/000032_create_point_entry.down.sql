DROP TABLE t_point_entry
