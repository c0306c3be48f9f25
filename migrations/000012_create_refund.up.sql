-- Money on its way back. A row is committed as PROCESSING before the channel is called, and its number is the channel's
-- merchant refund number, kept over retries.
CREATE TABLE t_refund (
  id           BIGINT       NOT NULL AUTO_INCREMENT,
  refund_no    VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  order_no     CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  user_id      BIGINT       NOT NULL,
  pay_no       CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  channel      VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  trade_no     VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the money it returns',
  amount       BIGINT       NOT NULL,
  currency     CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status       TINYINT      NOT NULL COMMENT '0 PROCESSING 1 SUCCESS 2 FAILED',
  reason       VARCHAR(255) NOT NULL,
  auto         TINYINT      NOT NULL COMMENT '1: made by the service for late or double money',
  polls        INT          NOT NULL DEFAULT 0,
  next_poll_at DATETIME(6)  NULL COMMENT 'the next call or look; moving it is the claim to do it',
  decided_at   DATETIME(6)  NULL COMMENT 'when the channel decided last, by its clock',
  create_time  DATETIME(6)  NOT NULL,
  update_time  DATETIME(6)  NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_refund_no (refund_no),
  KEY ix_order (order_no, id),
  KEY ix_trade (channel, trade_no),
  KEY ix_poll (next_poll_at),
  CONSTRAINT ck_refund_amount CHECK (amount > 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'refunds'
