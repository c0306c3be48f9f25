-- Messages that a transaction owes. They commit with it and are sent afterwards, at least once.
CREATE TABLE t_outbox (
  id            BIGINT       NOT NULL AUTO_INCREMENT,
  msg_id        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'made from what happened, so that it cannot be owed twice',
  topic         VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  partition_key VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'messages of one key keep their order',
  version       INT          NOT NULL COMMENT 'of the thing it speaks of; consumers drop older ones',
  payload       TEXT         NOT NULL COMMENT 'JSON',
  request_id    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  create_time   DATETIME(6)  NOT NULL,
  sent_at       DATETIME(6)  NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_msg_id (msg_id),
  KEY ix_unsent (sent_at, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'transactional outbox'
