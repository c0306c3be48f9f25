package lock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

func TestOneHolderAtATime(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	l := newLock(client)
	l.TTL = longTTL
	var inside, most, runs atomic.Int32
	testenv.Together(100, func(int) {
		err := l.Do(t.Context(), operation, "k", func(context.Context) error {
			now := inside.Add(1)
			defer inside.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			runtime.Gosched()
			runs.Add(1)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	if most.Load() != 1 || runs.Load() != 100 {
		t.Errorf("%d inside at once and %d runs, want 1 and 100", most.Load(), runs.Load())
	}
	if passed, waited := hits(t, l, metrics.Passed), hits(t, l, metrics.Waited); waited < 1 || passed+waited != 100 {
		t.Errorf("passed %d, waited %d, want 100 together and some waiting", passed, waited)
	}
	wantGone(t, client, "k")
}

func TestDifferentKeysDoNotQueue(t *testing.T) {
	l := newLock(openRedis(t, newServer(t).URL()))
	l.TTL = longTTL
	l.Wait = 0
	err := l.Do(t.Context(), operation, "a", func(ctx context.Context) error {
		return l.Do(ctx, operation, "b", func(context.Context) error { return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	wantHits(t, l, map[string]int{metrics.Passed: 2})
}

func TestNoneRunsAtOnce(t *testing.T) {
	want := errors.New("from fn")
	if err := (None{}).Do(t.Context(), operation, "k", func(context.Context) error { return want }); err != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

// B33: however fn ends, the lock is there until it has ended, and gone after that.
func TestLockIsReleasedAfterTheWork(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	refused := errors.New("refused")
	for name, end := range map[string]func() error{
		"success": func() error { return nil },
		"error":   func() error { return refused },
		"panic":   func() error { panic(refused) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLock(client)
			l.TTL = longTTL
			defer func() {
				if p := recover(); (p != nil) != (name == "panic") {
					t.Errorf("recovered %v", p)
				}
				wantGone(t, client, "k")
			}()
			err := l.Do(t.Context(), operation, "k", func(context.Context) error {
				value := client.Get(t.Context(), redisKey("k")).Val()
				if !strings.HasPrefix(value, redisKey("k")+" ") { // B36
					t.Errorf("the lock's value %q does not name its key", value)
				}
				return end()
			})
			if (err != nil) != (name == "error") || err != nil && err != refused {
				t.Errorf("got %v", err)
			}
		})
	}
}

// B33: a client that hung up ends the context of the work, but what still runs is still alone.
func TestLockOutlivesACancelledClient(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	l := newLock(client)
	ctx, hangUp := context.WithCancel(t.Context())
	err := l.Do(ctx, operation, "k", func(ctx context.Context) error {
		hangUp()
		<-ctx.Done()
		heldFor(t, l, 2*testTTL)
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the client's cancellation", err)
	}
	wantGone(t, client, "k")
	wantHits(t, l, map[string]int{metrics.Passed: 1})
}

func TestLockIsRenewedBeyondItsTTL(t *testing.T) {
	l := newLock(openRedis(t, newServer(t).URL()))
	err := l.Do(t.Context(), operation, "k", func(ctx context.Context) error {
		heldFor(t, l, 3*testTTL)
		return ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1})
}

// heldFor checks over and over for d that nobody else gets the lock on "k", and that it has an expiry.
func heldFor(t *testing.T, l *Redis, d time.Duration) {
	t.Helper()
	other := newLock(l.Client)
	other.Wait = 0
	for end := time.Now().Add(d); time.Now().Before(end); {
		err := other.Do(context.Background(), operation, "k", func(context.Context) error { return nil })
		if !apperr.Is(err, "lock_busy") {
			t.Fatalf("a second holder got %v, want lock_busy", err)
		}
		checkExpiries(t, l.Client)
	}
}

// B32: a foreign lock bounds the wait of those who want it, and touches nobody else.
func TestWaitIsBounded(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	l := newLock(client)
	l.TTL = longTTL
	l.Wait = 300 * time.Millisecond
	if err := client.Set(t.Context(), redisKey("foreign"), "somebody", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	testenv.Together(250, func(i int) {
		key := "foreign"
		if i >= 200 {
			key = fmt.Sprint("own", i)
		}
		start := time.Now()
		err := l.Do(t.Context(), operation, key, func(context.Context) error { return nil })
		if i >= 200 {
			if err != nil {
				t.Errorf("another key: %v", err)
			}
			return
		}
		took := time.Since(start)
		if took < l.Wait || took > l.Wait+patience/4 {
			t.Errorf("waited %v, want about %v", took, l.Wait)
		}
		e, ok := apperr.As(err)
		if !ok || e.Kind != apperr.InProgress || e.Code != "lock_busy" || e.Layer != apperr.LayerLock || e.RetryAfter != time.Second {
			t.Errorf("got %+v", err)
		}
	})
	wantHits(t, l, map[string]int{metrics.Blocked: 200, metrics.Passed: 50})
	testenv.Eventually(t, patience, "goroutines end", func() error {
		// The pool's connections have none; ten are the runtime's and the test's own margin.
		if now := runtime.NumGoroutine(); now > before+10 {
			return fmt.Errorf("%d goroutines, %d before", now, before)
		}
		return nil
	})
}

func TestCancelledWhileWaiting(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	l := newLock(client)
	l.TTL = longTTL
	err := l.Do(t.Context(), operation, "k", func(context.Context) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return l.Do(ctx, operation, "k", func(context.Context) error {
			t.Error("ran without the lock")
			return nil
		})
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1})
	wantGone(t, client, "k")
}

// B23, B27: the strings in Redis are fixed; instances of two builds must mean the same lock.
func TestRedisKeyIsPinned(t *testing.T) {
	for key, want := range map[string]string{
		"order:1001":            "oncepay:lock:{order:1001}",
		"v1:1:23_4":             "oncepay:lock:{v1:1:23_4}",
		strings.Repeat("k", 70): "oncepay:lock:{" + strings.Repeat("k", 70) + "}",
	} {
		if got := redisKey(key); got != want {
			t.Errorf("redisKey(%q) = %q, want %q", key, got, want)
		}
	}
}

// B23: different business keys are different locks.
func FuzzRedisKeyIsInjective(f *testing.F) {
	f.Add("1:23_4", "1_23:4")
	f.Add("", "}")
	f.Add("a}", "a")
	f.Fuzz(func(t *testing.T, a, b string) {
		if (a == b) != (redisKey(a) == redisKey(b)) {
			t.Errorf("%q and %q: %q and %q", a, b, redisKey(a), redisKey(b))
		}
	})
}
