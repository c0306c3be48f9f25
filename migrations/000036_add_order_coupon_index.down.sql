ALTER TABLE t_order DROP KEY ix_coupon
