package idemkey

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

// patience ends a wait for something that should have happened long ago.
const patience = 20 * time.Second

type outcome struct {
	answer web.Answer
	err    error
}

// race starts a winner that stops inside its transaction, then a twin that comes to wait for it. Once the twin waits,
// finish decides what to do: it lets the winner go on, which then returns end, and receives what the twin came to.
func race(t *testing.T, f *fixture, end error, finish func(letGo func() outcome, twin <-chan outcome)) {
	t.Helper()
	ctx, k := t.Context(), key(1001)
	inside := testenv.NewGate(t)
	won, lost := make(chan outcome, 1), make(chan outcome, 1)
	go func() {
		a, err := f.Once(ctx, k, func(tx *sql.Tx) (web.Answer, error) {
			a, err := effect(ctx, k)(tx)
			return a, cmp.Or(err, inside.Enter(ctx), end)
		})
		won <- outcome{a, err}
	}()
	inside.WaitEntered(t, 1)
	second := f.open(f.dsn)
	go func() {
		a, err := second.Once(ctx, k, effect(ctx, k))
		lost <- outcome{a, err}
	}()
	testenv.Eventually(t, patience, "the twin's claim is at the server", func() error {
		if f.count(`SELECT COUNT(*) FROM information_schema.processlist
			WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '%INSERT INTO t_idempotency_key%'`) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	finish(func() outcome { inside.Open(); return <-won }, lost)
}

// raced is the usual race: the winner goes on as soon as the twin waits.
func raced(t *testing.T, f *fixture, end error) (winner, twin outcome) {
	t.Helper()
	race(t, f, end, func(letGo func() outcome, lost <-chan outcome) { winner, twin = letGo(), <-lost })
	return winner, twin
}

func TestATwinWaitsForTheWinnersCommitAndReplays(t *testing.T) {
	f := newFixture(t)
	winner, twin := raced(t, f, nil)
	if winner.err != nil || twin.err != nil || !same(winner.answer, twin.answer) || winner.answer.Replay != web.FirstRun || twin.answer.Replay != web.Replayed {
		t.Errorf("winner %+v, twin %+v", winner, twin)
	}
	f.wantEffects(1)
}

func TestATwinRunsWhenTheWinnerRollsBack(t *testing.T) {
	f := newFixture(t)
	broken := errors.New("broken")
	winner, twin := raced(t, f, broken)
	if !errors.Is(winner.err, broken) || twin.err != nil || twin.answer.Replay != web.FirstRun {
		t.Errorf("winner %+v, twin %+v", winner, twin)
	}
	f.wantEffects(1)
}

// The winner's refusal is the twin's too, though it commits only after the winner's effect was rolled back; or the twin ran
// in between, and then its success is the key's answer for both.
func TestWinnerAndTwinOfARefusalAgree(t *testing.T) {
	f := newFixture(t)
	winner, twin := raced(t, f, apperr.New(apperr.Conflict, "out_of_stock", "x"))
	if winner.err != nil || twin.err != nil || !same(winner.answer, twin.answer) {
		t.Errorf("winner %+v, twin %+v", winner, twin)
	}
	if made := f.count("SELECT COUNT(*) FROM effect"); made == 1 != (winner.answer.Status == 201) || made > 1 {
		t.Errorf("%d effects, the answer is %d", made, winner.answer.Status)
	}
}

func TestATwinWhoseWaitRunsOutIsToldThatTheFirstIsInProgress(t *testing.T) {
	f := newFixture(t)
	race(t, f, nil, func(letGo func() outcome, lost <-chan outcome) {
		twin := <-lost
		e, ok := apperr.As(twin.err)
		if !ok || e.Kind != apperr.InProgress || e.RetryAfter <= 0 || !mysqldb.IsLockWait(twin.err) {
			t.Errorf("twin %+v", twin)
		}
		if winner := letGo(); winner.err != nil || winner.answer.Status != 201 {
			t.Errorf("winner %+v", winner)
		}
	})
	f.wantEffects(1)
}

func TestALostCommitReplyIsFoundOutByTheRepeat(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	store := f.open(dsn)
	proxy.On(testenv.Prefix("COMMIT"), 1, testenv.SwallowReply())
	if _, err := store.Once(ctx, k, effect(ctx, k)); !errors.Is(err, mysqldb.ErrOutcomeUnknown) {
		t.Fatalf("got %v", err)
	}
	if a, err := store.Once(ctx, k, effect(ctx, k)); err != nil || a.Replay != web.Replayed || a.Status != 201 {
		t.Errorf("%+v, %v", a, err)
	}
	f.wantEffects(1)
}

func TestKeepGivesWayToAFasterTwin(t *testing.T) {
	f, ctx, k := newFixture(t), t.Context(), key(1001)
	first, err := f.Once(ctx, k, effect(ctx, k))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := f.Keep(ctx, k, web.Answer{Status: 409, ContentType: "application/problem+json", Body: []byte("{}")})
	if err != nil || !same(kept, first) || kept.Replay != web.Replayed {
		t.Errorf("%+v, %v", kept, err)
	}
}

// lookup asks GET /v1/idempotency-keys/{key} as a caller.
func lookup(t *testing.T, f *fixture, caller int64, value string) (int, map[string]any) {
	t.Helper()
	router := chi.NewRouter()
	router.Get("/v1/idempotency-keys/{key}", web.Handle(f.LookupHTTP))
	r := httptest.NewRequestWithContext(auth.With(context.Background(), auth.Caller{UserID: caller}), http.MethodGet, "/v1/idempotency-keys/"+value, nil)
	w := httptest.NewRecorder()
	router.ServeHTTP(w, r)
	var members map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &members); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return w.Code, members
}

func TestTheOwnerSeesStateResultAndExpiry(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	running, done, refused := key(1), key(2), key(3)
	if err := f.DB.InTx(ctx, func(tx *sql.Tx) error { return f.Begin(ctx, tx, running) }); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Once(ctx, done, effect(ctx, done)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Once(ctx, refused, func(*sql.Tx) (web.Answer, error) {
		return web.Answer{}, apperr.New(apperr.Conflict, "out_of_stock", "x")
	}); err != nil {
		t.Fatal(err)
	}
	for caller, want := range map[int64]struct {
		state    string
		status   any
		location any
	}{1: {"in_progress", nil, nil}, 2: {"done", 201.0, "/effects/1"}, 3: {"done", 409.0, nil}} {
		code, got := lookup(t, f, caller, goodKey)
		if code != 200 || got["key"] != goodKey || got["state"] != want.state || got["status"] != want.status || got["location"] != want.location ||
			got["created_at"] != "2026-05-01T12:00:00Z" || got["expires_at"] != "2026-05-04T12:00:00Z" || (got["result"] == nil) != (want.status == nil) {
			t.Errorf("caller %d: %d %v", caller, code, got)
		}
	}
	if code, got := lookup(t, f, 4, goodKey); code != 404 || got["code"] != "idempotency_key_not_found" {
		t.Errorf("a stranger sees %d %v", code, got)
	}
	if code, got := lookup(t, f, 1, "short"); code != 400 || got["code"] != "idempotency_key_invalid" {
		t.Errorf("a malformed key: %d %v", code, got)
	}
}
