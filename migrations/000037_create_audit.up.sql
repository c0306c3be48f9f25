-- Append-only: what operators did. A row commits with the deed.
CREATE TABLE t_audit (
  id          BIGINT        NOT NULL AUTO_INCREMENT,
  actor_id    BIGINT        NOT NULL,
  action      VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  subject     VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  detail      VARCHAR(1024) NOT NULL,
  request_id  VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  create_time DATETIME(6)   NOT NULL,
  PRIMARY KEY (id),
  KEY ix_subject (subject, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'what operators did'
