package lock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/embedded"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

const (
	// testTTL leaves a third, 333 ms, for a goroutine to be scheduled on a loaded machine.
	testTTL = time.Second

	// longTTL is for tests in which nothing is to be renewed or to expire.
	longTTL = time.Minute

	// patience ends a wait for something that should have happened long ago.
	patience = 20 * time.Second

	operation = "test"
)

// newServer starts a private Redis. At the end of the test no key in it may lack an expiry (B24).
func newServer(t *testing.T) *embedded.Redis {
	t.Helper()
	server := testenv.PrivateRedis(t)
	client := openRedis(t, server.URL())
	t.Cleanup(func() { checkExpiries(t, client) })
	return server
}

// openRedis opens a client like the service's, for tests in which Redis works and only the machine may be slow: it waits
// for every reply, and its pool never fails. The service's pool takes Redis for down after as many failed dials as it
// has connections, and dials that cancelled calls gave up count as failed.
func openRedis(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	opts.MaxRetries, opts.DialerRetries, opts.ContextTimeoutEnabled, opts.PoolSize = -1, 1, true, 100_000
	opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = patience, patience, patience, patience
	client := redis.NewClient(opts)
	t.Cleanup(func() { client.Close() })
	return client
}

func checkExpiries(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	ctx := context.Background()
	keys, err := client.Keys(ctx, "oncepay:*").Result()
	if err != nil {
		t.Error(err)
	}
	for _, key := range keys {
		// -2 is a key that has expired since; -1 one that never will.
		if ttl, err := client.PTTL(ctx, key).Result(); err != nil || ttl == -1 {
			t.Errorf("key %s has no expiry (%v, %v)", key, ttl, err)
		}
	}
}

func newLock(client redis.UniversalClient) *Redis {
	return &Redis{
		Client: client, TTL: testTTL, Wait: patience, timeout: patience,
		Metrics: metrics.New(), Log: slog.New(slog.DiscardHandler),
	}
}

// logTo makes the lock log into the returned buffer.
func logTo(l *Redis) *buffer {
	b := new(buffer)
	l.Log = slog.New(slog.NewTextHandler(b, nil))
	return b
}

type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) count(sub string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), sub)
}

// hits is guard_hits_total of the lock for an outcome.
func hits(t *testing.T, l *Redis, outcome string) int {
	t.Helper()
	families, err := l.Metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "guard_hits_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := make(map[string]string)
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			if labels["guard"] == "lock" && labels["operation"] == operation && labels["outcome"] == outcome {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func wantHits(t *testing.T, l *Redis, want map[string]int) {
	t.Helper()
	for _, outcome := range []string{metrics.Passed, metrics.Blocked, metrics.Waited, metrics.Degraded, metrics.Lost} {
		if got := hits(t, l, outcome); got != want[outcome] {
			t.Errorf("guard_hits_total{outcome=%q} = %d, want %d", outcome, got, want[outcome])
		}
	}
}

func wantGone(t *testing.T, client redis.UniversalClient, key string) {
	t.Helper()
	if value, err := client.Get(context.Background(), redisKey(key)).Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("the lock on %s is still there: %q, %v", key, value, err)
	}
}

// untilDone waits for the end of work's context, as a statement in the database would, and returns its error.
func untilDone(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("statement: %w", ctx.Err())
	case <-time.After(patience):
		return errors.New("the context did not end")
	}
}

// loadScripts spares a test the EVALSHA of an unknown script, so that a fault hits the command that does the work.
func loadScripts(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	for _, script := range []*redis.Script{acquireScript, renewScript, releaseScript} {
		if err := script.Load(t.Context(), client).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func isAcquire(cmd string) bool { return strings.HasPrefix(cmd, "EVALSHA "+acquireScript.Hash()) }
func isRenew(cmd string) bool   { return strings.HasPrefix(cmd, "EVALSHA "+renewScript.Hash()) }
func isRelease(cmd string) bool { return strings.HasPrefix(cmd, "EVALSHA "+releaseScript.Hash()) }
