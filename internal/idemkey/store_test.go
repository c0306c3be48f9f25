package idemkey

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	lease     = 90 * time.Second
	retention = 72 * time.Hour
)

// fixture is a store on a new database that has a table for effects, with a clock the test moves.
type fixture struct {
	*Store
	t   *testing.T
	dsn string

	mu  sync.Mutex
	now time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dsn: testenv.Database(t), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	f.Store = f.open(f.dsn)
	if _, err := f.DB.ExecContext(t.Context(), "CREATE TABLE effect (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, caller BIGINT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return f
}

// open returns one more store on the database, as another instance has it.
func (f *fixture) open(dsn string) *Store {
	return &Store{DB: testenv.OpenDB(f.t, dsn), Now: f.clock, Lease: lease, Retention: retention, Metrics: metrics.New()}
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

func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	if err := f.DB.QueryRowContext(f.t.Context(), query, args...).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (f *fixture) wantEffects(want int) {
	f.t.Helper()
	if got := f.count("SELECT COUNT(*) FROM effect"); got != want {
		f.t.Errorf("%d effects, want %d", got, want)
	}
}

func key(caller int64) Key {
	return Key{Caller: caller, Value: goodKey, Operation: "op", Fingerprint: "v1:request"}
}

// effect writes a row and answers with its id.
func effect(ctx context.Context, k Key) func(tx *sql.Tx) (web.Answer, error) {
	return func(tx *sql.Tx) (web.Answer, error) {
		res, err := tx.ExecContext(ctx, "INSERT INTO effect (caller) VALUES (?)", k.Caller)
		if err != nil {
			return web.Answer{}, err
		}
		id, err := res.LastInsertId()
		return web.Answer{
			Status: http.StatusCreated, ContentType: "application/json", Location: fmt.Sprintf("/effects/%d", id),
			Body: fmt.Appendf(nil, "{\"id\":%d, \"bytes\":\"é😀'\\\\\\\\\\u0000\"}\n", id),
		}, err
	}
}

func same(a, b web.Answer) bool {
	return a.Status == b.Status && a.ContentType == b.ContentType && a.Location == b.Location && string(a.Body) == string(b.Body)
}

func TestTheSameRequestGetsTheSameBytesAgain(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	first, err := f.Once(ctx, k, effect(ctx, k))
	if err != nil || first.Replay != web.FirstRun {
		t.Fatalf("%+v, %v", first, err)
	}
	for range 3 {
		again, err := f.open(f.dsn).Once(ctx, k, effect(ctx, k))
		if err != nil || !same(first, again) || again.Replay != web.Replayed {
			t.Errorf("%+v, %v; want the bytes of %+v", again, err, first)
		}
	}
	f.wantEffects(1)
	for outcome, want := range map[string]float64{metrics.Passed: 1, metrics.Replayed: 0} {
		if got := testutil.ToFloat64(f.Metrics.GuardHits("idempotency_key", "op", outcome)); got != want {
			t.Errorf("%s counted %v times, want %v", outcome, got, want)
		}
	}
}

// B01: a key is its caller's own.
func TestOneKeyOfTwoCallersIsTwoKeys(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	answers := make([]web.Answer, 40)
	testenv.Together(len(answers), func(i int) {
		k := key(int64(1001 + i%2))
		var err error
		if answers[i], err = f.Once(ctx, k, effect(ctx, k)); err != nil {
			t.Errorf("caller %d: %v", k.Caller, err)
		}
	})
	f.wantEffects(2)
	for i, a := range answers {
		if !same(a, answers[i%2]) {
			t.Errorf("caller %d: %s and %s", 1001+i%2, a.Body, answers[i%2].Body)
		}
	}
	if same(answers[0], answers[1]) {
		t.Error("two callers share an answer")
	}
	for caller, there := range map[int64]bool{1001: true, 1002: true, 1003: false} {
		if rec, err := f.Lookup(ctx, caller, goodKey); err != nil || (rec != nil) != there {
			t.Errorf("caller %d sees %+v, %v", caller, rec, err)
		}
	}
}

// B04: another request under a key is refused, and the record stays as it was.
func TestAnotherRequestUnderTheKeyIsRefused(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	first, err := f.Once(ctx, k, effect(ctx, k))
	if err != nil {
		t.Fatal(err)
	}
	other := k
	other.Fingerprint = "v1:other"
	_, err = f.Once(ctx, other, effect(ctx, other))
	if e, ok := apperr.As(err); !ok || e.Kind != apperr.KeyReused || e.Code != "idempotency_key_reused" || e.Retryable() {
		t.Errorf("got %v", err)
	}
	if again, err := f.Once(ctx, k, effect(ctx, k)); err != nil || !same(first, again) {
		t.Errorf("%+v, %v", again, err)
	}
	upper := k
	upper.Value = strings.ToUpper(k.Value) // B21: case matters
	if _, err := f.Once(ctx, upper, effect(ctx, upper)); err != nil {
		t.Error(err)
	}
	f.wantEffects(2)
}

func TestFiftyTwinsHaveOneEffectAndOneAnswer(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	stores := []*Store{f.Store, f.open(f.dsn)}
	answers := make([]web.Answer, 50)
	testenv.Together(len(answers), func(i int) {
		var err error
		if answers[i], err = stores[i%2].Once(ctx, k, effect(ctx, k)); err != nil {
			t.Errorf("twin %d: %v", i, err)
		}
	})
	f.wantEffects(1)
	firsts := 0
	for i, a := range answers {
		if !same(a, answers[0]) {
			t.Errorf("twin %d got %s, twin 0 %s", i, a.Body, answers[0].Body)
		}
		if a.Replay == web.FirstRun {
			firsts++
		}
	}
	if firsts != 1 {
		t.Errorf("%d answers say that they are the first", firsts)
	}
}

// A refusal of the business is kept although its transaction is rolled back (B08); nothing else is.
func TestOnlyTheBusinesssOwnRefusalIsKept(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	for i, c := range []struct {
		err  error
		kept bool
	}{
		{apperr.New(apperr.Conflict, "out_of_stock", "There is not enough left."), true},
		{apperr.New(apperr.Invalid, "x", "x"), false},
		{apperr.New(apperr.Unauthenticated, "x", "x"), false},
		{apperr.New(apperr.Forbidden, "x", "x"), false},
		{apperr.New(apperr.NotFound, "x", "x"), false},
		{apperr.New(apperr.InProgress, "x", "x"), false},
		{apperr.New(apperr.RateLimited, "x", "x"), false},
		{apperr.New(apperr.Unavailable, "x", "x"), false},
		{apperr.New(apperr.Internal, "x", "x"), false},
		{errors.New("boom"), false},
		{context.DeadlineExceeded, false},
		{mysqldb.ErrOutcomeUnknown, false},
	} {
		k := key(int64(2000 + i))
		refused, err := f.Once(ctx, k, func(tx *sql.Tx) (web.Answer, error) {
			if _, err := effect(ctx, k)(tx); err != nil {
				return web.Answer{}, err
			}
			return web.Answer{}, fmt.Errorf("create: %w", c.err)
		})
		if c.kept && (err != nil || refused.Status != 409 || refused.Replay != web.FirstRun || !strings.Contains(string(refused.Body), "out_of_stock")) ||
			!c.kept && !errors.Is(err, c.err) {
			t.Errorf("%v: %+v, %v", c.err, refused, err)
		}
		if n := f.count("SELECT COUNT(*) FROM t_idempotency_key WHERE caller_id = ?", k.Caller); (n == 1) != c.kept {
			t.Errorf("%v: %d records", c.err, n)
		}
		again, err := f.Once(ctx, k, effect(ctx, k))
		if err != nil || c.kept && !same(again, refused) || !c.kept && again.Status != 201 {
			t.Errorf("%v, sent again: %+v, %v", c.err, again, err)
		}
	}
	f.wantEffects(11) // each that was not kept has run the second time; no refused effect is left
}

// B48: an answer that does not fit its row is an error, and the effect goes with it.
func TestAnAnswerThatCannotBeStoredUndoesItsEffect(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	_, err := f.Once(ctx, k, func(tx *sql.Tx) (web.Answer, error) {
		a, err := effect(ctx, k)(tx)
		a.Location = strings.Repeat("x", 256)
		return a, err
	})
	if err == nil {
		t.Error("a location of 256 characters is stored")
	}
	f.wantEffects(0)
	if err := f.DB.InTx(ctx, func(tx *sql.Tx) error { return f.Finish(ctx, tx, k, web.Answer{Status: 200}) }); err == nil {
		t.Error("Finish without Begin is no error")
	}
	if n := f.count("SELECT COUNT(*) FROM t_idempotency_key"); n != 0 {
		t.Errorf("%d records", n)
	}
}

func TestAnAnswerIsDroppedAfterItsRetention(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	first, err := f.Once(ctx, k, effect(ctx, k))
	if err != nil {
		t.Fatal(err)
	}
	f.advance(retention - time.Microsecond)
	if again, err := f.Once(ctx, k, effect(ctx, k)); err != nil || !same(first, again) {
		t.Errorf("a microsecond before: %+v, %v", again, err)
	}
	f.advance(time.Microsecond)
	if rec, err := f.Lookup(ctx, 1001, k.Value); rec != nil || err != nil {
		t.Errorf("at the limit the owner still sees %+v, %v", rec, err)
	}
	other := k
	other.Fingerprint = "v1:other" // a new request may use the key then
	if again, err := f.Once(ctx, other, effect(ctx, other)); err != nil || again.Replay != web.FirstRun {
		t.Errorf("at the limit: %+v, %v", again, err)
	}
	f.wantEffects(2)
}

// A run that commits its claim before its effect, and dies, holds its key for the lease and no longer.
func TestADeadRunIsTakenOverAfterItsLease(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	if err := f.DB.InTx(ctx, func(tx *sql.Tx) error { return f.Begin(ctx, tx, k) }); err != nil {
		t.Fatal(err)
	}
	f.advance(lease - time.Microsecond)
	_, err := f.Once(ctx, k, effect(ctx, k))
	if e, ok := apperr.As(err); !ok || e.Code != "idempotency_in_progress" || e.RetryAfter <= 0 {
		t.Errorf("within the lease: %v", err)
	}
	if rec, err := f.Lookup(ctx, 1001, k.Value); err != nil || rec == nil || rec.Done {
		t.Errorf("its owner sees %+v, %v", rec, err)
	}
	f.advance(time.Microsecond)
	testenv.Together(20, func(i int) {
		if _, err := f.Once(ctx, k, effect(ctx, k)); err != nil {
			t.Errorf("heir %d: %v", i, err)
		}
	})
	f.wantEffects(1)
}

func TestSwitchedOffOrWithoutAKeyNothingIsKept(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	off := f.open(f.dsn)
	off.Disabled = true
	for name, run := range map[string]struct {
		store *Store
		key   Key
	}{"disabled": {off, key(1001)}, "no key": {f.Store, Key{}}} {
		for range 2 {
			a, err := run.store.Once(ctx, run.key, effect(ctx, run.key))
			if err != nil || a.Replay != web.NoKey || a.Status != 201 {
				t.Errorf("%s: %+v, %v", name, a, err)
			}
		}
		if a, err := run.store.Keep(ctx, run.key, web.Answer{Status: 409}); err != nil || a.Status != 409 || a.Replay != web.NoKey {
			t.Errorf("%s: Keep gives %+v, %v", name, a, err)
		}
	}
	_, err := f.Once(ctx, Key{}, func(*sql.Tx) (web.Answer, error) {
		return web.Answer{}, apperr.New(apperr.Conflict, "out_of_stock", "x")
	})
	if err != nil {
		t.Errorf("a refusal without a key: %v; its problem is the answer", err)
	}
	f.wantEffects(4)
	if n := f.count("SELECT COUNT(*) FROM t_idempotency_key"); n != 0 {
		t.Errorf("%d records", n)
	}
}
