package inventory

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// shop is a service on a new database.
type shop struct {
	*Service
	t *testing.T
}

func newShop(t *testing.T) *shop {
	t.Helper()
	return &shop{&Service{DB: testenv.OpenDB(t, testenv.Database(t)), Now: now}, t}
}

func (s *shop) put(id, stock int64) {
	s.t.Helper()
	if _, created, err := s.Put(s.t.Context(), id, Definition{Title: "goods", Price: 100, Currency: "CNY", Stock: stock}); err != nil || !created {
		s.t.Fatalf("put SKU %d: created %v, %v", id, created, err)
	}
}

func (s *shop) move(cause string, kind Kind, lines ...Line) error {
	return s.DB.InTx(s.t.Context(), func(tx *sql.Tx) error { return Move(s.t.Context(), tx, cause, kind, lines, now()) })
}

// want asserts a SKU's figures, and that they are what its movements sum up to.
func (s *shop) want(id, available, reserved, sold int64) {
	s.t.Helper()
	got, err := Get(s.t.Context(), s.DB, id)
	if err != nil {
		s.t.Fatal(err)
	}
	if got.Available != available || got.Reserved != reserved || got.Sold != sold || got.Initial != available+reserved+sold {
		s.t.Errorf("SKU %d: %+v; want %d available, %d reserved, %d sold", id, got, available, reserved, sold)
	}
	var a, r, so int64
	err = s.DB.QueryRowContext(s.t.Context(), "SELECT SUM(available), SUM(reserved), SUM(sold) FROM t_stock_movement WHERE sku_id = ?", id).Scan(&a, &r, &so)
	if err != nil || a != available || r != reserved || so != sold {
		s.t.Errorf("SKU %d: movements sum up to %d, %d, %d (%v)", id, a, r, so, err)
	}
}

func TestEachKindMovesItsFigures(t *testing.T) {
	s := newShop(t)
	s.put(1, 10)
	s.want(1, 10, 0, 0)
	for _, step := range []struct {
		kind                      Kind
		cause                     string
		n                         int64
		available, reserved, sold int64
	}{
		{Reserve, "a", 4, 6, 4, 0},
		{Reserve, "b", 3, 3, 7, 0},
		{Release, "b", 3, 6, 4, 0},
		{Confirm, "a", 4, 6, 0, 4},
		{Return, "a", 4, 10, 0, 0},
		{Reserve, "c", 10, 0, 10, 0},
	} {
		if err := s.move(step.cause, step.kind, Line{1, step.n}); err != nil {
			t.Fatalf("%s: %v", step.kind, err)
		}
		s.want(1, step.available, step.reserved, step.sold)
	}
}

// Rule 47: +n with a unique record of the increment. A cause moves a SKU once for each kind, and a repeat moves nothing, not
// even the lines before the one that is repeated.
func TestARepeatedCauseMovesNothing(t *testing.T) {
	s := newShop(t)
	s.put(1, 10)
	s.put(2, 10)
	if err := errors.Join(s.move("other", Reserve, Line{1, 5}), s.move("other", Confirm, Line{1, 5}), s.move("another", Reserve, Line{1, 2})); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []Kind{Reserve, Confirm, Return} {
		if err := s.move("a", kind, Line{2, 3}); err != nil {
			t.Fatal(err)
		}
		if err := s.move("a", kind, Line{1, 1}, Line{2, 3}); !errors.Is(err, ErrRepeated) {
			t.Errorf("%s again: %v", kind, err)
		}
	}
	s.want(1, 3, 2, 5)
	s.want(2, 10, 0, 0)
	if err := s.move("b", Reserve, Line{1, 1}, Line{1, 1}); !errors.Is(err, ErrRepeated) {
		t.Errorf("one SKU on two lines: %v", err)
	}
	s.want(1, 3, 2, 5)
}

// B105: of a hundred that want one of ten, ten get it.
func TestAHundredBuyersOfTen(t *testing.T) {
	for _, c := range []struct{ quantity, got int64 }{{1, 10}, {3, 3}} {
		s := newShop(t)
		s.put(1, 10)
		var ok, out atomic.Int64
		testenv.Together(100, func(i int) {
			switch err := s.move(fmt.Sprint("o", i), Reserve, Line{1, c.quantity}); {
			case err == nil:
				ok.Add(1)
			case apperr.Is(err, "out_of_stock"):
				out.Add(1)
			default:
				t.Errorf("buyer %d: %v", i, err)
			}
		})
		if ok.Load() != c.got || out.Load() != 100-c.got {
			t.Errorf("quantity %d: %d got it, %d out of stock", c.quantity, ok.Load(), out.Load())
		}
		s.want(1, 10-c.got*c.quantity, c.got*c.quantity, 0)
	}
}

