-- The comparison of one channel's day with ours: one row, however often it is run.
CREATE TABLE t_reconciliation (
  id          BIGINT        NOT NULL AUTO_INCREMENT,
  channel     VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  bill_date   CHAR(10)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status      TINYINT       NOT NULL COMMENT '0 RUNNING 1 DONE 2 FAILED',
  runs        INT           NOT NULL DEFAULT 0,
  bill_lines  INT           NOT NULL DEFAULT 0,
  matched     INT           NOT NULL DEFAULT 0,
  bill_sha256 CHAR(64)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  next_run_at DATETIME(6)   NULL COMMENT 'when the job runs it; moving it is the claim',
  last_error  VARCHAR(1024) NOT NULL DEFAULT '',
  create_time DATETIME(6)   NOT NULL,
  update_time DATETIME(6)   NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_channel_date (channel, bill_date),
  KEY ix_next_run (next_run_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'reconciliations'
