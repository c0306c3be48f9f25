DROP TABLE t_bill
