ALTER TABLE t_order DROP COLUMN refund_seq
