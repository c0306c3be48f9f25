DROP TABLE t_ledger_entry
