-- When the timeout job looks at an unpaid order next; moving it is the claim to look.
ALTER TABLE t_order ADD COLUMN next_close_at DATETIME(6) NULL