// B105: causes that name the same SKUs in opposite order take them in the same one, so nobody is locked out.
func TestOppositeOrdersDoNotLockEachOtherOut(t *testing.T) {
	s := newShop(t)
	s.put(1, 100)
	s.put(2, 100)
	testenv.Together(60, func(i int) {
		lines := []Line{{1, 1}, {2, 1}}
		if i%2 == 0 {
			lines[0], lines[1] = lines[1], lines[0]
		}
		if err := s.move(fmt.Sprint("o", i), Reserve, lines...); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	})
	s.want(1, 40, 60, 0)
	s.want(2, 40, 60, 0)
	families, err := s.DB.Metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tx_retries_total" {
			t.Errorf("transactions were run again: %v", f)
		}
	}
}

func TestOneLineThatIsOutOfStockUndoesAll(t *testing.T) {
	s := newShop(t)
	s.put(1, 10)
	s.put(2, 1)
	err := s.move("a", Reserve, Line{2, 2}, Line{1, 1})
	if e, ok := apperr.As(err); !ok || e.Code != "out_of_stock" || e.Kind != apperr.Conflict {
		t.Errorf("got %v", err)
	}
	s.want(1, 10, 0, 0)
	s.want(2, 1, 0, 0)
	if err := s.move("a", Reserve, Line{2, 1}, Line{1, 1}); err != nil {
		t.Errorf("the refused cause cannot come again: %v", err)
	}
}

// What gives back, or confirms, more than was taken is a fault of ours, not a decision of the business that a key keeps.
func TestMoreIsNeverGivenBackThanWasTaken(t *testing.T) {
	s := newShop(t)
	s.put(1, 10)
	if err := s.move("a", Reserve, Line{1, 2}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []Kind{Release, Confirm, Return} {
		err := s.move("b", kind, Line{1, 3})
		if _, ours := apperr.As(err); err == nil || ours || mysqldb.Unavailable(err) {
			t.Errorf("%s of 3 of 2: %v", kind, err)
		}
	}
	s.want(1, 8, 2, 0)
}

func TestQuantitiesAtTheEdges(t *testing.T) {
	s := newShop(t)
	s.put(1, MaxStock)
	for _, n := range []int64{0, -1, math.MinInt64} {
		for _, kind := range []Kind{Reserve, Release, Confirm, Return} {
			if err := s.move("a", kind, Line{1, n}); err == nil {
				t.Errorf("%s of %d is accepted", kind, n)
			}
		}
	}
	for _, kind := range []Kind{Initial, Adjust, "sell", ""} {
		if err := s.move("a", kind, Line{1, 1}); err == nil {
			t.Errorf("an order may move by %q", kind)
		}
	}
	for _, n := range []int64{MaxStock + 1, math.MaxInt64} {
		if err := s.move("a", Reserve, Line{1, n}); !apperr.Is(err, "out_of_stock") {
			t.Errorf("reserve %d: %v", n, err)
		}
	}
	if err := s.move("a", Release, Line{1, math.MaxInt64}); err == nil {
		t.Error("a release beyond int64 is accepted")
	}
	s.want(1, MaxStock, 0, 0)
	if err := s.move("a", Reserve, Line{1, MaxStock}); err != nil {
		t.Error(err)
	}
	s.want(1, 0, MaxStock, 0)
	if err := s.move("b", Reserve, Line{9, 1}); err == nil {
		t.Error("stock of a SKU that is not there was moved")
	}
}

// Whatever bypasses this package is stopped by the table itself.
func TestTheTableRefusesNegativeStock(t *testing.T) {
	s := newShop(t)
	s.put(1, 1)
	for _, column := range []string{"available", "reserved", "sold"} {
		if _, err := s.DB.ExecContext(t.Context(), "UPDATE t_sku SET "+column+" = -1"); err == nil {
			t.Errorf("%s = -1 is accepted", column)
		}
	}
}
