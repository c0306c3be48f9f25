-- duplicates: SELECT biz_token, COUNT(*) FROM t_order GROUP BY biz_token HAVING COUNT(*) > 1
-- One business action, one row, whatever the layers above let through.
ALTER TABLE t_order ADD UNIQUE KEY uk_biz_token (biz_token)
