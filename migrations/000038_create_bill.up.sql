-- A channel's bill of one of its days, as it came. A changed bill is another row.
CREATE TABLE t_bill (
  id          BIGINT      NOT NULL AUTO_INCREMENT,
  channel     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  bill_date   CHAR(10)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the channel''s own day',
  sha256      CHAR(64)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  body        LONGBLOB    NOT NULL,
  create_time DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_bill (channel, bill_date, sha256)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'bills as received'
