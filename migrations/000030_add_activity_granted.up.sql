-- How many coupons of the activity are out; the limit is a condition of the update that counts.
ALTER TABLE t_activity ADD COLUMN coupon_granted BIGINT NOT NULL DEFAULT 0
