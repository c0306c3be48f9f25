DROP TABLE t_audit
