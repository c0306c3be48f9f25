package inventory

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/mysqldb"
)

// Kind is a kind of movement. A cause moves a SKU at most once by each kind.
type Kind string

// The kinds of movements of an order's goods, and of an operator's.
const (
	Initial Kind = "initial" // the first stock of a SKU
	Adjust  Kind = "adjust"  // an operator puts goods on the shelf or takes them off
	Reserve Kind = "reserve" // an order holds goods: available -> reserved
	Release Kind = "release" // an unpaid order ends: reserved -> available
	Confirm Kind = "confirm" // an order is paid: reserved -> sold
	Return  Kind = "return"  // a paid order is refunded in full: sold -> available
)

// ErrRepeated: this cause has moved this SKU in this way before.
var ErrRepeated = errors.New("inventory: this movement was made before")

// ErrOutOfStock's code. The error is a decision of the business and final for its Idempotency-Key.
const codeOutOfStock = "out_of_stock"

// Line is a quantity of one SKU.
type Line struct {
	SKU      int64
	Quantity int64
}

// Move moves the goods of all lines for one cause (at most 64 ASCII characters), in the caller's transaction. SKUs are
// taken in ascending order, so that two causes with the same SKUs cannot lock each other out.
func Move(ctx context.Context, tx *sql.Tx, cause string, kind Kind, lines []Line, now time.Time) error {
	sorted := slices.SortedFunc(slices.Values(lines), func(a, b Line) int { return cmp.Compare(a.SKU, b.SKU) })
	for _, l := range sorted {
		d, err := deltas(kind, l.Quantity)
		if err != nil {
			return err
		}
		if err := move(ctx, tx, movement{cause: cause, kind: kind, sku: l.SKU, delta: d}, now); err != nil {
			return err
		}
	}
	return nil
}

// delta is what a movement adds to each figure of a SKU.
type delta struct{ available, reserved, sold int64 }

func (d delta) initial() int64 { return d.available + d.reserved + d.sold }

func deltas(kind Kind, n int64) (delta, error) {
	if n <= 0 {
		return delta{}, fmt.Errorf("inventory: %s of %d units", kind, n)
	}
	switch kind {
	case Reserve:
		return delta{available: -n, reserved: n}, nil
	case Release:
		return delta{available: n, reserved: -n}, nil
	case Confirm:
		return delta{reserved: -n, sold: n}, nil
	case Return:
		return delta{available: n, sold: -n}, nil
	default:
		return delta{}, fmt.Errorf("inventory: %q is not a movement of an order's goods", kind)
	}
}

type movement struct {
	cause  string
	kind   Kind
	sku    int64
	delta  delta
	reason string
}

// move writes the movement's row first: it is the guard against repeats, and it leaves the SKU's row, which everybody
// wants, locked for the shortest time.
func move(ctx context.Context, tx *sql.Tx, m movement, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, reason, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		m.cause, m.kind, m.sku, m.delta.available, m.delta.reserved, m.delta.sold, m.reason, now)
	if mysqldb.IsDuplicate(err, "uk_cause_kind") {
		return ErrRepeated
	}
	if err != nil {
		return fmt.Errorf("write stock movement: %w", err)
	}
	res, err := tx.ExecContext(ctx, `
		UPDATE t_sku SET available = available + ?, reserved = reserved + ?, sold = sold + ?, initial = initial + ?, update_time = ?
		WHERE sku_id = ? AND available + ? >= 0 AND reserved + ? >= 0 AND sold + ? >= 0`,
		m.delta.available, m.delta.reserved, m.delta.sold, m.delta.initial(), now,
		m.sku, m.delta.available, m.delta.reserved, m.delta.sold)
	if err != nil {
		return fmt.Errorf("move stock of SKU %d: %w", m.sku, err)
	}
	switch n, err := res.RowsAffected(); {
	case err != nil:
		return fmt.Errorf("move stock of SKU %d: %w", m.sku, err)
	case n == 1:
		return nil
	case m.delta.available < 0:
		return apperr.New(apperr.Conflict, codeOutOfStock, "There is not enough of SKU %d left.", m.sku)
	default:
		// More is given back, or confirmed, than was ever taken: a fault of ours that must not be papered over.
		return fmt.Errorf("inventory: %s of SKU %d for %s does not fit its stock", m.kind, m.sku, m.cause)
	}
}
