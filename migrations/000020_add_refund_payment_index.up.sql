-- The refunds of one attempt, for the invariants.
ALTER TABLE t_refund ADD KEY ix_pay (pay_no)
