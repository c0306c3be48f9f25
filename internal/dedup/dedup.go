package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
)

// guard is this package's name in guard_hits_total; the operation is the consumer.
const guard = apperr.LayerDedup

const (
	// MaxTries is how often a message may fail before it is a dead letter. With the pauses below that is 34 minutes: an outage is
	// ridden out, and what fails longer is not going to mend itself.
	MaxTries = 12
	// firstPause is the pause after the first failure; each further one is twice as long (1 s, 2 s, ... 1024 s). What a message
	// lacks at first is usually a commit on its way.
	firstPause = time.Second
	// workLimit bounds one try: under the drain time of the process (20 s), so that work in hand at a stop ends by itself.
	workLimit = 15 * time.Second
	// recordLimit bounds the note of what became of a try. It has time of its own: the try may have used all of its.
	recordLimit = 3 * time.Second
)

// Consumer is one who wants messages. Exactly one of Handle and Call is set.
type Consumer struct {
	Name   string // at most 32 of [A-Za-z0-9_.-]; it stands in the rows and must not change
	Topics []string
	// Handle makes a message take effect in our database, in the given transaction and nowhere else, and says what it came to,
	// e.g. "applied" or "stale". It returns every error of tx: after a 1213 the transaction is gone.
	Handle func(ctx context.Context, tx *sql.Tx, m outbox.Stored) (outcome string, err error)
	// Call makes a message take effect elsewhere, under its id as key: the same message may be called more than once.
	Call func(ctx context.Context, m outbox.Stored) error
}

// Service delivers messages to consumers.
type Service struct {
	DB         *mysqldb.DB
	Now        func() time.Time
	Metrics    *metrics.Metrics
	Log        *slog.Logger
	Exceptions *exception.Store
	Consumers  []Consumer
	Lease      time.Duration // how long a try may hold a message before another run may have it; longer than any try takes
	Filter     *Filter       // nil: none

	since map[subscription]time.Time // set by Register: what is older is not owed, though a broker may still have it
}

// forEach runs f for every consumer side by side, so that one that hangs keeps no other waiting.
func (s *Service) forEach(f func(c Consumer) error) error {
	errs := make([]error, len(s.Consumers))
	var running sync.WaitGroup
	for i, c := range s.Consumers {
		running.Go(func() {
			if err := s.safely(func() error { return f(c) }); err != nil {
				errs[i] = fmt.Errorf("consumer %s: %w", c.Name, err)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// safely turns a panic into an error: no message takes the process with it.
func (s *Service) safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			s.Log.Error("a consumer panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
	}()
	return f()
}

func (s *Service) count(consumer, outcome string) { s.Metrics.GuardHit(guard, consumer, outcome) }
