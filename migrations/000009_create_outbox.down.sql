DROP TABLE t_outbox
