-- Messages of one key are in one shard, which one relay at a time sends in order. next_look_at is when the rescue job looks
-- whether every consumer has recorded the message; NULL: all have. Rows of before are looked at at once.
ALTER TABLE t_outbox
  ADD COLUMN shard TINYINT NOT NULL DEFAULT 0,
  ADD COLUMN next_look_at DATETIME(6) NULL DEFAULT '1970-01-01 00:00:00'
