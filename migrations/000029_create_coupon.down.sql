DROP TABLE t_coupon
