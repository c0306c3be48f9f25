-- Double-entry postings: the entries of one cause and kind sum to zero, and each can be written once.
CREATE TABLE t_ledger_entry (
  id          BIGINT      NOT NULL AUTO_INCREMENT,
  cause       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  kind        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  account     VARCHAR(48) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount      BIGINT      NOT NULL COMMENT 'minor units, debit positive, credit negative',
  currency    CHAR(3)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  order_no    CHAR(32)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  create_time DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_cause_kind_account (cause, kind, account),
  KEY ix_order (order_no, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'append-only'
