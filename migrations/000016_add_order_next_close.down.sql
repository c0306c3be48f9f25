ALTER TABLE t_order DROP COLUMN next_close_at
