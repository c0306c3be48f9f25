-- One row for each change of stock, and the unique index that lets a cause change it once.
CREATE TABLE t_stock_movement (
  id          BIGINT       NOT NULL AUTO_INCREMENT,
  cause       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'what brought it about, e.g. o1:<order_no>',
  kind        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'initial, adjust, reserve, release, confirm, return',
  sku_id      BIGINT       NOT NULL,
  available   BIGINT       NOT NULL COMMENT 'change of available',
  reserved    BIGINT       NOT NULL COMMENT 'change of reserved',
  sold        BIGINT       NOT NULL COMMENT 'change of sold',
  reason      VARCHAR(255) NOT NULL DEFAULT '',
  create_time DATETIME(6)  NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_cause_kind (cause, kind, sku_id),
  KEY ix_sku (sku_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'append-only'
