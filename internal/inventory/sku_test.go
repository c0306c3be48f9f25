package inventory

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"testing"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

func TestStockCountsOnlyAtCreation(t *testing.T) {
	s := newShop(t)
	s.put(7, 5)
	sku, created, err := s.Put(t.Context(), 7, Definition{Title: "renamed é😀'", Price: 250, Currency: "JPY", Stock: 99})
	if err != nil || created || sku.Title != "renamed é😀'" || sku.Price != 250 || sku.Currency != "JPY" || sku.Available != 5 {
		t.Errorf("%+v, created %v, %v", sku, created, err)
	}
	again, created, err := s.Put(t.Context(), 7, Definition{Title: "renamed é😀'", Price: 250, Currency: "JPY"}) // B49: equal values
	if err != nil || created || again != sku {
		t.Errorf("%+v, created %v, %v", again, created, err)
	}
	s.want(7, 5, 0, 0)
}

func TestTwentyCreatorsMakeOneSKU(t *testing.T) {
	s := newShop(t)
	made := make([]bool, 20)
	testenv.Together(len(made), func(i int) {
		var err error
		if _, made[i], err = s.Put(t.Context(), 7, Definition{Title: "goods", Price: 1, Currency: "CNY", Stock: 5}); err != nil {
			t.Error(err)
		}
	})
	n := 0
	for _, m := range made {
		if m {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d say that they created it", n)
	}
	s.want(7, 5, 0, 0)
}

func TestDefinitionsAreChecked(t *testing.T) {
	good := Definition{Title: "x", Price: 0, Currency: "CNY", Stock: 0}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Definition){
		"title":    func(d *Definition) { d.Title = "" },
		"title ":   func(d *Definition) { d.Title = strings.Repeat("😀", 256) },
		"price":    func(d *Definition) { d.Price = -1 },
		"currency": func(d *Definition) { d.Currency = "cny" },
		"stock":    func(d *Definition) { d.Stock = -1 },
		"stock ":   func(d *Definition) { d.Stock = MaxStock + 1 },
	} {
		d := good
		change(&d)
		if e, ok := apperr.As(d.Check()); !ok || e.Kind != apperr.Invalid || !strings.HasPrefix(e.Detail, strings.TrimSpace(name)+" ") {
			t.Errorf("%s: %v", name, d.Check())
		}
	}
	// B14: what passes the check fits its columns.
	s := newShop(t)
	longest := Definition{Title: strings.Repeat("😀", 255), Price: math.MaxInt64, Currency: "CNY", Stock: MaxStock}
	if err := longest.Check(); err != nil {
		t.Fatal(err)
	}
	if sku, _, err := s.Put(t.Context(), math.MaxInt64, longest); err != nil || sku.Title != longest.Title || sku.Price != math.MaxInt64 {
		t.Errorf("%+v, %v", sku, err)
	}
}

func (s *shop) adjust(ctx context.Context, id, n int64, cause string) (m Movement, err error) {
	err = s.DB.InTx(ctx, func(tx *sql.Tx) error { m, err = s.Adjust(ctx, tx, id, n, cause, "delivery"); return err })
	return m, err
}

func TestAnAdjustmentMovesTheShelfOnceForItsCause(t *testing.T) {
	s, ctx := newShop(t), t.Context()
	s.put(1, 10)
	m, err := s.adjust(ctx, 1, 5, "s1:r:a")
	if err != nil || m.SKU.Available != 15 || m.SKU.Initial != 15 || m.Delta != 5 || m.Kind != Adjust {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := s.adjust(ctx, 1, 5, "s1:r:a"); !errors.Is(err, ErrRepeated) {
		t.Errorf("again: %v", err)
	}
	if again, err := s.Adjusted(ctx, "s1:r:a"); err != nil || again != m {
		t.Errorf("%+v, %v; want %+v", again, err, m)
	}
	if _, err := s.adjust(ctx, 1, -16, "s1:r:b"); !apperr.Is(err, "out_of_stock") {
		t.Errorf("below zero: %v", err)
	}
	if _, err := s.adjust(ctx, 1, -15, "s1:r:b"); err != nil {
		t.Errorf("down to zero: %v", err)
	}
	if _, err := s.adjust(ctx, 2, 1, "s1:r:c"); !apperr.Is(err, "sku_not_found") {
		t.Errorf("no such SKU: %v", err)
	}
	if m, err := s.Adjusted(ctx, "s1:r:z"); err == nil {
		t.Errorf("a cause that was not: %+v", m)
	}
	s.want(1, 0, 0, 0)
}

func TestReadingsOfAMissingSKUAreNotFound(t *testing.T) {
	s := newShop(t)
	_, err := Get(t.Context(), s.DB, 404)
	if e, ok := apperr.As(err); !ok || e.Kind != apperr.NotFound || e.Code != "sku_not_found" {
		t.Errorf("got %v", err)
	}
	s.DB.Close()
	if _, err := Get(t.Context(), s.DB, 404); err == nil || apperr.Is(err, "sku_not_found") {
		t.Errorf("a database that is gone says %v", err)
	}
}

func TestSKUIDsHaveOneForm(t *testing.T) {
	for s, ok := range map[string]bool{
		"1": true, "9223372036854775807": true, "0": false, "-1": false, "01": false, "+1": false, "1.0": false, "": false, "a": false,
		"9223372036854775808": false, "1 ": false, "１": false, "23_4": false,
	} {
		if id, err := ParseSKUID(s); (err == nil) != ok || !ok && !apperr.Is(err, "sku_id_invalid") {
			t.Errorf("%q: %d, %v", s, id, err)
		}
	}
}

// B27, B14
func TestCausesNeverChangeAndFitTheirColumn(t *testing.T) {
	long := idemkey.Key{Value: strings.Repeat("k", 255)}
	for want, got := range map[string]string{
		"s1:k:1:delivery-2026-05-01-a": adjustCause(1, idemkey.Key{Value: "delivery-2026-05-01-a"}, "r"),
		"s1:k:1:delivery~3a2026-05-01": adjustCause(1, idemkey.Key{Value: "delivery:2026-05-01"}, "r"),
		"s1:r:0190":                    adjustCause(1, idemkey.Key{}, "0190"),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if c := adjustCause(math.MaxInt64, long, ""); len(c) > bizkey.MaxLength || c == adjustCause(math.MaxInt64-1, long, "") {
		t.Errorf("%s", c)
	}
	s := newShop(t)
	var width int
	err := s.DB.QueryRowContext(t.Context(), `SELECT character_maximum_length FROM information_schema.columns
		WHERE table_schema = DATABASE() AND table_name = 't_stock_movement' AND column_name = 'cause'`).Scan(&width)
	if err != nil || width < bizkey.MaxLength {
		t.Errorf("the column is %d wide, %v", width, err)
	}
	// B48: one character more is an error, never cut.
	s.put(1, 10)
	err = s.move(strings.Repeat("x", width+1), Reserve, Line{1, 1})
	if err == nil || mysqldb.IsDuplicate(err, "uk_cause_kind") {
		t.Errorf("an over-long cause: %v", err)
	}
	s.want(1, 10, 0, 0)
}
