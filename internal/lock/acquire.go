package lock

import (
	"context"
	"fmt"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/redisdb"
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
	for pause := redisdb.FirstPause; ; pause = redisdb.NextPause(pause) {
		ls.sent = time.Now()
		word, err := l.run(ctx, acquireScript, ls, l.TTL.Milliseconds())
		mayHold = mayHold || err != nil || word == wordAcquired // a command that failed may have reached Redis
		switch {
		case err != nil && redisdb.Ended(ctx) != nil:
			return "", fmt.Errorf("lock: acquire for %s: %w", ls.operation, redisdb.Ended(ctx))
		case err != nil:
			l.outage.Failed(ctx, l.Log, apperr.LayerLock, "acquire", err)
			return metrics.Degraded, nil
		}
		l.outage.Works(ctx, l.Log, apperr.LayerLock)
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
		if err := redisdb.Sleep(ctx, min(left, redisdb.Jitter(pause))); err != nil {
			return "", fmt.Errorf("lock: wait for %s: %w", ls.operation, err)
		}
	}
}
