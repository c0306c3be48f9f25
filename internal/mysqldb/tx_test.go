package mysqldb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

func add(ctx context.Context, tx *sql.Tx, id int) error {
	return mysqldb.ExpectOne(tx.ExecContext(ctx, "UPDATE counter SET n = n + 1 WHERE id = ?", id))
}

func TestATransactionCommitsAsAWhole(t *testing.T) {
	_, db := counters(t, 2)
	err := db.InTx(t.Context(), func(tx *sql.Tx) error { return errors.Join(add(t.Context(), tx, 0), add(t.Context(), tx, 1)) })
	if err != nil {
		t.Fatal(err)
	}
	want(t, db.DB, "2", "SELECT SUM(n) FROM counter")
}

// An error of the function comes back as it is, a panic as itself; of both nothing is left, not even a lock.
func TestErrorAndPanicRollBackAndFreeTheRows(t *testing.T) {
	_, db := counters(t, 1)
	refused := errors.New("refused")
	err := db.InTx(t.Context(), func(tx *sql.Tx) error { return errors.Join(add(t.Context(), tx, 0), refused) })
	if !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() {
			if v := recover(); v != "at the disco" {
				t.Errorf("recovered %v", v)
			}
		}()
		_ = db.InTx(t.Context(), func(tx *sql.Tx) error {
			if err := add(t.Context(), tx, 0); err != nil {
				return err
			}
			panic("at the disco")
		})
		t.Error("the panic was swallowed")
	}()
	if open := db.Stats().InUse; open != 0 {
		t.Errorf("%d connections are still in use", open)
	}
	want(t, db.DB, "0", "SELECT n FROM counter")
	if err := db.InTx(t.Context(), func(tx *sql.Tx) error { return add(t.Context(), tx, 0) }); err != nil {
		t.Errorf("the row is still locked: %v", err)
	}
}

// B47: of two transactions that lock each other out one runs again from its start. Behind a 1213 nothing leaves on that
// transaction but its rollback: a statement would run outside any transaction and be kept on its own.
func TestADeadlockRunsTheWholeFunctionAgain(t *testing.T) {
	dsn, _ := counters(t, 2)
	proxy, dsn := testenv.BehindMySQLProxy(t, dsn)
	db := testenv.OpenDB(t, dsn)
	var first sync.WaitGroup // both have their first row
	first.Add(2)
	var mu sync.Mutex
	runs, victims := 0, []string{}
	testenv.Together(2, func(i int) {
		try := 0
		err := db.InTx(t.Context(), func(tx *sql.Tx) error {
			try++
			tag := fmt.Sprintf("/* party %d, try %d */", i, try)
			mu.Lock()
			runs++
			mu.Unlock()
			if _, err := tx.ExecContext(t.Context(), tag+" UPDATE counter SET n = n + 1 WHERE id = ?", i); err != nil {
				return err
			}
			if try == 1 {
				first.Done()
				first.Wait()
			}
			_, err := tx.ExecContext(t.Context(), tag+" UPDATE counter SET n = n + 1 WHERE id = ?", 1-i)
			if number(err) == 1213 {
				mu.Lock()
				victims = append(victims, tag)
				mu.Unlock()
			}
			return err
		})
		if err != nil {
			t.Errorf("party %d: %v", i, err)
		}
	})
	want(t, db.DB, "2", "SELECT n FROM counter WHERE id = 0")
	want(t, db.DB, "2", "SELECT n FROM counter WHERE id = 1")
	if len(victims) != 1 || runs != 3 {
		t.Fatalf("victims %v, %d runs; want one victim and three runs", victims, runs)
	}
	if retried := retries(t, db.Metrics)["deadlock"]; retried != 1 {
		t.Errorf("%v retries counted", retried)
	}
	lines := strings.Split(conversation(proxy.Log(), victims[0]), "\n")
	if len(lines) < 3 || !strings.HasPrefix(lines[1], victims[0]) || lines[2] != "ROLLBACK" {
		t.Errorf("behind the 1213 should come ROLLBACK:\n%s", strings.Join(lines, "\n"))
	}
}

