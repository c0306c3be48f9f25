-- A user's points. The balance changes only together with a row of t_point_entry. It may fall below zero: points that were
-- spent and whose order was refunded are owed.
CREATE TABLE t_point_account (
  user_id     BIGINT      NOT NULL,
  balance     BIGINT      NOT NULL,
  update_time DATETIME(6) NOT NULL,
  PRIMARY KEY (user_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'points'
