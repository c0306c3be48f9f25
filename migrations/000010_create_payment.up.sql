-- An attempt to pay an order. pay_no is the channel's merchant order number: made and stored before the first call, never
-- changed by retries. open_key lets an order have one open attempt on each channel; paid_order_no lets one attempt be the
-- one that paid it.
CREATE TABLE t_payment (
  id              BIGINT       NOT NULL AUTO_INCREMENT,
  pay_no          CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'UUIDv7 without dashes',
  order_no        CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  user_id         BIGINT       NOT NULL,
  channel         VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status          TINYINT      NOT NULL COMMENT '0 CREATED 1 PENDING 2 UNKNOWN 3 SUCCEEDED 4 FAILED 5 CLOSED',
  trade_no        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'the channel''s number',
  pay_url         VARCHAR(512) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  refunded_amount BIGINT       NOT NULL DEFAULT 0,
  open_key        VARCHAR(80)  CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'order_no:channel while open, else NULL',
  paid_order_no   CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'order_no when this attempt paid the order',
  polls           INT          NOT NULL DEFAULT 0,
  next_poll_at    DATETIME(6)  NULL COMMENT 'the next look at the channel; moving it is the claim to look',
  create_time     DATETIME(6)  NOT NULL,
  update_time     DATETIME(6)  NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_pay_no (pay_no),
  UNIQUE KEY uk_open (open_key),
  UNIQUE KEY uk_paid_order (paid_order_no),
  KEY ix_order (order_no, id),
  KEY ix_poll (next_poll_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'payment attempts'
