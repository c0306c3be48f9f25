-- Which consumer wants which topic, and since when: it owes nothing for messages of before.
CREATE TABLE t_subscription (
  consumer    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  topic       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  since_time  DATETIME(6) NOT NULL,
  PRIMARY KEY (consumer, topic)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'what each consumer is owed'
