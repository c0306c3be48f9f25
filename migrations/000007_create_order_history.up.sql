-- One row for each move of an order. (order_no, version) unique: two moves from one version cannot both be.
CREATE TABLE t_order_history (
  id          BIGINT       NOT NULL AUTO_INCREMENT,
  order_no    CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  version     INT          NOT NULL COMMENT 'the order''s version after the move',
  from_status TINYINT      NULL COMMENT 'NULL: the order was made',
  to_status   TINYINT      NOT NULL,
  cause       VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'what brought it about; asking again with it is a repeat',
  actor       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'user:<id>, ops:<id> or system:<job>',
  request_id  VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  create_time DATETIME(6)  NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_order_version (order_no, version)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'append-only'
