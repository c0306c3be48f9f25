DROP TABLE t_relay_shard
