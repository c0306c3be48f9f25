ALTER TABLE t_activity DROP COLUMN coupon_granted
