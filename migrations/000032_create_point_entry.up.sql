-- Append-only: why a balance changed. Each cause and kind can be written once.
CREATE TABLE t_point_entry (
  id          BIGINT      NOT NULL AUTO_INCREMENT,
  user_id     BIGINT      NOT NULL,
  cause       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the message or the redemption',
  kind        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'order or redeem',
  delta       BIGINT      NOT NULL,
  order_no    CHAR(32)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  create_time DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_cause_kind (cause, kind),
  KEY ix_user (user_id, id),
  KEY ix_order (order_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'changes of points'
