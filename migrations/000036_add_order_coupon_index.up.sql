-- The orders of one coupon, for the invariants.
ALTER TABLE t_order ADD KEY ix_coupon (coupon_no)
