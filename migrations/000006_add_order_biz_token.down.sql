ALTER TABLE t_order DROP KEY uk_biz_token
