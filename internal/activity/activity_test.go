package activity

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func newStore(t *testing.T) *Store {
	t.Helper()
	return &Store{DB: testenv.OpenDB(t, testenv.Database(t)), Now: now}
}

func sale() Activity {
	return Activity{ID: "spring", Title: "sale", StartsAt: now(), EndsAt: now().Add(time.Hour), Coupon: &Coupon{Template: "c10", Discount: 10, Limit: 3}}
}

func TestAnActivityIsKeptAsItWasPut(t *testing.T) {
	s := newStore(t)
	plain := sale()
	plain.ID, plain.Coupon = "plain", nil
	widest := Activity{
		ID: strings.Repeat("x", 64), Title: strings.Repeat("😀", 255), StartsAt: time.Unix(0, 0).UTC(),
		EndsAt: time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
		Coupon: &Coupon{Template: strings.Repeat("t", 64), Discount: math.MaxInt64, Limit: math.MaxInt64},
	} // B14: what passes the check fits its columns
	for _, a := range []Activity{sale(), plain, widest} {
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		for i := range 2 { // asking again is harmless, though nothing changes (B49)
			if created, err := s.Put(t.Context(), a); err != nil || created != (i == 0) {
				t.Errorf("%s: created %v, %v", a.ID, created, err)
			}
		}
		got, err := Get(t.Context(), s.DB, a.ID)
		if err != nil || got.ID != a.ID || got.Title != a.Title || !got.StartsAt.Equal(a.StartsAt) || !got.EndsAt.Equal(a.EndsAt) ||
			(got.Coupon == nil) != (a.Coupon == nil) || got.Coupon != nil && *got.Coupon != *a.Coupon {
			t.Errorf("got %+v, %v; want %+v", got, err, a)
		}
	}
	renamed := sale()
	renamed.Title, renamed.Coupon = "renamed", nil
	if created, err := s.Put(t.Context(), renamed); created || err != nil {
		t.Errorf("created %v, %v", created, err)
	}
	if got, err := Get(t.Context(), s.DB, "spring"); err != nil || got.Title != "renamed" || got.Coupon != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestTwentyCreatorsMakeOneActivity(t *testing.T) {
	s := newStore(t)
	created := make([]bool, 20)
	testenv.Together(len(created), func(i int) {
		var err error
		if created[i], err = s.Put(t.Context(), sale()); err != nil {
			t.Error(err)
		}
	})
	n := 0
	for _, c := range created {
		if c {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d say that they created it", n)
	}
}

// B102: ten claims at once of three coupons count three; and what is granted stays within the limit, whatever an operator puts.
func TestCouponsStayWithinTheirLimit(t *testing.T) {
	s := newStore(t)
	put := func(limit int64) error {
		a := sale()
		if a.Coupon.Limit = limit; limit == 0 {
			a.Coupon = nil
		}
		_, err := s.Put(t.Context(), a)
		return err
	}
	wantCode := func(what string, err error, code string) {
		t.Helper()
		if e, ok := apperr.As(err); !ok || e.Kind != apperr.Conflict || e.Code != code {
			t.Errorf("%s: %v, want %s", what, err, code)
		}
	}
	count := func() error {
		return s.DB.InTx(t.Context(), func(tx *sql.Tx) error { return CountCoupon(t.Context(), tx, "spring") })
	}
	if err := put(3); err != nil {
		t.Fatal(err)
	}
	var counted atomic.Int64
	testenv.Together(10, func(int) {
		if err := count(); err == nil {
			counted.Add(1)
		} else {
			wantCode("the fourth", err, "coupons_exhausted")
		}
	})
	if counted.Load() != 3 {
		t.Errorf("%d coupons are counted, want 3", counted.Load())
	}
	wantCode("a lower limit", put(2), "coupon_limit_too_low")
	wantCode("no coupon any more", put(0), "coupon_limit_too_low")
	if a, err := Get(t.Context(), s.DB, "spring"); err != nil || a.Coupon == nil || a.Coupon.Limit != 3 {
		t.Errorf("%+v, %v; want it as it was", a, err)
	}
	if err := errors.Join(put(3), put(4), count()); err != nil {
		t.Errorf("a higher limit: %v", err)
	}
	wantCode("the fifth", count(), "coupons_exhausted")
}

// B21: case matters in names.
func TestNamesThatDifferInCaseAreTwo(t *testing.T) {
	s := newStore(t)
	upper := sale()
	upper.ID = "SPRING"
	for _, a := range []Activity{sale(), upper} {
		if created, err := s.Put(t.Context(), a); !created || err != nil {
			t.Errorf("%s: created %v, %v", a.ID, created, err)
		}
	}
	_, err := Get(t.Context(), s.DB, "Spring")
	if e, ok := apperr.As(err); !ok || e.Kind != apperr.NotFound || e.Code != "activity_not_found" {
		t.Errorf("got %v", err)
	}
}

func TestIDsHaveOneForm(t *testing.T) {
	for id, ok := range map[string]bool{
		"a": true, "aZ09_-": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, "a ": false, "a:b": false, "{a}": false, "a.b": false, "café": false, "ß": false,
		"Ａ": false, "a\x00": false, "a/b": false, strings.Repeat("😀", 16): false,
	} {
		if err := ParseID(id); (err == nil) != ok || !ok && !apperr.Is(err, "activity_id_invalid") {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestAnActivityRunsFromItsStartToBeforeItsEnd(t *testing.T) {
	a := sale()
	for at, want := range map[time.Time]bool{
		a.StartsAt.Add(-time.Microsecond): false, a.StartsAt: true, a.EndsAt.Add(-time.Microsecond): true, a.EndsAt: false,
	} {
		if a.Running(at) != want {
			t.Errorf("at %v: %v", at, !want)
		}
	}
}

func TestActivitiesAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Activity){
		"no title":         func(a *Activity) { a.Title = "" },
		"long title":       func(a *Activity) { a.Title = strings.Repeat("x", 256) },
		"no start":         func(a *Activity) { a.StartsAt = time.Time{} },
		"no end":           func(a *Activity) { a.EndsAt = time.Time{} },
		"ends at start":    func(a *Activity) { a.EndsAt = a.StartsAt },
		"ends before":      func(a *Activity) { a.EndsAt = a.StartsAt.Add(-1) },
		"too early":        func(a *Activity) { a.StartsAt = time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC) },
		"too late":         func(a *Activity) { a.EndsAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"no template":      func(a *Activity) { a.Coupon.Template = "" },
		"template form":    func(a *Activity) { a.Coupon.Template = "a'b" },
		"no discount":      func(a *Activity) { a.Coupon.Discount = 0 },
		"negative":         func(a *Activity) { a.Coupon.Discount = -1 },
		"no coupons":       func(a *Activity) { a.Coupon.Limit = 0 },
		"negative coupons": func(a *Activity) { a.Coupon.Limit = -1 },
	} {
		a := sale()
		change(&a)
		if e, ok := apperr.As(a.Check()); !ok || e.Kind != apperr.Invalid || e.Code != "field_invalid" {
			t.Errorf("%s: %v", name, a.Check())
		}
	}
}

// B54: what is answered is what is stored: cut to microseconds, in UTC.
func TestPutAnswersWhatIsStored(t *testing.T) {
	s := newStore(t)
	router := chi.NewRouter()
	router.Put("/{activity_id}", web.Handle(s.PutHTTP))
	put := func(id, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		router.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodPut, "/"+id, strings.NewReader(body)))
		return w
	}
	const body = `{"title":"sale","starts_at":"2026-05-01T20:00:00.9999996+08:00","ends_at":"2026-06-01T00:00:00Z"}`
	const stored = `{"activity_id":"spring","title":"sale","starts_at":"2026-05-01T12:00:00.999999Z","ends_at":"2026-06-01T00:00:00Z"}` + "\n"
	for i, status := range []int{http.StatusCreated, http.StatusOK} {
		if w := put("spring", body); w.Code != status || w.Body.String() != stored {
			t.Errorf("put %d: %d %s", i+1, w.Code, w.Body)
		}
	}
	for id, body := range map[string]string{
		"a.b": body, "ok": `{}`, "ok2": `{"title":"x","starts_at":"yesterday","ends_at":"2026-06-01T00:00:00Z"}`,
		"ok3": strings.Replace(body, "{", `{"activity_id":"other",`, 1),
	} {
		if w := put(id, body); w.Code != http.StatusBadRequest {
			t.Errorf("%s %s: %d %s", id, body, w.Code, w.Body)
		}
	}
}
