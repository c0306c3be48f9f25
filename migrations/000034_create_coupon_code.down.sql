DROP TABLE t_coupon_code
