package redisdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file is what the guards in Redis (packages lock and token) share: how a script is run, how one waits for another, and
// how an outage is told.

// CommandTimeout bounds one command with all that belongs to it: waiting for a connection, dialling, loading the script. A
// healthy Redis needs less than a millisecond.
const CommandTimeout = commandTimeout

const (
	// FirstPause is about one order's transaction: by then the holder is likely to be done.
	FirstPause = 5 * time.Millisecond
	// maxPause is a delay that nobody notices, and keeps the cost down: 200 waiting requests ask Redis 2 000 times a second,
	// of the 100 000 it can answer.
	maxPause = 100 * time.Millisecond
)

// ErrForeignReply is a reply to somebody else's command: the connection is out of step.
var ErrForeignReply = errors.New("reply names another key or owner")

// RunScript executes a script on one key for one owner and returns its verdict. Every script answers {key, owner, verdict}; a
// reply that does not name both is an error. After an error the effect is unknown.
func RunScript(ctx context.Context, client redis.Scripter, script *redis.Script, timeout time.Duration, key, owner string, args ...any) (verdict string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	args = append([]any{owner}, args...)
	reply, err := script.Run(ctx, client, []string{key}, args...).StringSlice() // EVALSHA, then EVAL if unknown
	if err != nil {
		return "", fmt.Errorf("redis script: %w", err)
	}
	if len(reply) != 3 || reply[0] != key || reply[1] != owner {
		return "", fmt.Errorf("redis script: %w", ErrForeignReply)
	}
	return reply[2], nil
}

// Ended returns the error of a context that is over. A connection's deadline, which the client derives from ctx, can fire a
// moment before ctx itself; that is ctx's end too, and no fault of Redis.
func Ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// NextPause is the pause after this one.
func NextPause(pause time.Duration) time.Duration { return min(2*pause, maxPause) }

// Jitter spreads a pause over half to one and a half of it, so that requests that came together do not ask in step.
func Jitter(pause time.Duration) time.Duration { return pause/2 + rand.N(pause) }

// Sleep waits for d, or returns ctx's error when that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Outage tells an outage of Redis by its two ends, not by every request in between. The zero value is ready.
type Outage struct{ down atomic.Bool }

// Failed notes that a guard's command failed.
func (o *Outage) Failed(ctx context.Context, log *slog.Logger, guard, doing string, err error) {
	if !o.down.Swap(true) {
		log.WarnContext(ctx, "Redis fails; going on without this guard until it works again", "guard", guard, "doing", doing, "error", err)
	}
}

// Works notes that a guard's command succeeded.
func (o *Outage) Works(ctx context.Context, log *slog.Logger, guard string) {
	if o.down.Load() && o.down.Swap(false) {
		log.InfoContext(ctx, "Redis works again; the guard is back", "guard", guard)
	}
}
