// Package ledger keeps the account as double-entry postings in t_ledger_entry: append-only, each posting sums to zero, and
// each cause can be posted once for each kind.
//
// A balance is never stored and never set ("balance = balance + 100" without a row of its own is how money doubles); it is
// the sum of entries, and an entry commits with the fact it records.
package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"example.com/oncepay/internal/money"
)

// Account is a place money is counted at.
type Account string

// Sales is what buyers paid for orders; Suspense is money that arrived and is nobody's sale: late, double or wrong.
const (
	Sales    Account = "sales"
	Suspense Account = "suspense"
)

// Channel is the account of what a payment channel owes us.
func Channel(name string) Account { return Account("channel:" + name) }

// The kinds of postings.
const (
	Pay        = "pay"         // money arrived
	Refund     = "refund"      // money went back
	RefundUndo = "refund_undo" // the channel took a refund's success back
)

// Transfer moves an amount from one account to another.
type Transfer struct {
	Cause    string // at most 64 bytes; with Kind unique
	Kind     string
	Debit    Account // receives
	Credit   Account // gives
	Amount   money.Amount
	Currency money.Currency
	OrderNo  string
}

// Post writes a transfer as two entries in the caller's transaction. The same cause and kind again is an error: the caller's
// own state check should have noticed.
func Post(ctx context.Context, tx *sql.Tx, t Transfer, now time.Time) error {
	if t.Amount <= 0 || t.Debit == t.Credit {
		return fmt.Errorf("ledger: no transfer of %d from %s to %s", t.Amount, t.Credit, t.Debit)
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_ledger_entry (cause, kind, account, amount, currency, order_no, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?), (?, ?, ?, ?, ?, ?, ?)`,
		t.Cause, t.Kind, t.Debit, t.Amount, t.Currency, t.OrderNo, now,
		t.Cause, t.Kind, t.Credit, -t.Amount, t.Currency, t.OrderNo, now)
	if err != nil {
		return fmt.Errorf("ledger: post %s of %s: %w", t.Kind, t.Cause, err)
	}
	return nil
}
