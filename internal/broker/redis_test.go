package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/testenv"
)

func onRedis(t *testing.T, maxIdle, claimEvery time.Duration) *server {
	t.Helper()
	client := testenv.OpenRedis(t, testenv.RedisURL(t))
	return &server{
		Broker: newRedis(client, slog.New(slog.DiscardHandler), maxIdle, claimEvery),
		poison: func(shard int) {
			if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream(shard), Values: []any{"not", "ours"}}).Err(); err != nil {
				t.Fatal(err)
			}
		},
		settled: func(string, int) {}, // the server hands out message by message
	}
}

func TestAClosedSubscriberLeavesTheClientOpen(t *testing.T) {
	client := testenv.OpenRedis(t, testenv.RedisURL(t))
	b := Redis(client, slog.New(slog.DiscardHandler))
	join(t, b, "coupons").leave()
	publish(t, b, stored("a", 1))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestASubscriptionEndsWithItsGroupAndANewOneGoesOn(t *testing.T) {
	client := testenv.OpenRedis(t, testenv.RedisURL(t))
	b := Redis(client, slog.New(slog.DiscardHandler))
	r := join(t, b, "coupons")
	publish(t, b, stored("a", 1))
	r.want(stored("a", 1))
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, b, stored("a", 2)) // before anybody has noticed
	for _, topic := range r.wantEnded(len(b.Topics)) {
		r.subscribe(topic)
	}
	publish(t, b, stored("a", 3))
	r.want(stored("a", 2), stored("a", 3))
}

// The group goes after it was made and before anything was read from it.
func TestASubscriptionEndsWhenItsGroupGoesAtOnce(t *testing.T) {
	url := testenv.RedisURL(t)
	proxy, through := testenv.BehindRedisProxy(t, url)
	b := newRedis(testenv.OpenRedis(t, through), slog.New(slog.DiscardHandler), maxIdle, 50*time.Millisecond)
	before := testenv.NewGate(t)
	proxy.On(testenv.Prefix("XPENDING"), len(b.Topics), testenv.Hold(before))
	r := join(t, b, "coupons")
	before.WaitEntered(t, len(b.Topics))
	if err := testenv.OpenRedis(t, url).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	before.Open()
	r.wantEnded(len(b.Topics))
}

// lines counts what is logged.
type lines struct {
	slog.Handler
	mu    sync.Mutex
	count map[string]int
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[fmt.Sprint(r.Level, " ", r.Message)]++
	return nil
}

func (l *lines) of(line string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[line]
}

// B110, B111: the broker is down and comes back, and nobody has to subscribe again.
func TestASubscriptionOutlivesARedisThatIsAwayAndSaysSoOnce(t *testing.T) {
	proxy, url := testenv.BehindRedisProxy(t, testenv.RedisURL(t))
	log := &lines{Handler: slog.DiscardHandler, count: make(map[string]int)}
	b := Redis(testenv.OpenRedis(t, url), slog.New(log))
	r := join(t, b, "coupons")
	publish(t, b, stored("a", 1))
	r.want(stored("a", 1))
	proxy.Down()
	wantError(t, b)
	testenv.Eventually(t, patience, "the outage is logged", func() error {
		if log.of("WARN read fail") == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	proxy.Up()
	m := stored("a", 2)
	testenv.Eventually(t, patience, "publish works", func() error { return b.Publish(outbox.Shard(m.Key), []outbox.Stored{m}) })
	r.want(m)
	if n := log.of("WARN read fail"); n != 1 { // by eight streams
		t.Errorf("the outage is in the log %d times", n)
	}
}

func TestAStreamIsBounded(t *testing.T) {
	client := testenv.OpenRedis(t, testenv.RedisURL(t))
	b := Redis(client, slog.New(slog.DiscardHandler))
	list := make([]outbox.Stored, streamLength+1_000)
	for i := range list {
		list[i] = stored("a", i)
	}
	if err := b.Publish(3, list); err != nil {
		t.Fatal(err)
	}
	// Redis removes whole nodes of its tree only, of 100 entries each.
	if n, err := client.XLen(t.Context(), "oncepay:events:{3}").Result(); err != nil || n < streamLength || n > streamLength+100 {
		t.Errorf("%d entries, %v", n, err)
	}
}

func TestRedisClusterCarriesEveryShard(t *testing.T) {
	client, err := redisdb.Open(testenv.RedisCluster(t, 3), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	b := newRedis(client, slog.New(slog.DiscardHandler), 200*time.Millisecond, 50*time.Millisecond)
	dead := join(t, b, "coupons")
	for shard := range outbox.Shards {
		m := stored(fmt.Sprint("key-", shard), 1)
		if err := b.Publish(shard, []outbox.Stored{m}); err != nil {
			t.Fatal(err)
		}
		dead.take()
	}
	dead.leave()
	r, seen := join(t, b, "coupons"), make(map[string]bool)
	for range outbox.Shards { // by XCLAIM
		seen[r.next().Key] = true
	}
	if len(seen) != outbox.Shards {
		t.Errorf("got the messages of %d shards, want %d", len(seen), outbox.Shards)
	}
}
