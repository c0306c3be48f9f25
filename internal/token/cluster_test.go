package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/testenv"
)

// B38: every script of this package, and of lock, which is tested here to share the cluster, runs on a cluster,
// whichever node has the key.
func TestScriptsRunOnACluster(t *testing.T) {
	client, err := redisdb.Open(testenv.RedisCluster(t, 2), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s := newStore(client)
	// The first renewal comes after a second; the rest is patience with two cluster nodes on a loaded machine.
	l := &lock.Redis{Client: client, TTL: 3 * time.Second, Metrics: metrics.New(), Log: slog.New(slog.DiscardHandler)}
	const n = 20 // about ten keys on each node
	var settled, released [n]string
	for i := range n {
		settled[i], released[i] = issue(t, s), issue(t, s)
	}
	testenv.Together(n, func(i int) {
		key := fmt.Sprint("order:", i)
		err := l.Do(t.Context(), "test", key, func(ctx context.Context) error {
			c1, err1 := claim(ctx, s, settled[i], "me")
			c2, err2 := claim(ctx, s, released[i], "me")
			c1.Settle(ctx)
			c2.Release(ctx)
			return errors.Join(err1, err2, untilRenewed(ctx, client, "oncepay:lock:{"+key+"}"))
		})
		if err != nil {
			t.Error(err)
		}
		if n := client.Exists(t.Context(), "oncepay:lock:{"+key+"}").Val(); n != 0 {
			t.Errorf("the lock on %s is still there", key)
		}
		if _, err := claim(t.Context(), s, settled[i], "other"); !errors.Is(err, ErrSpent) {
			t.Errorf("settled token: got %v, want ErrSpent", err)
		}
		if _, err := claim(t.Context(), s, released[i], "other"); err != nil {
			t.Errorf("released token: %v", err)
		}
	})
	wantHits(t, s, map[string]int{metrics.Passed: 3 * n, metrics.Blocked: n})
}

// untilRenewed returns once the lock at key has more time to live than a moment before.
func untilRenewed(ctx context.Context, client redis.UniversalClient, key string) error {
	for last := time.Hour; ; {
		ttl, err := client.PTTL(ctx, key).Result()
		if err != nil || ttl > last {
			return err
		}
		last = ttl
		select {
		case <-time.After(20 * time.Millisecond): // so that twenty of these leave the nodes time to answer
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
