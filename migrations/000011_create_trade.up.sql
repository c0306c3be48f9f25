-- Money that arrived: one row for each trade of a channel, whichever way we heard of it. The unique index is the guard that
-- callback, query, reconciliation and manual replay all meet. refund_reserved is the cap of its refunds.
CREATE TABLE t_trade (
  id              BIGINT       NOT NULL AUTO_INCREMENT,
  channel         VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  trade_no        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  pay_no          CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  order_no        CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  disposition     TINYINT      NOT NULL COMMENT '0 paid its order, 1 is being returned, 2 waits for a person',
  source          VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'notice, query, bill or replay',
  refund_reserved BIGINT       NOT NULL DEFAULT 0 COMMENT 'sum of its refunds that are not FAILED',
  occurred_at     DATETIME(6)  NOT NULL COMMENT 'by the channel''s clock',
  create_time     DATETIME(6)  NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_channel_trade (channel, trade_no),
  KEY ix_order (order_no, id),
  KEY ix_pay (pay_no),
  CONSTRAINT ck_trade_refunds CHECK (refund_reserved >= 0 AND refund_reserved <= amount)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'money that arrived'
