-- What needs a person. The same trouble is one row, however often it is met.
CREATE TABLE t_exception (
  id           BIGINT        NOT NULL AUTO_INCREMENT,
  kind         VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  subject      VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'what it is about, e.g. a trade or a refund number',
  order_no     CHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  channel      VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  amount       BIGINT        NOT NULL DEFAULT 0 COMMENT 'the money at stake, minor units',
  currency     VARCHAR(3)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  detail       VARCHAR(1024) NOT NULL,
  blocks_order TINYINT       NOT NULL DEFAULT 0 COMMENT '1: the order is not shipped while this is open',
  status       TINYINT       NOT NULL COMMENT '0 open 1 resolved',
  resolution   VARCHAR(1024) NOT NULL DEFAULT '',
  resolved_by  BIGINT        NOT NULL DEFAULT 0,
  create_time  DATETIME(6)   NOT NULL,
  resolve_time DATETIME(6)   NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_kind_subject (kind, subject),
  KEY ix_status (status, id),
  KEY ix_order (order_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'work for people'
