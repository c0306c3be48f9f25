package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// B44: the same message from 20 sides at once is one effect; later ones are repeats, and each consumer is for itself.
func TestAMessageTakesEffectOnceForEachConsumer(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	failed := make([]error, 20)
	testenv.Together(len(failed), func(i int) { failed[i] = f.Deliver(t.Context(), f.Consumers[0], m) })
	if err := errors.Join(failed...); err != nil {
		t.Errorf("deliver: %v", err)
	}
	f.wantOnce(m)
	if passed, repeats := hits(f.Service, f.Consumers[0], metrics.Passed), hits(f.Service, f.Consumers[0], metrics.Replayed); passed != 1 || repeats != 19 {
		t.Errorf("%v took effect and %v were repeats, want 1 and 19", passed, repeats)
	}
	if err := f.Deliver(t.Context(), f.consumer("coupons"), m); err != nil {
		t.Error(err)
	}
	f.wantCount(2, "SELECT COUNT(DISTINCT consumer) FROM effect")
	f.wantCount(2, "SELECT COUNT(*) FROM effect")
}

// B43: neighbouring ids in random order from 50 sides: plain inserts take no gap locks, all finish, and no row is lost.
func TestNeighboursDoNotLockEachOutForGood(t *testing.T) {
	f := newFixture(t)
	const workers, each, ids = 50, 40, 120
	failed := make([]error, workers)
	testenv.Together(workers, func(i int) {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		for range each {
			m := outbox.Stored{ID: fmt.Sprintf("m%04d", r.IntN(ids)), Topic: topic, Key: orderKey, CreatedAt: f.clock()}
			failed[i] = errors.Join(failed[i], f.Deliver(context.Background(), f.Consumers[0], m))
		}
	})
	if err := errors.Join(failed...); err != nil {
		t.Errorf("deliver: %v", err)
	}
	passed := int(hits(f.Service, f.Consumers[0], metrics.Passed))
	f.wantCount(passed, "SELECT COUNT(*) FROM effect")
	f.wantCount(passed, "SELECT COUNT(DISTINCT msg_id) FROM effect")
	f.wantCount(passed, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ?", Done)
	f.wantCount(passed, "SELECT COUNT(*) FROM t_message_dedup")
	if repeats := int(hits(f.Service, f.Consumers[0], metrics.Replayed)); passed < ids/2 || passed+repeats != workers*each {
		t.Errorf("%d took effect and %d were repeats, want %d in all", passed, repeats, workers*each)
	}
}

// B45: the second of two waits for the first one's commit, is refused, and finds its row; or, after a rollback, does the work.
func TestTheLoserFindsTheWinnersRow(t *testing.T) {
	f := newFixture(t)
	for _, winner := range []string{"commits", "rolls back"} {
		t.Run(winner, func(t *testing.T) {
			f.reset(t)
			m := f.owe("m1")[0]
			proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
			second := f.on(testenv.OpenDB(t, dsn))
			gate := testenv.NewGate(t)
			f.failing(func(outbox.Stored) error {
				f.failing(nil)
				if err := gate.Enter(context.Background()); err != nil || winner == "commits" {
					return err
				}
				return errors.New("broken")
			})
			var failed [2]error
			done := make(chan struct{})
			go func() { defer close(done); failed[0] = f.Deliver(context.Background(), f.Consumers[0], m) }()
			gate.WaitEntered(t, 1)
			insert := proxy.On(testenv.Contains("INSERT INTO t_message_dedup"), -1, testenv.Action{})
			go func() { insert.Wait(t, 1); gate.Open() }()
			failed[1] = second.Deliver(t.Context(), second.Consumers[0], m)
			<-done
			if err := errors.Join(failed[:]...); err != nil {
				t.Errorf("deliver: %v", err)
			}
			f.advance(firstPause)
			f.retry() // if the first has noted its failure before the second's insert
			f.wantOnce(m)
		})
	}
}

// deadlock makes tx the victim of a deadlock (1213) and returns that error: the other side has changed more rows.
func deadlock(f *fixture, tx *sql.Tx) error {
	ctx := context.Background()
	other, err := f.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer other.Rollback()
	var errs []error
	exec := func(tx *sql.Tx, query string) { _, err := tx.ExecContext(ctx, query); errs = append(errs, err) }
	exec(other, "INSERT INTO other (n) VALUES (1)"+strings.Repeat(", (1)", 200))
	exec(other, "UPDATE other SET n = 2 WHERE id = 1")
	exec(tx, "UPDATE other SET n = 2 WHERE id = 2")
	if err := errors.Join(errs...); err != nil {
		return err
	}
	waiting := make(chan error)
	go func() {
		_, err := other.ExecContext(ctx, "UPDATE other SET n = 2 WHERE id = 2")
		waiting <- err
	}()
	_, err = tx.ExecContext(ctx, "UPDATE other SET n = 2 WHERE id = 1")
	return errors.Join(err, <-waiting)
}

func is(err error, number uint16) bool {
	var me *mysql.MySQLError
	return errors.As(err, &me) && me.Number == number
}

// B47, B51, B84: whatever happens behind the mark, the message took effect and is done, or neither, and then it is worked on to the
// end. Nothing is stored singly.
func TestMarkAndEffectAreBothThereOrNeither(t *testing.T) {
	f := newFixture(t)
	refused := errors.New("refused")
	for name, tc := range map[string]struct {
		fault func(f *fixture, tx *sql.Tx, proxy *testenv.Proxy) error
		done  bool // already by the first delivery
	}{
		"error": {func(*fixture, *sql.Tx, *testenv.Proxy) error { return refused }, false},
		"panic": {func(*fixture, *sql.Tx, *testenv.Proxy) error { panic("at the disco") }, false},
		"1213":  {func(f *fixture, tx *sql.Tx, _ *testenv.Proxy) error { return deadlock(f, tx) }, true}, // run again from its start
		"1213 passed over": {func(f *fixture, tx *sql.Tx, _ *testenv.Proxy) error {
			if err := deadlock(f, tx); !is(err, 1213) {
				f.t.Errorf("no deadlock: %v", err)
			}
			return nil
		}, false},
		"1205": {func(f *fixture, tx *sql.Tx, _ *testenv.Proxy) error {
			return &mysql.MySQLError{Number: 1205, Message: "Lock wait timeout exceeded"}
		}, false},
		"cut before COMMIT": {func(_ *fixture, _ *sql.Tx, proxy *testenv.Proxy) error {
			proxy.On(testenv.Prefix("COMMIT"), 1, testenv.CutBefore())
			return nil
		}, false},
		"reply to COMMIT lost": {func(_ *fixture, _ *sql.Tx, proxy *testenv.Proxy) error {
			proxy.On(testenv.Prefix("COMMIT"), 1, testenv.SwallowReply())
			return nil
		}, true},
		"cut before the outcome": {func(_ *fixture, _ *sql.Tx, proxy *testenv.Proxy) error {
			proxy.On(testenv.Contains("SET outcome"), 1, testenv.CutBefore())
			return nil
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f.reset(t)
			m := f.owe("m1")[0]
			if _, err := f.DB.Exec("INSERT INTO other (id) VALUES (1), (2)"); err != nil {
				t.Fatal(err)
			}
			proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
			s := f.on(testenv.OpenDB(t, dsn))
			healthy, failed := s.Consumers[0].Handle, false
			s.Consumers[0].Handle = func(ctx context.Context, tx *sql.Tx, m outbox.Stored) (string, error) {
				outcome, err := healthy(ctx, tx, m)
				if err == nil && !failed {
					failed = true
					err = tc.fault(f, tx, proxy)
				}
				return outcome, err
			}
			if err := s.Deliver(t.Context(), s.Consumers[0], m); err != nil {
				t.Fatalf("deliver: %v", err)
			}
			if !tc.done {
				f.wantCount(0, "SELECT COUNT(*) FROM effect")
				if r := f.record(s.Consumers[0], m); r.Status != Waiting || r.Tries != 1 || r.LastError == "" || !r.nextTryAt.Equal(f.clock().Add(firstPause)) {
					t.Errorf("recorded %+v, want that it waits", r)
				}
				if err := s.Deliver(t.Context(), s.Consumers[0], m); err != nil { // a redelivery leaves it to Retry
					t.Error(err)
				}
				f.wantCount(0, "SELECT COUNT(*) FROM effect")
				f.advance(firstPause)
				if err := s.Retry(t.Context()); err != nil {
					t.Error(err)
				}
			}
			f.wantOnce(m)
			if err := s.Deliver(t.Context(), s.Consumers[0], m); err != nil {
				t.Error(err)
			}
			f.wantOnce(m)
		})
	}
}

// Nothing is acknowledged before it is durable what became of it.
func TestWhatCannotBeRecordedIsNotAcknowledged(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	s := f.on(testenv.OpenDB(t, dsn))
	s.Filter = NewFilter(10)
	f.failing(func(outbox.Stored) error { proxy.Down(); return nil })
	if err := s.Deliver(t.Context(), s.Consumers[0], m); err == nil {
		t.Error("acknowledged although the database is down")
	}
	f.wantCount(0, "SELECT (SELECT COUNT(*) FROM effect) + (SELECT COUNT(*) FROM t_message_dedup)")
	if s.Filter.maybe(Record{Consumer: "points", MsgID: m.ID}) {
		t.Error("the filter knows what the table does not")
	}
	f.failing(nil)
	proxy.Up()
	if err := s.Deliver(t.Context(), s.Consumers[0], m); err != nil {
		t.Error(err)
	}
	f.wantOnce(m)
}

// A failure is recorded although the try has used up its time.
func TestAFailureIsRecordedAfterTheDeadline(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.failed(ctx, Record{Consumer: "points", MsgID: m.ID, Topic: topic}, context.DeadlineExceeded); err != nil {
		t.Error(err)
	}
	if r := f.record(f.Consumers[0], m); r.Status != Waiting || r.Tries != 1 {
		t.Errorf("recorded %+v", r)
	}
}

// A try has a deadline, and goes on when the process stops.
func TestATryIsEndedByItsDeadlineAndNotByAStop(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	ctx, stop := context.WithCancel(t.Context())
	f.Consumers[0].Handle = func(ctx context.Context, _ *sql.Tx, _ outbox.Stored) (string, error) {
		stop()
		if ctx.Err() != nil {
			t.Error("the stop takes the work out of hand")
		}
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > workLimit {
			t.Error("a try may take for ever")
		}
		return "", context.DeadlineExceeded
	}
	if err := f.Deliver(ctx, f.Consumers[0], m); err != nil {
		t.Error(err)
	}
	if r := f.record(f.Consumers[0], m); r.Status != Waiting || r.Tries != 1 {
		t.Errorf("recorded %+v", r)
	}
}

// What an error says is kept, cut to its column and without what no column takes.
func TestAnErrorFitsItsColumn(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	f.failing(func(outbox.Stored) error { return errors.New("\xff谁" + strings.Repeat("é", 2000)) })
	f.deliver(m)
	if r := f.record(f.Consumers[0], m); r.LastError != "?谁"+strings.Repeat("é", mysqldb.TextWidth-2) {
		t.Errorf("kept %q", r.LastError)
	}
}
