DROP TABLE t_channel_notice