func retries(t *testing.T, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]float64)
	for _, f := range families {
		if f.GetName() == "tx_retries_total" {
			for _, metric := range f.GetMetric() {
				counts[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return counts
}

func TestAStaleReadRunsAgainFromTheStart(t *testing.T) {
	_, db := counters(t, 1)
	runs := 0
	err := db.InTx(t.Context(), func(tx *sql.Tx) error {
		if err := add(t.Context(), tx, 0); err != nil {
			return err
		}
		if runs++; runs < 3 {
			return fmt.Errorf("order moved on: %w", mysqldb.ErrStale)
		}
		return nil
	})
	if err != nil || runs != 3 || retries(t, db.Metrics)["version"] != 2 {
		t.Errorf("%v after %d runs, counted %v", err, runs, retries(t, db.Metrics))
	}
	want(t, db.DB, "1", "SELECT n FROM counter")
}

func TestRunsAreBounded(t *testing.T) {
	_, db := counters(t, 1)
	runs := 0
	err := db.InTx(t.Context(), func(*sql.Tx) error { runs++; return mysqldb.ErrStale })
	if !errors.Is(err, mysqldb.ErrStale) || runs != 12 {
		t.Errorf("%v after %d runs, want 12", err, runs)
	}
}

func TestNothingRunsOnceTheContextHasEnded(t *testing.T) {
	_, db := counters(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	err := db.InTx(ctx, func(*sql.Tx) error { runs++; cancel(); return mysqldb.ErrStale })
	if !errors.Is(err, context.Canceled) || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
	if err := db.InTx(ctx, func(*sql.Tx) error { runs++; return nil }); !errors.Is(err, context.Canceled) || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
}

// A context that ends before COMMIT is sent leaves nothing, and the outcome is known.
func TestNoCommitLeavesForAnEndedContext(t *testing.T) {
	dsn, direct := counters(t, 1)
	proxy, dsn := testenv.BehindMySQLProxy(t, dsn)
	db := testenv.OpenDB(t, dsn)
	commit := proxy.On(testenv.Prefix("COMMIT"), -1, testenv.Delay(0))
	ctx, cancel := context.WithCancel(t.Context())
	err := db.InTx(ctx, func(tx *sql.Tx) error {
		defer cancel()
		return add(ctx, tx, 0)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, mysqldb.ErrOutcomeUnknown) || commit.Hits() != 0 {
		t.Errorf("%v, %d COMMITs", err, commit.Hits())
	}
	want(t, direct.DB, "0", "SELECT n FROM counter")
}

// A COMMIT without an answer may or may not have happened: the error says so, it does not say which, and nothing is run again.
func TestACommitWithoutAnAnswerIsOfUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault testenv.Action
		n     string
	}{
		{"reply swallowed", testenv.SwallowReply(), "1"},
		{"cut before", testenv.CutBefore(), "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dsn, direct := counters(t, 1)
			proxy, dsn := testenv.BehindMySQLProxy(t, dsn)
			db := testenv.OpenDB(t, dsn)
			proxy.On(testenv.Prefix("COMMIT"), 1, c.fault)
			runs := 0
			err := db.InTx(t.Context(), func(tx *sql.Tx) error { runs++; return add(t.Context(), tx, 0) })
			if !errors.Is(err, mysqldb.ErrOutcomeUnknown) || !mysqldb.Unavailable(err) || runs != 1 {
				t.Errorf("%v after %d runs", err, runs)
			}
			want(t, direct.DB, c.n, "SELECT n FROM counter")
		})
	}
}

// An answer to COMMIT that says that the server was broken off is none.
func TestACommitThatWasKilledIsOfUnknownOutcome(t *testing.T) {
	dsn, direct := counters(t, 1)
	proxy, dsn := testenv.BehindMySQLProxy(t, dsn)
	db := testenv.OpenDB(t, dsn)
	gate := testenv.NewGate(t)
	proxy.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
	done := make(chan error)
	var id string
	go func() {
		done <- db.InTx(t.Context(), func(tx *sql.Tx) error {
			if err := tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
				return err
			}
			return add(t.Context(), tx, 0)
		})
	}()
	gate.WaitEntered(t, 1)
	exec(t, direct.DB, "KILL "+id)
	gate.Open()
	if err := <-done; !errors.Is(err, mysqldb.ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	want(t, direct.DB, "0", "SELECT n FROM counter")
}

// A 1205 undoes one statement only, so the whole transaction must go; and it is not run again, the caller has waited enough.
func TestALockWaitEndsTheTransaction(t *testing.T) {
	_, db := counters(t, 2)
	holder, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback()
	if err := add(t.Context(), holder, 1); err != nil {
		t.Fatal(err)
	}
	runs := 0
	err = db.InTx(t.Context(), func(tx *sql.Tx) error {
		runs++
		if err := add(t.Context(), tx, 0); err != nil {
			return err
		}
		return add(t.Context(), tx, 1)
	})
	if !mysqldb.IsLockWait(err) || !mysqldb.Unavailable(err) || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
	want(t, db.DB, "0", "SELECT n FROM counter WHERE id = 0")
}

// The server's own refusals come back as what they are, and leave nothing.
func TestARefusedStatementLeavesNothing(t *testing.T) {
	_, db := counters(t, 2)
	err := db.InTx(t.Context(), func(tx *sql.Tx) error {
		if err := add(t.Context(), tx, 0); err != nil {
			return err
		}
		_, err := tx.ExecContext(t.Context(), "INSERT INTO counter VALUES (1, 7)")
		return err
	})
	if !mysqldb.IsDuplicate(err, "PRIMARY") || mysqldb.Unavailable(err) {
		t.Errorf("got %v", err)
	}
	want(t, db.DB, "0", "SELECT SUM(n) FROM counter")
}

// When InTx returns its rows are free, even if database/sql rolls back by itself because the context ended: a lock held
// around InTx would otherwise be released first.
func TestARollbackHasEndedWhenInTxReturns(t *testing.T) {
	dsn, direct := counters(t, 1)
	proxy, dsn := testenv.BehindMySQLProxy(t, dsn)
	db := testenv.OpenDB(t, dsn)
	rollback := proxy.On(testenv.Prefix("ROLLBACK"), 1, testenv.Delay(300*time.Millisecond)) // long beside a return that does not wait
	ctx, cancel := context.WithCancel(t.Context())
	err := db.InTx(ctx, func(tx *sql.Tx) error {
		if err := add(ctx, tx, 0); err != nil {
			return err
		}
		cancel()
		rollback.Wait(t, 1) // sent by database/sql
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	ended := false
	for _, e := range proxy.Log() {
		ended = ended || e.Cmd == "ROLLBACK" && !e.Replied.IsZero()
	}
	if !ended {
		t.Error("InTx returned before the rollback had ended")
	}
	want(t, direct.DB, "0", "SELECT n FROM counter")
}
