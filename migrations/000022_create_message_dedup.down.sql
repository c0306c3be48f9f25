DROP TABLE t_message_dedup
