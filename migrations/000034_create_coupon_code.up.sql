-- Codes for campaigns outside the service. Making one is new each time, so it demands an Idempotency-Key.
CREATE TABLE t_coupon_code (
  id          BIGINT      NOT NULL AUTO_INCREMENT,
  code        VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  template    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_by  BIGINT      NOT NULL,
  create_time DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_code (code)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'coupon codes'
