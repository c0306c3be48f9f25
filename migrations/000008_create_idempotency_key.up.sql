-- What was answered under a key. A row commits with the effect it answers for. lease_until is NOT NULL: a claim without
-- an end would hold its key for ever.
CREATE TABLE t_idempotency_key (
  id           BIGINT       NOT NULL AUTO_INCREMENT,
  caller_id    BIGINT       NOT NULL,
  idem_key     VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  operation    VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  fingerprint  VARCHAR(80)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'version and SHA-256 of the request',
  state        TINYINT      NOT NULL COMMENT '0 in progress, 1 done',
  owner        CHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the run that may finish it',
  lease_until  DATETIME(6)  NOT NULL,
  status       SMALLINT     NOT NULL DEFAULT 0 COMMENT 'HTTP status of the answer',
  content_type VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  location     VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  body         MEDIUMBLOB   NULL COMMENT 'the very bytes that were answered',
  create_time  DATETIME(6)  NOT NULL,
  expires_at   DATETIME(6)  NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_caller_key (caller_id, idem_key),
  KEY ix_expires (expires_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'Idempotency-Key records'
