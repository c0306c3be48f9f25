package token

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/embedded"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

const (
	// patience ends a wait for something that should have happened long ago.
	patience = 20 * time.Second

	// testTTL is long enough to see that a claim renews it, whatever the machine's load.
	testTTL = time.Hour

	user = 1001
)

// now is the injected clock: tokens' expiry as the client is told it. Redis counts by its own.
var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

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

func newStore(client redis.UniversalClient) *Store {
	return &Store{
		Client: client, TTL: testTTL, ClaimLease: time.Minute, Wait: patience, timeout: patience,
		Metrics: metrics.New(), Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
	}
}

// issue returns the value of a new token of user.
func issue(t *testing.T, s *Store) string {
	t.Helper()
	token, err := s.Issue(t.Context(), SceneOrderCreate, user)
	if err != nil {
		t.Fatal(err)
	}
	return token.Value
}

// claim is Claim for user without the rest.
func claim(ctx context.Context, s *Store, value, owner string) (*Claim, error) {
	return s.Claim(ctx, SceneOrderCreate, user, value, owner)
}

func mustClaim(t *testing.T, s *Store, value, owner string) *Claim {
	t.Helper()
	c, err := claim(t.Context(), s, value, owner)
	if err != nil {
		t.Fatalf("claim by %s: %v", owner, err)
	}
	return c
}

func mustKey(t *testing.T, value string) string {
	t.Helper()
	key, err := redisKey(SceneOrderCreate, user, value)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func wantHits(t *testing.T, s *Store, want map[string]int) {
	t.Helper()
	for _, outcome := range []string{metrics.Passed, metrics.Blocked, metrics.Waited, metrics.Degraded} {
		if got := hits(t, s, outcome); got != want[outcome] {
			t.Errorf("guard_hits_total{outcome=%q} = %d, want %d", outcome, got, want[outcome])
		}
	}
}

// hits is guard_hits_total of the token guard for an outcome.
func hits(t *testing.T, s *Store, outcome string) int {
	t.Helper()
	families, err := s.Metrics.Registry.Gather()
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
			if labels["guard"] == "token" && labels["operation"] == SceneOrderCreate && labels["outcome"] == outcome {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// processHook sees every command of a client.
type processHook func(cmd redis.Cmder, next func() error) error

func (processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(cmd, func() error { return next(ctx, cmd) })
	}
}
