-- What an order has earned so far, by the newest word about its money. Older words come too late: refund_seq decides.
CREATE TABLE t_order_points (
  order_no    CHAR(32)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  user_id     BIGINT      NOT NULL,
  refund_seq  INT         NOT NULL COMMENT 'of the message that was applied last',
  points      BIGINT      NOT NULL COMMENT 'the sum of its entries',
  update_time DATETIME(6) NOT NULL,
  PRIMARY KEY (order_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'points by order'
