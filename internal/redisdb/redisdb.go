// Package redisdb opens the one Redis client of the process, for a single node, a cluster or Sentinel.
package redisdb

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// commandTimeout bounds one command. A healthy Redis answers in under a millisecond; after half a second the guards
	// count it as gone and the data layer decides, so that a hanging Redis costs a request at most a few of these.
	commandTimeout = 500 * time.Millisecond
	// poolSize is per process: more requests than this at the same instant share connections by waiting microseconds.
	poolSize = 64
)

// Open makes a client; it does not connect. addr is host:port or a comma list for a cluster, rawURL wins over addr.
//
// The client never repeats a command by itself (MaxRetries -1): a repeat of a claim whose reply was lost would find the
// claim taken. Scripts recognise their own earlier success by the owner they carry instead, and callers decide.
func Open(addr, rawURL string) (redis.UniversalClient, error) {
	opts, err := options(addr, rawURL)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	opts.MaxRetries = -1
	opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout = commandTimeout, commandTimeout, commandTimeout
	opts.PoolTimeout = commandTimeout
	opts.PoolSize = poolSize
	opts.DialerRetries = 1 // the dialer's own loop would turn "Redis is down" into seconds for every request
	opts.ContextTimeoutEnabled = true
	return redis.NewUniversalClient(opts), nil
}

func options(addr, rawURL string) (*redis.UniversalOptions, error) {
	if rawURL == "" {
		var addrs []string
		for a := range strings.SplitSeq(addr, ",") {
			addrs = append(addrs, strings.TrimSpace(a))
		}
		return &redis.UniversalOptions{Addrs: addrs, IsClusterMode: len(addrs) > 1}, nil
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "redis+sentinel" {
		password, _ := u.User.Password()
		return &redis.UniversalOptions{
			Addrs: strings.Split(u.Host, ","), MasterName: strings.Trim(u.Path, "/"),
			Username: u.User.Username(), Password: password,
		}, nil
	}
	o, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return &redis.UniversalOptions{
		Addrs: []string{o.Addr}, DB: o.DB, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
		Dialer: o.Dialer,
	}, nil
}

// EvictionPolicy returns maxmemory-policy. Anything but noeviction may drop a lock or a token that is still needed.
// A server that forbids CONFIG (managed services do) answers with an error.
func EvictionPolicy(ctx context.Context, client redis.UniversalClient) (string, error) {
	got, err := client.ConfigGet(ctx, "maxmemory-policy").Result()
	if err != nil {
		return "", fmt.Errorf("redis: read maxmemory-policy: %w", err)
	}
	return got["maxmemory-policy"], nil
}
