package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

// B28: Redis stands still for longer than the lease. The work is told before anybody else can enter.
func TestStalledRenewalEndsTheWork(t *testing.T) {
	server := newServer(t)
	client := testenv.OpenRedis(t, server.URL())
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
	first, second := newLock(testenv.OpenRedis(t, proxied)), newLock(testenv.OpenRedis(t, server.URL()))
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
	client := testenv.OpenRedis(t, newServer(t).URL())
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
	client := testenv.OpenRedis(t, newServer(t).URL())
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
	client := testenv.OpenRedis(t, newServer(t).URL())
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
	client := testenv.OpenRedis(t, newServer(t).URL())
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
	l := newLock(testenv.OpenRedis(t, proxied))
	loadScripts(t, testenv.OpenRedis(t, server.URL()))
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
	l := newLock(testenv.OpenRedis(t, proxied))
	cut := proxy.On(isRenew, 1, testenv.CutBefore())
	err := l.Do(t.Context(), operation, "k", func(ctx context.Context) error {
		heldFor(t, newLock(testenv.OpenRedis(t, server.URL())), 2*testTTL)
		return ctx.Err()
	})
	if err != nil || cut.Hits() != 1 {
		t.Errorf("got %v after %d cuts, want success after 1", err, cut.Hits())
	}
	wantHits(t, l, map[string]int{metrics.Passed: 1})
}

func TestPanicInTheWatchdogCostsTheLockOnly(t *testing.T) {
	client := testenv.OpenRedis(t, newServer(t).URL())
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
	l := newLock(testenv.OpenRedis(t, proxied))
	direct := testenv.OpenRedis(t, server.URL())
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
	l := newLock(testenv.OpenRedis(t, proxied))
	l.Wait = testTTL
	direct := testenv.OpenRedis(t, server.URL())
	loadScripts(t, direct)
	late := proxy.On(isAcquire, -1, testenv.Delay(testTTL/2))
	start := time.Now()
	err := l.Do(t.Context(), operation, "k", func(context.Context) error {
		t.Error("ran under a lease that may have ended")
		return nil
	})
	if took := time.Since(start); !apperr.Is(err, "lock_busy") || took > l.Wait+2*commandTimeout {
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
	l := newLock(testenv.OpenRedis(t, proxied))
	direct := testenv.OpenRedis(t, server.URL())
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
			log := logTo(l)
			ran := 0
			work := func(context.Context) error { ran++; return nil }
			fault.begin()
			for range 3 {
				start := time.Now()
				if err := l.Do(t.Context(), operation, "k", work); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > 3*commandTimeout {
					t.Errorf("took %v, want a few commands' timeouts at most", took)
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

// B36: a reply to somebody else's command is never taken for ours.
func TestForeignReplyIsNotAccepted(t *testing.T) {
	for name, reply := range map[string][]any{
		"another key":   {redisKey("other"), "", wordAcquired},
		"another owner": {redisKey("k"), "other", wordAcquired},
		"no key":        {wordAcquired},
	} {
		t.Run(name, func(t *testing.T) {
			client := testenv.OpenRedis(t, newServer(t).URL())
			client.AddHook(processHook(func(cmd redis.Cmder, next func() error) error {
				err := next()
				if c, ok := cmd.(*redis.Cmd); ok && c.Args()[0] != "evalsha" { // the first try has an unknown script
					if reply[0] == redisKey("other") {
						reply[1] = c.Args()[4] // the right owner
					}
					c.SetVal(reply)
				}
				return err
			}))
			l := newLock(client)
			_, err := l.run(t.Context(), acquireScript, &lease{key: redisKey("k"), owner: "me"}, l.TTL.Milliseconds())
			if !errors.Is(err, errForeignReply) {
				t.Errorf("got %v, want errForeignReply", err)
			}
		})
	}
}

// B36: calls cancelled at random moments on slow connections never confuse each other: never two holders, never work
// under a lock whose value names another key, and no lock is left behind.
func TestRandomCancellations(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	proxy.On(testenv.Prefix("EVAL"), -1, testenv.Jitter(10*time.Millisecond))
	direct := testenv.OpenRedis(t, server.URL())
	l := newLock(impatientClient(t, proxied))
	const workers, callsEach, keys = 40, 60, 8
	var inside [keys]atomic.Int32
	var ran atomic.Int32
	testenv.Together(workers, func(int) {
		for range callsEach {
			n := rand.N(keys)
			key := fmt.Sprint("k", n)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.N(20))*time.Millisecond)
			err := l.Do(ctx, operation, key, func(context.Context) error {
				if holders := inside[n].Add(1); holders > 1 {
					t.Errorf("%d holders of %s", holders, key)
				}
				defer inside[n].Add(-1)
				ran.Add(1)
				value, err := direct.Get(t.Context(), redisKey(key)).Result()
				if err != nil || !strings.HasPrefix(value, redisKey(key)+" ") {
					t.Errorf("holding %s, its value is %q, %v", key, value, err)
				}
				return nil
			})
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
	})
	if ran.Load() < workers {
		t.Errorf("only %d calls got a lock; the test shows nothing", ran.Load())
	}
	testenv.Eventually(t, patience, "locks end", func() error {
		if n := direct.DBSize(t.Context()).Val(); n != 0 {
			return fmt.Errorf("%d locks left", n)
		}
		return nil
	})
}

// impatientClient is the service's client but for the size of its pool. That is also the number of failed dials after
// which the client takes Redis for down, and dials that cancelled calls gave up count as failed.
func impatientClient(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	opts.MaxRetries, opts.DialerRetries, opts.ContextTimeoutEnabled, opts.PoolSize = -1, 1, true, 100_000
	client := redis.NewClient(opts)
	t.Cleanup(func() { client.Close() })
	return client
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
