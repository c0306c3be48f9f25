package exception

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newStore(t *testing.T) *Store {
	t.Helper()
	return &Store{
		DB: testenv.OpenDB(t, testenv.Database(t)), Metrics: metrics.New(),
		Now: func() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) },
	}
}

func trouble(subject string) Exception {
	return Exception{
		Kind: UnknownRefund, Subject: subject, OrderNo: "O1", Channel: "mockpay", Amount: 9007199254740993, Currency: "CNY", Detail: "whose is it? 谁的？", BlocksOrder: true,
	}
}

func open(t *testing.T, s *Store, e Exception) error {
	t.Helper()
	return s.DB.InTx(t.Context(), func(tx *sql.Tx) error { return s.Open(t.Context(), tx, e) })
}

func list(t *testing.T, s *Store, status string) []Exception {
	t.Helper()
	all, err := s.List(t.Context(), status, web.Page{Limit: 20})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The same trouble is one row, met ten times at once or again later; other trouble is another.
func TestTheSameTroubleIsOneRow(t *testing.T) {
	s := newStore(t)
	failed := make([]error, 10)
	testenv.Together(len(failed), func(i int) { failed[i] = open(t, s, trouble("R1")) })
	if err := errors.Join(failed...); err != nil {
		t.Errorf("open: %v; want the losers to find the winner's row", err)
	}
	if err := open(t, s, trouble("R2")); err != nil {
		t.Fatal(err)
	}
	all := list(t, s, "")
	if len(all) != 2 {
		t.Fatalf("%d rows, want 2", len(all))
	}
	got, want := all[1], trouble("R1")
	want.ID, want.Status, want.CreatedAt = got.ID, "open", s.Now()
	if got != want {
		t.Errorf("kept %+v, want %+v", got, want)
	}
	if n := testutil.ToFloat64(s.Metrics.Exceptions(string(UnknownRefund))); n != 2 {
		t.Errorf("%v alarms, want one for each row", n)
	}
}

func TestAnExceptionLeavesWithItsTransaction(t *testing.T) {
	s := newStore(t)
	broken := errors.New("broken")
	err := s.DB.InTx(t.Context(), func(tx *sql.Tx) error {
		return errors.Join(s.Open(t.Context(), tx, trouble("R1")), broken)
	})
	if !errors.Is(err, broken) || len(list(t, s, "")) != 0 {
		t.Errorf("%v, and %d rows are left; want none", err, len(list(t, s, "")))
	}
}

// An order is blocked by open exceptions that say so, and by no other's.
func TestAnOrderIsBlockedUntilAPersonHasResolved(t *testing.T) {
	s := newStore(t)
	harmless := trouble("R0")
	harmless.BlocksOrder, harmless.OrderNo = false, "O2"
	for _, e := range []Exception{trouble("R1"), harmless} {
		if err := open(t, s, e); err != nil {
			t.Fatal(err)
		}
	}
	blocked := func(orderNo string) bool {
		b, err := s.Blocks(t.Context(), s.DB, orderNo)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if !blocked("O1") || blocked("O2") || blocked("O3") {
		t.Errorf("blocked: O1 %v, O2 %v, O3 %v; want O1 alone", blocked("O1"), blocked("O2"), blocked("O3"))
	}
	resolve := func(id, by int64, text string) (e Exception, err error) {
		err = s.DB.InTx(t.Context(), func(tx *sql.Tx) error {
			e, err = s.Resolve(t.Context(), tx, id, auth.Caller{UserID: by, Ops: true}, text)
			return err
		})
		return e, err
	}
	id := list(t, s, "open")[1].ID
	for by, text := range []string{"returned by hand", "something else"} {
		e, err := resolve(id, int64(by+1), text)
		if err != nil || e.Status != "resolved" || e.Resolution != "returned by hand" || e.ResolvedBy != 1 || e.ResolvedAt == nil {
			t.Errorf("resolve: %+v, %v; want the first resolution", e, err)
		}
	}
	if blocked("O1") || len(list(t, s, "open")) != 1 || len(list(t, s, "resolved")) != 1 {
		t.Errorf("blocked: %v, open %d, resolved %d; want false, 1, 1", blocked("O1"), len(list(t, s, "open")), len(list(t, s, "resolved")))
	}
	if _, err := resolve(id+100, 1, "x"); !apperr.Is(err, "exception_not_found") {
		t.Errorf("resolve what is not there: %v", err)
	}
	if err := open(t, s, trouble("R1")); err != nil || blocked("O1") {
		t.Errorf("the resolved trouble is met again: %v, blocked %v; want it to stay resolved", err, blocked("O1"))
	}
	alarms := testutil.ToFloat64(s.Metrics.Exceptions(string(UnknownRefund)))
	again := trouble("R1")
	again.Again, again.Detail = true, "once more"
	for range 2 {
		if err := open(t, s, again); err != nil {
			t.Fatal(err)
		}
	}
	e := list(t, s, "open")[1]
	if raised := testutil.ToFloat64(s.Metrics.Exceptions(string(UnknownRefund))) - alarms; raised != 1 || e.Detail != "once more" || e.Resolution != "" || e.ResolvedBy != 0 || e.ResolvedAt != nil {
		t.Errorf("new trouble of a resolved subject: %v alarms, %+v; want its row open again, and one alarm", raised, e)
	}
}
