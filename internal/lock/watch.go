package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/redisdb"
)

// renewal is when a lease is to be renewed: after a third of the TTL, so that there is time for several tries.
func (l *Redis) renewal(ls *lease) time.Time { return ls.sent.Add(l.TTL / 3) }

// end is when we stop relying on a lease: a tenth of the TTL early, for a Redis whose clock runs faster, and for the
// statements under way to be stopped before another request can enter.
func (l *Redis) end(ls *lease) time.Time { return ls.sent.Add(l.TTL - l.TTL/10) }

// watch renews the lease until ctx ends, and calls lose once it cannot be relied on any more.
func (l *Redis) watch(ctx context.Context, ls lease, lose func(reason error)) {
	defer func() {
		// A fault in here must cost the one lock, not the process with all its requests.
		if p := recover(); p != nil {
			lose(fmt.Errorf("panic while renewing: %v", p))
		}
	}()
	for {
		pause, err := l.renew(ctx, &ls)
		if ctx.Err() != nil {
			return // fn has returned
		}
		if err != nil {
			lose(err)
			return
		}
		if redisdb.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// renew tries once to renew the lease and returns how long to wait with the next try. An error means that the lock is
// lost.
func (l *Redis) renew(ctx context.Context, ls *lease) (time.Duration, error) {
	tryCtx, cancel := context.WithDeadline(ctx, l.end(ls))
	defer cancel()
	sent := time.Now()
	word, err := l.run(tryCtx, renewScript, ls, l.TTL.Milliseconds())
	switch {
	case err == nil && word == wordRenewed:
		ls.sent = sent
		return time.Until(l.renewal(ls)), nil
	case err == nil:
		return 0, errors.New("renewal refused: not ours any more")
	case !time.Now().Before(l.end(ls)):
		return 0, fmt.Errorf("not renewed in time: %w", err)
	default:
		// A twelfth: about five more tries fit into the rest of the lease.
		return min(l.TTL/12, time.Until(l.end(ls))), nil
	}
}
