package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
)

const (
	// firstPause is about one order's transaction: by then the holder is likely to be done.
	firstPause = 5 * time.Millisecond

	// maxPause is a delay that nobody notices, and keeps the cost down: 200 requests on one key ask Redis 2 000 times a
	// second, of the 100 000 it can answer.
	maxPause = 100 * time.Millisecond
)

// acquire queues for the lock. The outcome is what the guard did; it is empty, with ctx's error, when ctx ended.
func (l *Redis) acquire(ctx context.Context, ls *lease) (outcome string, err error) {
	start := time.Now()
	mayHold := false
	defer func() {
		if err != nil && mayHold {
			l.release(ctx, ls)
		}
	}()
	outcome = metrics.Passed
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		ls.sent = time.Now()
		word, err := l.run(ctx, acquireScript, ls, l.TTL.Milliseconds())
		mayHold = mayHold || err != nil || word == wordAcquired // a command that failed may have reached Redis
		switch {
		case err != nil && ended(ctx) != nil:
			return "", fmt.Errorf("lock: acquire for %s: %w", ls.operation, ended(ctx))
		case err != nil:
			l.unwell(ctx, "acquire", err)
			return metrics.Degraded, nil
		}
		l.well(ctx)
		// A reply that comes when the first renewal is already due was held up somewhere, by the network or by a pause
		// of this process, and may be about a lease that has ended. The next try finds the lock ours, and renews it.
		if word == wordAcquired && time.Now().Before(l.renewal(ls)) {
			return outcome, nil
		}
		outcome = metrics.Waited
		left := l.Wait - time.Since(start)
		if left <= 0 {
			return metrics.Blocked, apperr.New(apperr.InProgress, "lock_busy", "The same action is being worked on. Send the request again.").
				At(apperr.LayerLock).After(retryAfter)
		}
		if err := sleep(ctx, min(left, jitter(pause))); err != nil {
			return "", fmt.Errorf("lock: wait for %s: %w", ls.operation, err)
		}
	}
}

// jitter spreads a pause over half to one and a half of it, so that requests that came together do not ask in step.
func jitter(pause time.Duration) time.Duration { return pause/2 + rand.N(pause) }

// ended returns the error of a context that is over. A connection's deadline, which the client derives from ctx, can
// fire a moment before ctx itself; that is ctx's end too, and no fault of Redis.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// sleep waits for d, or returns ctx's error when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
