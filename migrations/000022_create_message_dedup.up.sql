-- What each consumer has made of each message. A row with status done commits in the same transaction as the effect, so that
-- mark and effect are both there or neither; the unique index is what lets a message take effect once.
CREATE TABLE t_message_dedup (
  id          BIGINT        NOT NULL AUTO_INCREMENT,
  consumer    VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  msg_id      VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  topic       VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  msg_key     VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the order it is about',
  status      TINYINT       NOT NULL COMMENT '0 processing 1 done 2 waiting for its next try 3 dead 4 discarded',
  outcome     VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'what it came to, e.g. applied or stale',
  tries       INT           NOT NULL COMMENT 'that failed',
  owner       CHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'the run that may finish a call outside',
  next_try_at DATETIME(6)   NULL COMMENT 'processing: the end of the lease; waiting: the next try',
  last_error  VARCHAR(1024) NOT NULL DEFAULT '',
  create_time DATETIME(6)   NOT NULL,
  done_time   DATETIME(6)   NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_consumer_msg (consumer, msg_id),
  KEY ix_status (status, id),
  KEY ix_next_try (next_try_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'message dedup'
