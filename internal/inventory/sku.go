package inventory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
)

// SKU is a kind of goods and its stock.
type SKU struct {
	ID        int64          `json:"sku_id"`
	Title     string         `json:"title"`
	Price     money.Amount   `json:"price"`
	Currency  money.Currency `json:"currency"`
	Initial   int64          `json:"initial"`
	Available int64          `json:"available"`
	Reserved  int64          `json:"reserved"`
	Sold      int64          `json:"sold"`
}

// Movement is one change of stock, as an operator makes it.
type Movement struct {
	SKUID  int64  `json:"sku_id"`
	Kind   Kind   `json:"kind"`
	Cause  string `json:"cause"`
	Delta  int64  `json:"delta"`
	Reason string `json:"reason"`
	SKU    SKU    `json:"sku"` // after the movement
}

// Definition is what an operator says of a SKU.
type Definition struct {
	Title    string         `json:"title"`
	Price    money.Amount   `json:"price"`
	Currency money.Currency `json:"currency"`
	Stock    int64          `json:"stock"` // counts only at creation
}

const (
	maxText = 255 // characters; the columns' width
	// MaxStock keeps sums of stock far from int64's end, and is more than anybody has of anything.
	MaxStock = math.MaxInt32
)

// Check returns the first fault of a definition.
func (d Definition) Check() error {
	invalid := func(field, want string) error {
		return apperr.New(apperr.Invalid, "field_invalid", "%s %s.", field, want)
	}
	switch {
	case d.Title == "" || utf8.RuneCountInString(d.Title) > maxText:
		return invalid("title", fmt.Sprintf("has 1 to %d characters", maxText))
	case d.Price < 0:
		return invalid("price", "is not negative")
	case !d.Currency.Valid():
		return invalid("currency", "is an ISO 4217 code such as CNY")
	case d.Stock < 0 || d.Stock > MaxStock:
		return invalid("stock", fmt.Sprintf("is from 0 to %d", MaxStock))
	}
	return nil
}

// String shows what can be changed later, for the audit.
func (d Definition) String() string { return fmt.Sprintf("%q at %d %s", d.Title, d.Price, d.Currency) }

func skuSubject(id int64) string { return fmt.Sprintf("sku:%d", id) }

// Service is the operator's side of the inventory.
type Service struct {
	DB  *mysqldb.DB
	Now func() time.Time
}

// Put creates a SKU with its first stock, or renames and reprices an existing one, whose stock it leaves alone. It
// reports whether it created. Asking again is harmless.
func (s *Service) Put(ctx context.Context, id int64, d Definition) (sku SKU, created bool, err error) {
	err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
		now := s.Now()
		if err := insertSKU(ctx, tx, id, d, now); err != nil {
			return err
		}
		first := movement{cause: skuSubject(id), kind: Initial, sku: id, delta: delta{available: d.Stock}, reason: "first stock"}
		if err := move(ctx, tx, first, now); err != nil {
			return err
		}
		return audit.Write(ctx, tx, auth.From(ctx), "sku.create", skuSubject(id), d.String(), now)
	})
	if mysqldb.IsDuplicate(err, "PRIMARY") {
		err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
			if err := renameSKU(ctx, tx, id, d, s.Now()); err != nil {
				return err
			}
			return audit.Write(ctx, tx, auth.From(ctx), "sku.change", skuSubject(id), d.String(), s.Now())
		})
	} else {
		created = err == nil
	}
	if err != nil {
		return SKU{}, false, err
	}
	sku, err = Get(ctx, s.DB, id)
	return sku, created, err
}

// Adjust puts goods on the shelf (delta > 0) or takes them off it, once for each cause. It runs in the caller's
// transaction.
func (s *Service) Adjust(ctx context.Context, tx *sql.Tx, id, n int64, cause, reason string) (Movement, error) {
	if _, err := Get(ctx, tx, id); err != nil {
		return Movement{}, err
	}
	m := movement{cause: cause, kind: Adjust, sku: id, delta: delta{available: n}, reason: reason}
	if err := move(ctx, tx, m, s.Now()); err != nil {
		return Movement{}, err
	}
	if err := audit.Write(ctx, tx, auth.From(ctx), "stock.move", skuSubject(id), fmt.Sprintf("%+d: %s", n, reason), s.Now()); err != nil {
		return Movement{}, err
	}
	sku, err := Get(ctx, tx, id)
	return Movement{SKUID: id, Kind: Adjust, Cause: cause, Delta: n, Reason: reason, SKU: sku}, err
}

// Adjusted returns the movement that a cause has made, with the SKU as it is now.
func (s *Service) Adjusted(ctx context.Context, cause string) (Movement, error) {
	m := Movement{Kind: Adjust, Cause: cause}
	err := s.DB.QueryRowContext(ctx, `
		SELECT sku_id, available, reason FROM t_stock_movement WHERE cause = ? AND kind = ?`, cause, Adjust).
		Scan(&m.SKUID, &m.Delta, &m.Reason)
	if err != nil {
		return Movement{}, fmt.Errorf("read stock movement %s: %w", cause, err)
	}
	m.SKU, err = Get(ctx, s.DB, m.SKUID)
	return m, err
}

// Get returns a SKU, or NotFound with code "sku_not_found".
func Get(ctx context.Context, q mysqldb.Querier, id int64) (SKU, error) {
	var s SKU
	err := q.QueryRowContext(ctx, `
		SELECT sku_id, title, price, currency, initial, available, reserved, sold FROM t_sku WHERE sku_id = ?`, id).
		Scan(&s.ID, &s.Title, &s.Price, &s.Currency, &s.Initial, &s.Available, &s.Reserved, &s.Sold)
	if errors.Is(err, sql.ErrNoRows) {
		return SKU{}, apperr.New(apperr.NotFound, "sku_not_found", "There is no SKU %d.", id)
	}
	if err != nil {
		return SKU{}, fmt.Errorf("read SKU %d: %w", id, err)
	}
	return s, nil
}

func insertSKU(ctx context.Context, tx *sql.Tx, id int64, d Definition, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_sku (sku_id, title, price, currency, initial, available, reserved, sold, create_time, update_time)
		VALUES (?, ?, ?, ?, 0, 0, 0, 0, ?, ?)`, id, d.Title, d.Price, d.Currency, now, now)
	if err != nil {
		return fmt.Errorf("insert SKU %d: %w", id, err)
	}
	return nil
}

func renameSKU(ctx context.Context, tx *sql.Tx, id int64, d Definition, now time.Time) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `
		UPDATE t_sku SET title = ?, price = ?, currency = ?, update_time = ? WHERE sku_id = ?`,
		d.Title, d.Price, d.Currency, now, id))
	if err != nil {
		return fmt.Errorf("rename SKU %d: %w", id, err)
	}
	return nil
}
