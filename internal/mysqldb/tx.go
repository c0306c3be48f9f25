package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-sql-driver/mysql"

	"example.com/oncepay/internal/metrics"
)

const (
	// maxTries bounds the runs of one transaction. When a winner rolls back, everybody who waited for its unique index row
	// gets a shared lock and all but one of them deadlock, round after round. Past this many rounds the trouble is not a
	// collision any more and the caller should hear of it.
	maxTries = 12
	// firstPause and maxPause space the runs: a deadlock's winner needs a few milliseconds to finish.
	firstPause = 2 * time.Millisecond
	maxPause   = 120 * time.Millisecond
)

// DB runs transactions on a pool.
type DB struct {
	*sql.DB
	Metrics *metrics.Metrics
}

// InTx runs fn in a transaction at READ COMMITTED (set on every connection by Open) and commits it. It is the only caller
// of Commit.
//
// On a deadlock (1213), a stale snapshot (1020) or ErrStale the whole of fn runs again, a bounded number of times with
// growing jittered pauses; so fn builds everything inside, touches nothing but tx, and leaves nothing behind outside it.
// Any other error of fn rolls back and is returned as it is. A 1205 undoes one statement only, so it too ends the
// transaction. If COMMIT was sent and no answer came, the error is ErrOutcomeUnknown.
func (db *DB) InTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := db.once(ctx, fn)
		cause := retryCause(err)
		if cause == "" || try == maxTries {
			return err
		}
		db.Metrics.TxRetried(cause)
		if sleepErr := sleep(ctx, pause/2+rand.N(pause)); sleepErr != nil {
			return errors.Join(sleepErr, err)
		}
		pause = min(2*pause, maxPause)
	}
}

func (db *DB) once(ctx context.Context, fn func(tx *sql.Tx) error) error {
	// A connection of its own, because Close waits for the transaction's end. When ctx ends, database/sql sends ROLLBACK from
	// a goroutine of its own, and the deferred Rollback below returns at once: a lock held around InTx would be released
	// while the rows are still locked.
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close() // can only say that it was closed before
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() // after Commit a no-op; on error or panic it ends the transaction before any lock is released
	if err := fn(tx); err != nil {
		return err
	}
	return commit(ctx, tx)
}

// commit tells "refused" (an error the server sent) from "not known" (no answer came).
func commit(ctx context.Context, tx *sql.Tx) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("not committed: %w", err)
	}
	err := tx.Commit()
	if err == nil {
		return nil
	}
	var answered *mysql.MySQLError
	switch {
	case errors.As(err, &answered) && !interrupted(answered.Number):
		return fmt.Errorf("commit: %w", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, sql.ErrTxDone):
		// database/sql looked at the context before it sent anything, and has rolled back.
		return fmt.Errorf("not committed: %w", err)
	default:
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
}

// interrupted reports whether a server or proxy broke off and said so, which leaves COMMIT's outcome open.
func interrupted(number uint16) bool {
	switch number {
	case errShutdown, errKilled, errConnKilled, errGone, errLost:
		return true
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
