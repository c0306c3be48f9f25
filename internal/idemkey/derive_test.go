package idemkey

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

const window = 10 * time.Minute

// deriving is an instance whose one route requires a key and writes an effect, behind Derive.
func deriving(s *Store) http.Handler {
	return s.Derive(window)(web.Handle(func(r *http.Request) (web.Answer, error) {
		var req struct {
			N int64 `json:"n"`
		}
		body, err := web.DecodeJSON(r, &req)
		if err != nil {
			return web.Answer{}, err
		}
		key, err := Required(r, "op", body)
		if err != nil {
			return web.Answer{}, err
		}
		return s.Once(r.Context(), key.ForMoney(), effect(r.Context(), key))
	}))
}

func send(h http.Handler, caller int64, method, target string, body io.Reader, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(auth.With(context.Background(), auth.Caller{UserID: caller}), method, target, body)
	for _, line := range header {
		r.Header.Add(Header, line)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func post(h http.Handler, body string) *httptest.ResponseRecorder {
	return send(h, 1001, http.MethodPost, "/v1/things?a=1", strings.NewReader(body))
}

// Two instances, forty equal requests without a key at once: one effect, one answer, one key. It stays so to the end of the window
// and no longer, which forty at once find out together as well.
func TestEqualRequestsWithoutAKeyAreOneWithinTheWindow(t *testing.T) {
	f := newFixture(t)
	instances := []http.Handler{deriving(f.Store), deriving(f.open(f.dsn))}
	together := func(want int) string {
		t.Helper()
		answers := make([]*httptest.ResponseRecorder, 40)
		testenv.Together(len(answers), func(i int) { answers[i] = post(instances[i%2], `{"n":1}`) })
		first := answers[0]
		for i, w := range answers {
			if w.Code != http.StatusCreated || w.Body.String() != first.Body.String() || w.Header().Get(DerivedHeader) != first.Header().Get(DerivedHeader) {
				t.Errorf("request %d: %d %s under %q", i, w.Code, w.Body, w.Header().Get(DerivedHeader))
			}
		}
		f.wantEffects(want)
		return first.Header().Get(DerivedHeader)
	}
	first := together(1)
	f.advance(window - time.Microsecond)
	if last := together(1); last != first {
		t.Errorf("the key became %s within the window", last)
	}
	f.advance(time.Microsecond)
	if next := together(2); next == first || next == "" {
		t.Errorf("the next window's key is %q: the order of today would be found a day later", next)
	}
}

// A window begins with its first request, not with the clock's ten minutes: there is no moment at which a repeat slips through.
func TestARepeatAtAnyTimeWithinTheWindowIsARepeat(t *testing.T) {
	f := newFixture(t)
	h := deriving(f.Store)
	f.advance(9*time.Minute + 59*time.Second)
	post(h, `{"n":1}`)
	for range 9 {
		f.advance(time.Minute)
		if w := post(h, `{"n":1}`); w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("at %s: %d %s", f.clock(), w.Code, w.Body)
		}
	}
	f.wantEffects(1)
}

func TestWhatDiffersGetsAKeyOfItsOwn(t *testing.T) {
	f := newFixture(t)
	h := deriving(f.Store)
	seen := make(map[string]bool)
	for _, c := range []struct {
		caller       int64
		target, body string
	}{
		{1001, "/v1/things", `{"n":1}`}, {1002, "/v1/things", `{"n":1}`}, {1001, "/v1/others", `{"n":1}`},
		{1001, "/v1/things?a=1", `{"n":1}`}, {1001, "/v1/things", `{"n":2}`},
	} {
		w := send(h, c.caller, http.MethodPost, c.target, strings.NewReader(c.body))
		key := w.Header().Get(DerivedHeader)
		if w.Code != http.StatusCreated || seen[key] {
			t.Errorf("%+v: %d %s under %q", c, w.Code, w.Body, key)
		}
		seen[key] = true
	}
	f.wantEffects(5)
	if w := send(h, 1001, http.MethodPost, "/v1/things", strings.NewReader(" {\"n\" : 1}\n")); w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same request in other clothes: %d %s", w.Code, w.Body)
	}
}

