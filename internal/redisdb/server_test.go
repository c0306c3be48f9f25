package redisdb_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestTheEvictionPolicyIsRead(t *testing.T) {
	client := testenv.OpenRedis(t, testenv.PrivateRedis(t).URL())
	for _, want := range []string{"noeviction", "allkeys-lru"} {
		if err := client.ConfigSet(t.Context(), "maxmemory-policy", want).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := redisdb.EvictionPolicy(t.Context(), client); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	client.Close()
	if got, err := redisdb.EvictionPolicy(t.Context(), client); err == nil {
		t.Errorf("%q from a closed client", got)
	}
}

func TestACommandIsNeverRepeatedByTheClient(t *testing.T) {
	proxy, url := testenv.BehindRedisProxy(t, testenv.RedisURL(t))
	client := testenv.OpenRedis(t, url)
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	lost := proxy.On(testenv.Prefix("INCR"), 1, testenv.SwallowReply())
	if err := client.Incr(t.Context(), "n").Err(); err == nil {
		t.Error("a lost reply is no error")
	}
	if n, err := client.Get(t.Context(), "n").Int(); n != 1 || err != nil || lost.Hits() != 1 {
		t.Errorf("the server counted %d, %v; %d commands", n, err, lost.Hits())
	}
}

func TestAHangingOrAbsentRedisIsGivenUpSoon(t *testing.T) {
	proxy, url := testenv.BehindRedisProxy(t, testenv.RedisURL(t))
	client := testenv.OpenRedis(t, url)
	const limit = 3 * time.Second // several of the client's half seconds; the defaults would take from 5 s to a minute
	for name, fault := range map[string]func(){"hangs": func() { proxy.Blackhole(true) }, "is down": proxy.Down} {
		fault()
		start := time.Now()
		if err := client.Ping(t.Context()).Err(); err == nil || time.Since(start) > limit {
			t.Errorf("%s: %v after %v", name, err, time.Since(start))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client.Ping(ctx).Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}
