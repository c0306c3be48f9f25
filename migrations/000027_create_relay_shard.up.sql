-- Which relay sends a shard of the outbox. A relay that dies loses it when its lease ends.
CREATE TABLE t_relay_shard (
  shard       TINYINT     NOT NULL,
  owner       CHAR(32)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  lease_until DATETIME(6) NOT NULL,
  PRIMARY KEY (shard)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'leases of the outbox relays'