// B27: two builds side by side make one key of a request.
func TestDerivedKeysNeverChange(t *testing.T) {
	w := post(deriving(newFixture(t).Store), `{"n":1}`)
	const want = "derived:1001:v1:11feb2a2481bd0fa52b073946375a70036b937e0a28eff1d62f044be48e666db:1777636800000000"
	if got := w.Header().Get(DerivedHeader); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOnlyAPostWithoutAKeyGetsOne(t *testing.T) {
	f := newFixture(t)
	h := deriving(f.Store)
	if w := send(h, 1001, http.MethodPost, "/", strings.NewReader(`{"n":1}`), goodKey); w.Code != http.StatusCreated || w.Header().Get(DerivedHeader) != "" {
		t.Errorf("a key was sent: %d, derived %q", w.Code, w.Header().Get(DerivedHeader))
	}
	if f.count("SELECT COUNT(*) FROM t_idempotency_key WHERE idem_key = ?", goodKey) != 1 {
		t.Error("the sent key did not win")
	}
	for name, lines := range map[string][]string{"malformed": {"short"}, "empty": {""}, "two": {goodKey, goodKey}} {
		if w := send(h, 1001, http.MethodPost, "/", strings.NewReader(`{"n":1}`), lines...); w.Code != http.StatusBadRequest || w.Header().Get(DerivedHeader) != "" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		if w := send(h, 1001, method, "/", strings.NewReader(`{"n":1}`)); w.Code != http.StatusBadRequest || w.Header().Get(DerivedHeader) != "" {
			t.Errorf("%s: %d, derived %q", method, w.Code, w.Header().Get(DerivedHeader))
		}
	}
	f.Disabled = true
	if w := post(h, `{"n":1}`); w.Code != http.StatusBadRequest || w.Header().Get(DerivedHeader) != "" {
		t.Errorf("switched off: %d, derived %q", w.Code, w.Header().Get(DerivedHeader))
	}
	f.wantEffects(1)
}

// The handler reads the whole body, and says itself what is wrong with it.
func TestTheHandlerStillJudgesTheBody(t *testing.T) {
	f := newFixture(t)
	h := deriving(f.Store)
	broken := io.MultiReader(strings.NewReader(`{"n":`), iotest.ErrReader(io.ErrUnexpectedEOF))
	for name, c := range map[string]struct {
		body io.Reader
		code int
	}{
		"largest":   {strings.NewReader(`{"n":1` + strings.Repeat(" ", web.MaxBody-7) + "}"), http.StatusCreated},
		"too large": {strings.NewReader(`{"n":1` + strings.Repeat(" ", web.MaxBody-6) + "}"), http.StatusRequestEntityTooLarge},
		"huge":      {bytes.NewReader(make([]byte, 10*web.MaxBody)), http.StatusRequestEntityTooLarge},
		"malformed": {strings.NewReader(`{"n":1`), http.StatusBadRequest},
		"broken":    {broken, http.StatusBadRequest},
	} {
		w := send(h, 1001, http.MethodPost, "/"+strings.ReplaceAll(name, " ", ""), c.body)
		if w.Code != c.code || (w.Header().Get(DerivedHeader) != "") != (c.code == http.StatusCreated) {
			t.Errorf("%s: %d %s, derived %q", name, w.Code, w.Body, w.Header().Get(DerivedHeader))
		}
	}
	f.wantEffects(1)
}

// Not the store's retention, not that of money; but a run that may last as long as its lease does not lose its record before.
func TestRecordsUnderDerivedKeysLastForTheWindow(t *testing.T) {
	f := newFixture(t)
	for derived, want := range map[time.Duration]time.Duration{window: window, time.Second: lease, 0: MoneyRetention} {
		if got := f.retention(Key{derived: derived}.ForMoney()); got != want {
			t.Errorf("window %s: kept for %s, want %s", derived, got, want)
		}
	}
	post(deriving(f.Store), `{"n":1}`)
	if n := f.count("SELECT COUNT(*) FROM t_idempotency_key WHERE expires_at = ?", f.clock().Add(window)); n != 2 {
		t.Errorf("%d rows end with the window, want its own and the record", n)
	}
	f.advance(window)
	if err := f.Reap(t.Context()); err != nil || f.count("SELECT COUNT(*) FROM t_idempotency_key") != 0 {
		t.Errorf("%v, and %d rows are left", err, f.count("SELECT COUNT(*) FROM t_idempotency_key"))
	}
}

// A window whose COMMIT had no reply is found again; without a database nothing runs without a key.
func TestALostReplyKeepsTheWindow(t *testing.T) {
	f := newFixture(t)
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	h := deriving(f.open(dsn))
	proxy.On(testenv.Prefix("COMMIT"), 1, testenv.SwallowReply())
	if w := post(h, `{"n":1}`); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.wantEffects(0)
	f.advance(time.Second)
	if w := post(h, `{"n":1}`); w.Code != http.StatusCreated || !strings.HasSuffix(w.Header().Get(DerivedHeader), ":1777636800000000") {
		t.Errorf("%d under %q", w.Code, w.Header().Get(DerivedHeader))
	}
	f.wantEffects(1)
}

// The guarded statements notice that a twin was faster.
func TestOneOfTwoOpensAWindow(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	tx, err := f.DB.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	began := f.clock()
	open := func() error { return f.openWindow(ctx, tx, 1001, "~w", "v1:x", began, began.Add(window)) }
	renew := func() error {
		return f.renewWindow(ctx, tx, 1001, "~w", began.Add(window), began.Add(window), began.Add(2*window))
	}
	if err := errors.Join(open(), renew()); err != nil {
		t.Fatal(err)
	}
	for name, again := range map[string]func() error{"open": open, "renew": renew} {
		if err := again(); !errors.Is(err, mysqldb.ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
