-- The catalogue and the stock. available + reserved + sold = initial, always; t_stock_movement tells how it came about.
CREATE TABLE t_sku (
  sku_id      BIGINT       NOT NULL,
  title       VARCHAR(255) NOT NULL,
  price       BIGINT       NOT NULL COMMENT 'minor units of currency',
  currency    CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'ISO 4217',
  initial     BIGINT       NOT NULL COMMENT 'all that was ever put on the shelf, less what was taken off it',
  available   BIGINT       NOT NULL,
  reserved    BIGINT       NOT NULL COMMENT 'held by orders not paid yet',
  sold        BIGINT       NOT NULL,
  create_time DATETIME(6)  NOT NULL,
  update_time DATETIME(6)  NOT NULL,
  PRIMARY KEY (sku_id),
  CONSTRAINT ck_sku_stock CHECK (available >= 0 AND reserved >= 0 AND sold >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'goods and their stock'
