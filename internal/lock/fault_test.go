package lock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/testenv"
)

// B28: Redis stands still for longer than the lease. The work is told before anybody else can enter.
func TestStalledRenewalEndsTheWork(t *testing.T) {
	server := newServer(t)
	client := openRedis(t, server.URL())
	l := newLock(client)
	log := logTo(l)
	err := l.Do(t.Context(), operation, "k", func(ctx context.Context) error {
		if err := server.Pause(); err != nil {
			t.Error(err)
		}
		err := untilDone(ctx)
		if cause := context.Cause(ctx); !errors.Is(cause, ErrLost) {
			t.Errorf("the work's context ended by %v, want ErrLost", cause)
		}
		if err := server.Resume(); err != nil {
			t.Error(err)
		}
		return err
	})
	e, ok := apperr.As(err)
	if !ok || e.Kind != apperr.InProgress || e.Code != "lock_lost" || e.Layer != apperr.LayerLock || !errors.Is(err, ErrLost) {
		t.Errorf("got %+v, want lock_lost", err)
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1, metrics.Lost: 1})
	if log.count("lock lost") != 1 {
		t.Errorf("%d log lines about the loss, want 1", log.count("lock lost"))
	}
	if err := newLock(client).Do(t.Context(), operation, "k", func(context.Context) error { return nil }); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

// B29: only the first holder loses Redis. Its context has ended by the time that the second holder gets in.
func TestHolderThatLosesRedisStopsBeforeTheNextEnters(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	first, second := newLock(openRedis(t, proxied)), newLock(openRedis(t, server.URL()))
	err := first.Do(t.Context(), operation, "k", func(ctx context.Context) error {
		proxy.Down()
		defer proxy.Up()
		err := second.Do(t.Context(), operation, "k", func(context.Context) error {
			if !errors.Is(context.Cause(ctx), ErrLost) {
				t.Error("the second holder is in while the first one's context goes on")
			}
			return nil
		})
		if err != nil {
			t.Errorf("second holder: %v", err)
		}
		return untilDone(ctx)
	})
	if !apperr.Is(err, "lock_lost") {
		t.Errorf("got %v, want lock_lost", err)
	}
	wantHits(t, second, map[string]int{metrics.Waited: 1})
}

// B30: the old owner's renewal and release leave the new owner's lock as it is.
func TestOldOwnerDoesNotTouchTheNewLock(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	l := newLock(client)
	log := logTo(l)
	const theirs = "somebody else's"
	err := l.Do(t.Context(), operation, "k", func(ctx context.Context) error {
		if err := client.Set(t.Context(), redisKey("k"), theirs, time.Minute).Err(); err != nil {
			t.Error(err)
		}
		return untilDone(ctx)
	})
	if !apperr.Is(err, "lock_lost") {
		t.Errorf("got %v, want lock_lost", err)
	}
	if got := client.Get(t.Context(), redisKey("k")).Val(); got != theirs {
		t.Errorf("the new lock is %q, want %q", got, theirs)
	}
	if ttl := client.PTTL(t.Context(), redisKey("k")).Val(); ttl < testTTL {
		t.Errorf("the new lock has %v to live: renewed by the old owner", ttl)
	}
	if log.count("renewal refused") != 1 {
		t.Error("the loss was not seen at the first renewal")
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1, metrics.Lost: 1})
}

// B30: a renewal does not bring a deleted lock back.
func TestRenewalDoesNotRecreateTheLock(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	l := newLock(client)
	err := l.Do(t.Context(), operation, "k", func(ctx context.Context) error {
		client.Del(t.Context(), redisKey("k"))
		err := untilDone(ctx)
		wantGone(t, client, "k")
		return err
	})
	if !apperr.Is(err, "lock_lost") {
		t.Errorf("got %v, want lock_lost", err)
	}
}

func TestWorkThatWentThroughKeepsItsResultThoughTheLockIsLost(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	refused := errors.New("out of stock")
	for name, want := range map[string]error{"success": nil, "refusal": refused} {
		t.Run(name, func(t *testing.T) {
			l := newLock(client)
			err := l.Do(t.Context(), operation, "k", func(ctx context.Context) error {
				client.Del(t.Context(), redisKey("k"))
				<-ctx.Done()
				return want
			})
			if err != want {
				t.Errorf("got %v, want %v", err, want)
			}
			wantHits(t, l, map[string]int{metrics.Passed: 1, metrics.Lost: 1})
		})
	}
}

func TestLossThatOnlyTheReleaseSeesIsCounted(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	l := newLock(client)
	l.TTL = longTTL
	err := l.Do(t.Context(), operation, "k", func(context.Context) error {
		return client.Del(t.Context(), redisKey("k")).Err()
	})
	if err != nil {
		t.Errorf("got %v, want the work's own success", err)
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1, metrics.Lost: 1})
}

// A renewal on its way while the lock is released is refused, and that is no loss.
func TestRenewalDuringReleaseIsNoLoss(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	l := newLock(openRedis(t, proxied))
	loadScripts(t, openRedis(t, server.URL()))
	renewal, released := testenv.NewGate(t), testenv.NewGate(t)
	renewals := proxy.On(isRenew, 1, testenv.Hold(renewal))
	proxy.On(isRelease, 1, testenv.HoldReply(released))
	finish, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- l.Do(t.Context(), operation, "k", func(context.Context) error {
			<-finish
			return nil
		})
	}()
	renewal.WaitEntered(t, 1)
	close(finish)
	released.WaitEntered(t, 1)
	renewal.Open()
	testenv.Eventually(t, patience, "the renewal is answered", func() error {
		for _, e := range proxy.Log() {
			if isRenew(e.Cmd) && !e.Replied.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("%d renewals without a reply", renewals.Hits())
	})
	released.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1})
}

