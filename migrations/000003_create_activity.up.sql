-- A sales activity: inside it, a person buys a SKU once.
CREATE TABLE t_activity (
  activity_id     VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  title           VARCHAR(255) NOT NULL,
  starts_at       DATETIME(6)  NOT NULL,
  ends_at         DATETIME(6)  NOT NULL,
  coupon_template VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'empty: the activity grants no coupon',
  coupon_discount BIGINT       NOT NULL DEFAULT 0 COMMENT 'minor units',
  coupon_limit    BIGINT       NOT NULL DEFAULT 0 COMMENT 'coupons to grant in all',
  create_time     DATETIME(6)  NOT NULL,
  update_time     DATETIME(6)  NOT NULL,
  PRIMARY KEY (activity_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'sales activities'
