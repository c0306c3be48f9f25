package mysqldb_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

// B59: of 2000 transactions under random cancels and cuts none ends in an error that could be taken for a decision, each
// success is there, and what is not of unknown outcome is not.
func TestRandomCancelsAndCutsAreNeverTakenForADecision(t *testing.T) {
	const workers, each = 8, 250
	dsn, direct := counters(t, 0)
	proxy, dsn := testenv.BehindMySQLProxy(t, dsn)
	db := testenv.OpenDB(t, dsn)
	proxy.On(oneIn(25), -1, testenv.CutBefore())
	proxy.On(oneIn(25), -1, testenv.SwallowReply())

	outcomes := make([]error, workers*each)
	testenv.Together(workers, func(w int) {
		for i := w * each; i < (w+1)*each; i++ {
			outcomes[i] = insertUnderCancel(t.Context(), db, i)
		}
	})

	there := make(map[int]bool)
	rows, err := direct.QueryContext(t.Context(), "SELECT id FROM counter")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		there[id] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	tally := make(map[string]int)
	for i, err := range outcomes {
		switch unknown := errors.Is(err, mysqldb.ErrOutcomeUnknown); {
		case err == nil:
			tally["done"]++
			if !there[i] {
				t.Errorf("%d: success, but the row is not there", i)
			}
		case !mysqldb.Unavailable(err) || mysqldb.IsDuplicate(err, "PRIMARY"):
			t.Errorf("%d: %v (%T) is not retryable", i, err, err)
		case unknown && there[i]:
			tally["unknown, done"]++
		case unknown:
			tally["unknown, not done"]++
		default:
			tally["not done"]++
			if there[i] {
				t.Errorf("%d: %v, but the row is there", i, err)
			}
		}
	}
	t.Log(tally)
	for _, kind := range []string{"done", "unknown, done", "unknown, not done", "not done"} {
		if tally[kind] == 0 {
			t.Errorf("no transaction ended %q, the faults are too tame: %v", kind, tally)
		}
	}
}

func insertUnderCancel(ctx context.Context, db *mysqldb.DB, id int) error {
	if id%2 == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond)) // about as long as a transaction takes here
		defer cancel()
	}
	return db.InTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO counter VALUES (?, 0)", id); err != nil {
			return err
		}
		var n int
		return tx.QueryRowContext(ctx, "SELECT n FROM counter WHERE id = ?", id).Scan(&n)
	})
}

func oneIn(n int) testenv.Match { return func(string) bool { return rand.N(n) == 0 } }