func TestOneFailedRenewalIsRetried(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	l := newLock(openRedis(t, proxied))
	cut := proxy.On(isRenew, 1, testenv.CutBefore())
	err := l.Do(t.Context(), operation, "k", func(ctx context.Context) error {
		heldFor(t, newLock(openRedis(t, server.URL())), 2*testTTL)
		return ctx.Err()
	})
	if err != nil || cut.Hits() != 1 {
		t.Errorf("got %v after %d cuts, want success after 1", err, cut.Hits())
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1})
}

func TestPanicInTheWatchdogCostsTheLockOnly(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	client.AddHook(processHook(func(cmd redis.Cmder, next func() error) error {
		if len(cmd.Args()) > 1 && cmd.Args()[1] == renewScript.Hash() {
			panic("fault in the client")
		}
		return next()
	}))
	l := newLock(client)
	if err := l.Do(t.Context(), operation, "k", untilDone); !apperr.Is(err, "lock_lost") {
		t.Errorf("got %v, want lock_lost", err)
	}
}

// B35: a grant whose reply was held up for longer than the lease can be relied on is none. The next try makes it one.
func TestLateGrantIsRenewedBeforeUse(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	l := newLock(openRedis(t, proxied))
	direct := openRedis(t, server.URL())
	loadScripts(t, direct)
	proxy.On(isAcquire, 1, testenv.Delay(testTTL/2))
	l.Wait = testTTL * 5 / 6 // too short for the late lease to end
	err := l.Do(t.Context(), operation, "k", func(context.Context) error {
		// Without a second acquisition less than half would be left.
		if ttl := direct.PTTL(t.Context(), redisKey("k")).Val(); ttl <= testTTL/2 {
			t.Errorf("work began with %v of %v left", ttl, testTTL)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantHits(t, l, map[string]int{metrics.Waited: 1})
	wantGone(t, direct, "k")
}

// B35: replies that are always late end in lock_busy within the wait, and the caller is not locked out by itself.
func TestGrantsThatAreAlwaysLateLeaveNoLock(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	l := newLock(openRedis(t, proxied))
	l.Wait = testTTL
	direct := openRedis(t, server.URL())
	loadScripts(t, direct)
	late := proxy.On(isAcquire, -1, testenv.Delay(testTTL/2))
	start := time.Now()
	err := l.Do(t.Context(), operation, "k", func(context.Context) error {
		t.Error("ran under a lease that may have ended")
		return nil
	})
	if took := time.Since(start); !apperr.Is(err, "lock_busy") || took > l.Wait+patience/4 {
		t.Errorf("got %v after %v, want lock_busy after about %v", err, took, l.Wait)
	}
	wantGone(t, direct, "k")
	late.Stop()
	l.Wait = 0
	if err := l.Do(t.Context(), operation, "k", func(context.Context) error { return nil }); err != nil {
		t.Errorf("the repeat: %v", err)
	}
	wantHits(t, l, map[string]int{metrics.Blocked: 1, metrics.Passed: 1})
}

// B35: the reply to the acquisition never comes. The work goes on without the lock, and nobody is locked out.
func TestLostReplyLeavesNoLock(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	l := newLock(openRedis(t, proxied))
	direct := openRedis(t, server.URL())
	loadScripts(t, direct)
	proxy.On(isAcquire, 2, testenv.SwallowReply())
	ran := 0
	for range 2 {
		if err := l.Do(t.Context(), operation, "k", func(context.Context) error { ran++; return nil }); err != nil {
			t.Error(err)
		}
		wantGone(t, direct, "k")
	}
	if ran != 2 {
		t.Errorf("%d runs, want 2", ran)
	}
	wantHits(t, l, map[string]int{metrics.Degraded: 2})
}

// B40, B41: without a working Redis the work runs without the lock, is counted, and an outage logs its two ends.
func TestWorkRunsWithoutRedis(t *testing.T) {
	server := newServer(t)
	client := testenv.OpenRedis(t, server.URL())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range []struct {
		name       string
		begin, end func()
	}{
		{"down", func() { must(server.Kill()) }, func() { must(server.Restart(t.Context())) }},
		{"hung", func() { must(server.Pause()) }, func() { must(server.Resume()) }},
		{"full", func() { must(client.ConfigSet(t.Context(), "maxmemory", "1").Err()) },
			func() { must(client.ConfigSet(t.Context(), "maxmemory", "0").Err()) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			l := newLock(client)
			l.timeout = redisdb.CommandTimeout
			log := logTo(l)
			ran := 0
			work := func(context.Context) error { ran++; return nil }
			fault.begin()
			for range 3 {
				start := time.Now()
				if err := l.Do(t.Context(), operation, "k", work); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > patience/4 {
					t.Errorf("took %v, want about two commands' timeouts at most", took)
				}
			}
			fault.end()
			// This may queue for a moment: a hung Redis that goes on carries out what it was sent, in any order.
			if err := l.Do(t.Context(), operation, "k", work); err != nil {
				t.Errorf("after the fault: %v", err)
			}
			if ran != 4 || hits(t, l, metrics.Degraded) != 3 {
				t.Errorf("%d runs, %d degraded, want 4 and 3", ran, hits(t, l, metrics.Degraded))
			}
			if fails, works := log.count("Redis fails"), log.count("Redis works again"); fails != 1 || works != 1 {
				t.Errorf("%d lines about the fault and %d about its end, want 1 each", fails, works)
			}
		})
	}
}
