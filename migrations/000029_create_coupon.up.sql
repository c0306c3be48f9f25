-- A coupon. grant_key names what it was granted for; its unique index lets that happen once.
CREATE TABLE t_coupon (
  id          BIGINT      NOT NULL AUTO_INCREMENT,
  coupon_no   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  user_id     BIGINT      NOT NULL,
  grant_key   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'user + activity + sequence, or the redemption',
  activity_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'empty: bought with points',
  template    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  discount    BIGINT      NOT NULL COMMENT 'minor units of the order it is used for',
  status      TINYINT     NOT NULL COMMENT '0 UNUSED 1 USED 2 VOID',
  order_no    CHAR(32)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'the living order that uses it',
  create_time DATETIME(6) NOT NULL,
  update_time DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_coupon_no (coupon_no),
  UNIQUE KEY uk_grant_key (grant_key),
  KEY ix_user (user_id, id),
  KEY ix_activity (activity_id),
  KEY ix_order (order_no),
  CONSTRAINT ck_coupon_discount CHECK (discount > 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'coupons'
