// Package lock makes requests on the same business key queue. It spares the database the collisions and the user the
// refusals that go with them; it decides nothing. A lock can be lost, skipped or held twice, and the data layer (unique
// indexes, conditional updates) stays right without it.
package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/redisdb"
)

// ErrLost is the cause of the context of work whose lock ended before it did: Redis lost the key, or could not be
// reached for so long that another request may hold it by now.
var ErrLost = errors.New("lock lost")

// retryAfter is the smallest Retry-After there is; most holders are done in milliseconds.
const retryAfter = time.Second

// None is the absent lock (DISABLE_GUARDS=lock).
type None struct{}

// Do runs fn at once and returns its error.
func (None) Do(ctx context.Context, _, _ string, fn func(ctx context.Context) error) error {
	return fn(ctx)
}

// Redis is a lock in Redis with an owner, a lease and its renewal. All exported fields are required; a Redis must not
// be copied.
type Redis struct {
	Client  redis.UniversalClient
	TTL     time.Duration // life of a lock between renewals: how long a crashed holder keeps others out
	Wait    time.Duration // how long a request queues
	Metrics *metrics.Metrics
	Log     *slog.Logger

	timeout time.Duration // of one command; 0 is redisdb.CommandTimeout. Tests with crowds on a slow machine set more
	outage  redisdb.Outage
}

// lease is one call's hold on a key.
type lease struct {
	operation string
	key       string    // in Redis
	owner     string    // this call alone
	sent      time.Time // when the command that last granted the lease was sent: it has TTL from then, at the least
}

// Do runs fn while holding the lock on key, and releases it after fn has returned or panicked. operation is for the
// metrics.
//
// It returns fn's error, or without running fn: InProgress "lock_busy" when others held the lock for all of Wait (plus
// one command's timeout at most), or ctx's error when that ended first. Should Redis not work, fn runs without the lock.
//
// Should the lock be lost meanwhile, fn's context ends with cause ErrLost. An fn that stopped because of that gives
// InProgress "lock_lost"; an fn that went through gives its own result, as the database has decided by then.
func (l *Redis) Do(ctx context.Context, operation, key string, fn func(ctx context.Context) error) error {
	ls := &lease{operation: operation, key: redisKey(key), owner: rand.Text()}
	start := time.Now()
	outcome, err := l.acquire(ctx, ls)
	l.Metrics.LockWaited(time.Since(start))
	if outcome != "" {
		l.count(ls, outcome)
	}
	switch {
	case err != nil:
		return err
	case outcome == metrics.Degraded:
		// A command that seemed to fail may have reached Redis, and its lock would keep the caller's next request out.
		defer l.release(ctx, ls)
		return fn(ctx)
	default:
		return l.hold(ctx, ls, fn)
	}
}

// hold runs fn under a lease that has been granted.
func (l *Redis) hold(ctx context.Context, ls *lease, fn func(ctx context.Context) error) error {
	fnCtx, cancel := context.WithCancelCause(ctx)
	var once sync.Once
	lose := func(reason error) {
		once.Do(func() {
			cancel(ErrLost)
			l.count(ls, metrics.Lost)
			l.Log.WarnContext(ctx, "lock lost before the work was done", "key", ls.key, "operation", ls.operation, "err", reason)
		})
	}
	// The watchdog outlives ctx: until fn returns it may still be writing, whether its client waits or not. Work that
	// is done before the first renewal costs one timer and no goroutine.
	watchCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	watchdog := time.AfterFunc(time.Until(l.renewal(ls)), func() { l.watch(watchCtx, *ls, lose) })
	defer func() {
		watchdog.Stop()
		stop() // before the release, or the watchdog would take our own release for a loss
		if word := l.release(ctx, ls); word == wordGone {
			lose(errors.New("not ours any more at release"))
		}
		cancel(nil)
	}()

	err := fn(fnCtx)
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(fnCtx), ErrLost) {
		return apperr.New(apperr.InProgress, "lock_lost", "The same action may be running elsewhere. Send the request again.").
			At(apperr.LayerLock).After(retryAfter).Wrap(fmt.Errorf("%w: %w", ErrLost, err))
	}
	return err
}

// release gives the lock up if it is still ours, even if ctx has ended, and returns the verdict. A failure is logged
// only: the lease ends by itself.
func (l *Redis) release(ctx context.Context, ls *lease) string {
	word, err := l.run(context.WithoutCancel(ctx), releaseScript, ls)
	if err != nil {
		l.outage.Failed(ctx, l.Log, apperr.LayerLock, "release", err)
	}
	return word
}

func (l *Redis) count(ls *lease, outcome string) {
	l.Metrics.GuardHit(apperr.LayerLock, ls.operation, outcome)
}
