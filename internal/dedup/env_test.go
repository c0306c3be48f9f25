package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const topic = "order.paid"

// orderKey is a key in the form of an order's number.
const orderKey = "01900000000070008000000000000001"

// fixture is a service on a new database whose only consumer adds a row for each effect, with a clock of its own.
type fixture struct {
	*Service
	t   testing.TB
	dsn string

	mu    sync.Mutex
	now   time.Time
	fails func(m outbox.Stored) error // what the consumer says to a message, after its effect
	tries map[string]int              // of the consumer, by message
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, dsn: testenv.Database(t), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), tries: make(map[string]int)}
	db := testenv.OpenDB(t, f.dsn)
	f.Service = f.on(db)
	for _, table := range []string{"effect", "other"} {
		if _, err := db.Exec("CREATE TABLE " + table + " (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, consumer VARCHAR(32), msg_id VARCHAR(64), n INT NOT NULL DEFAULT 0)"); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// reset makes the fixture new for a subtest, without the cost of a new database.
func (f *fixture) reset(t *testing.T) {
	t.Helper()
	f.t, f.fails, f.tries = t, nil, make(map[string]int)
	f.Service = f.on(f.DB)
	for _, table := range []string{"effect", "other", "t_message_dedup", "t_outbox"} {
		if _, err := f.DB.Exec("TRUNCATE TABLE " + table); err != nil {
			t.Fatal(err)
		}
	}
}

// on is another instance, over another pool.
func (f *fixture) on(db *mysqldb.DB) *Service {
	m := metrics.New()
	return &Service{
		DB: db, Now: f.clock, Metrics: m, Log: slog.New(slog.DiscardHandler), Lease: time.Minute,
		Exceptions: &exception.Store{DB: db, Metrics: m, Now: f.clock}, Consumers: []Consumer{f.consumer("points")},
	}
}

func (f *fixture) consumer(name string) Consumer {
	return Consumer{Name: name, Topics: []string{topic}, Handle: func(ctx context.Context, tx *sql.Tx, m outbox.Stored) (string, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, msg_id) VALUES (?, ?)", name, m.ID); err != nil {
			return "", err
		}
		return "applied", f.tried(m)
	}}
}

// caller is a consumer whose effect is outside.
func (f *fixture) caller() Consumer {
	return Consumer{Name: "notify", Topics: []string{topic}, Call: func(_ context.Context, m outbox.Stored) error { return f.tried(m) }}
}

func (f *fixture) tried(m outbox.Stored) error {
	f.mu.Lock()
	f.tries[m.ID]++
	fails := f.fails
	f.mu.Unlock()
	if fails == nil {
		return nil
	}
	return fails(m)
}

// failing makes the consumer fail from now on; nil mends it.
func (f *fixture) failing(with func(m outbox.Stored) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = with
}

func (f *fixture) wantTries(msgID string, want int) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tries[msgID] != want {
		f.t.Errorf("the consumer had %s %d times, want %d", msgID, f.tries[msgID], want)
	}
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// owe puts messages into the outbox and returns them as they are kept.
func (f *fixture) owe(ids ...string) []outbox.Stored {
	f.t.Helper()
	err := f.DB.InTx(f.t.Context(), func(tx *sql.Tx) error {
		for _, id := range ids {
			if err := outbox.Add(f.t.Context(), tx, outbox.Message{ID: id, Topic: topic, Key: orderKey, Version: 2, Payload: id}, f.clock()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	list, err := outbox.Load(f.t.Context(), f.DB, ids...)
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

func (f *fixture) deliver(m outbox.Stored) {
	f.t.Helper()
	if err := f.Deliver(f.t.Context(), f.Consumers[0], m); err != nil {
		f.t.Errorf("deliver %s: %v", m.ID, err)
	}
}

func (f *fixture) retry() {
	f.t.Helper()
	if err := f.Retry(f.t.Context()); err != nil {
		f.t.Errorf("retry: %v", err)
	}
}

// bury lets a message fail until it is a dead letter, and returns it.
func (f *fixture) bury(m outbox.Stored) Record {
	f.t.Helper()
	f.failing(func(outbox.Stored) error { return fmt.Errorf("broken") })
	f.deliver(m)
	for range MaxTries - 1 {
		f.advance(firstPause << MaxTries)
		f.retry()
	}
	r := f.record(f.Consumers[0], m)
	if r.Status != Dead {
		f.t.Fatalf("after %d tries: %+v", r.Tries, r)
	}
	return r
}

func (f *fixture) record(c Consumer, m outbox.Stored) Record {
	f.t.Helper()
	r, err := find(f.t.Context(), f.DB, c.Name, m.ID)
	if err != nil {
		f.t.Fatal(err)
	}
	if r == nil {
		f.t.Fatalf("no record of %s", m.ID)
	}
	return *r
}

func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	if err := f.DB.QueryRow(query, args...).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *fixture) wantCount(want int, query string, args ...any) {
	f.t.Helper()
	if n := f.count(query, args...); n != want {
		f.t.Errorf("%d, want %d: %s", n, want, query)
	}
}

// wantOnce asserts that a message took effect once and is done, as outcome says.
func (f *fixture) wantOnce(m outbox.Stored) {
	f.t.Helper()
	f.wantCount(1, "SELECT COUNT(*) FROM effect WHERE msg_id = ?", m.ID)
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup WHERE msg_id = ? AND status = ? AND outcome = 'applied' AND done_time IS NOT NULL AND next_try_at IS NULL", m.ID, Done)
}

func hits(s *Service, c Consumer, outcome string) float64 {
	return testutil.ToFloat64(s.Metrics.GuardHits(guard, c.Name, outcome))
}

func inserting(ctx context.Context, r Record, now time.Time) func(tx *sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := insert(ctx, tx, r, now)
		return err
	}
}
