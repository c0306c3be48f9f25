-- What a bill and our books do not agree about. The same difference is one row, however often it is found.
CREATE TABLE t_recon_difference (
  id                BIGINT        NOT NULL AUTO_INCREMENT,
  reconciliation_id BIGINT        NOT NULL,
  kind              VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  subject           VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the trade or refund number',
  order_no          CHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  our_amount        BIGINT        NULL COMMENT 'NULL: we have none',
  bill_amount       BIGINT        NULL COMMENT 'NULL: the bill has none',
  currency          VARCHAR(3)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  status            TINYINT       NOT NULL COMMENT '0 waits for a person 1 repaired 2 noted',
  detail            VARCHAR(1024) NOT NULL,
  create_time       DATETIME(6)   NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_difference (reconciliation_id, kind, subject)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'differences'
