DROP TABLE t_reconciliation
