-- An order. biz_token names the business action that made it; its unique index (next but one file) is the last line of
-- defence against making it twice.
CREATE TABLE t_order (
  id              BIGINT      NOT NULL AUTO_INCREMENT,
  order_no        CHAR(32)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'UUIDv7 without dashes',
  user_id         BIGINT      NOT NULL,
  sku_id          BIGINT      NOT NULL,
  activity_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'empty: outside any activity',
  attempt         INT         NOT NULL DEFAULT 1 COMMENT 'goes up past orders of the activity that ended without a sale',
  biz_token       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status          TINYINT     NOT NULL COMMENT '0 INIT 1 PAID 2 SHIPPED 3 FINISHED 4 CANCELLED 5 REFUNDING 6 REFUNDED',
  version         INT         NOT NULL COMMENT 'counts the rows of t_order_history',
  quantity        BIGINT      NOT NULL,
  amount          BIGINT      NOT NULL COMMENT 'to pay, after discount, minor units',
  discount        BIGINT      NOT NULL DEFAULT 0,
  coupon_no       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  refunded_amount BIGINT      NOT NULL DEFAULT 0,
  currency        CHAR(3)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  expires_at      DATETIME(6) NOT NULL COMMENT 'an unpaid order is closed after this',
  paid_at         DATETIME(6) NULL,
  create_time     DATETIME(6) NOT NULL,
  update_time     DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_order_no (order_no),
  KEY ix_activity (user_id, sku_id, activity_id, attempt),
  KEY ix_status_expiry (status, expires_at),
  CONSTRAINT ck_order_amounts CHECK (quantity > 0 AND amount >= 0 AND discount >= 0 AND refunded_amount >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'orders'
