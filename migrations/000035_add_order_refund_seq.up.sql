-- Counts the changes of refunded_amount, so that of two messages about an order's money the newer is known.
ALTER TABLE t_order ADD COLUMN refund_seq INT NOT NULL DEFAULT 0
