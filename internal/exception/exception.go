// Package exception keeps what needs a person: money or messages that no rule may decide. It owns t_exception.
//
// Promise: an exception commits with the fact that caused it, the same trouble is one row however often it is met, and it
// stays until a person resolves it, which is recorded with who and how.
package exception

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// Kind says what kind of trouble it is.
type Kind string

// The kinds, and what a person does about each (docs/exceptions.md).
const (
	AmountMismatch     Kind = "amount_mismatch"      // money arrived in another amount, currency or for another merchant
	TradeConflict      Kind = "trade_conflict"       // a trade that one payment has is claimed for another
	UnknownPayment     Kind = "unknown_payment"      // a notice of a payment that never appeared
	UnknownRefund      Kind = "unknown_refund"       // a notice of a refund that is not ours
	RefundMismatch     Kind = "refund_mismatch"      // a refund's notice names other money than the refund does
	PaymentUnresolved  Kind = "payment_unresolved"   // the channel never said what became of a charge
	RefundUnresolved   Kind = "refund_unresolved"    // the channel never said what became of a refund
	AutoRefundFailed   Kind = "auto_refund_failed"   // late or double money could not be returned
	RefundUndone       Kind = "refund_undone"        // the channel took a refund's success back
	RefundAfterFailure Kind = "refund_after_failure" // a refund that had failed succeeded after all
)

const (
	statusOpen     = 0
	statusResolved = 1
)

// Exception is one piece of work for a person.
type Exception struct {
	ID          int64          `json:"id"`
	Kind        Kind           `json:"kind"`
	Subject     string         `json:"subject"`
	OrderNo     string         `json:"order_no"`
	Channel     string         `json:"channel"`
	Amount      money.Amount   `json:"amount"`
	Currency    money.Currency `json:"currency"`
	Detail      string         `json:"detail"`
	BlocksOrder bool           `json:"blocks_order"` // the order is neither shipped nor expired while this is open
	Status      string         `json:"status"`       // open or resolved
	Resolution  string         `json:"resolution"`
	ResolvedBy  int64          `json:"resolved_by"`
	CreatedAt   time.Time      `json:"created_at"`
	ResolvedAt  *time.Time     `json:"resolved_at"`
}

// Store reads and writes exceptions.
type Store struct {
	DB      *mysqldb.DB
	Metrics *metrics.Metrics
	Now     func() time.Time
}

// Open records trouble in the caller's transaction, and raises the alarm. Trouble that has a row already gets no second one.
func (s *Store) Open(ctx context.Context, tx *sql.Tx, e Exception) error {
	var id int64
	err := tx.QueryRowContext(ctx, `SELECT id FROM t_exception WHERE kind = ? AND subject = ?`, e.Kind, e.Subject).Scan(&id)
	if err == nil {
		return nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("look for exception: %w", err)
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO t_exception (kind, subject, order_no, channel, amount, currency, detail, blocks_order, status, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.Kind, e.Subject, e.OrderNo, e.Channel, e.Amount, e.Currency, cut(e.Detail), e.BlocksOrder, statusOpen, s.Now())
	if mysqldb.IsDuplicate(err, "uk_kind_subject") {
		return fmt.Errorf("exception %s %s was opened meanwhile: %w", e.Kind, e.Subject, mysqldb.ErrStale)
	}
	if err != nil {
		return fmt.Errorf("open exception: %w", err)
	}
	s.Metrics.ExceptionOpened(string(e.Kind))
	web.Log(ctx).Error("needs a person", "kind", e.Kind, "subject", e.Subject, "order_no", e.OrderNo, "amount", e.Amount, "currency", e.Currency)
	return nil
}

// maxDetail is the column's width in characters.
const maxDetail = 1024

// cut shortens a detail to its column: it may quote what a channel said, and must not keep the exception from being written.
func cut(detail string) string {
	runes := []rune(strings.ToValidUTF8(detail, "?"))
	if len(runes) > maxDetail {
		runes = runes[:maxDetail]
	}
	return string(runes)
}

// Blocks reports whether an open exception forbids shipping or expiring an order.
func (s *Store) Blocks(ctx context.Context, q mysqldb.Querier, orderNo string) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM t_exception WHERE order_no = ? AND status = ? AND blocks_order = 1`, orderNo, statusOpen).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("look for exceptions of order %s: %w", orderNo, err)
	}
	return n > 0, nil
}

// Resolved reports whether a person has resolved this trouble.
func (s *Store) Resolved(ctx context.Context, q mysqldb.Querier, kind Kind, subject string) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM t_exception WHERE kind = ? AND subject = ? AND status = ?`, kind, subject, statusResolved).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("look for exception: %w", err)
	}
	return n > 0, nil
}

const columns = `id, kind, subject, order_no, channel, amount, currency, detail, blocks_order, status, resolution, resolved_by, create_time, resolve_time`

func scan(row mysqldb.Scanner) (Exception, error) {
	var (
		e        Exception
		status   int
		resolved sql.NullTime
	)
	err := row.Scan(&e.ID, &e.Kind, &e.Subject, &e.OrderNo, &e.Channel, &e.Amount, &e.Currency, &e.Detail, &e.BlocksOrder, &status,
		&e.Resolution, &e.ResolvedBy, &e.CreatedAt, &resolved)
	e.Status = "open"
	if status == statusResolved {
		e.Status = "resolved"
	}
	if resolved.Valid {
		e.ResolvedAt = &resolved.Time
	}
	return e, err
}

// List returns exceptions newest first, all or only those of a status ("open", "resolved").
func (s *Store) List(ctx context.Context, status string, page web.Page) ([]Exception, error) {
	query, args := `SELECT `+columns+` FROM t_exception WHERE 1 = 1`, []any{}
	switch status {
	case "open":
		query, args = query+` AND status = ?`, append(args, statusOpen)
	case "resolved":
		query, args = query+` AND status = ?`, append(args, statusResolved)
	}
	if page.Before != 0 {
		query, args = query+` AND id < ?`, append(args, page.Before)
	}
	list, err := mysqldb.Collect(scan)(s.DB.QueryContext(ctx, query+` ORDER BY id DESC LIMIT ?`, append(args, page.Rows())...))
	if err != nil {
		return nil, fmt.Errorf("list exceptions: %w", err)
	}
	return list, nil
}

// Resolve closes an exception in the caller's transaction, and reports whether it did: resolving a resolved one changes nothing
// and is no error, the first resolution stands.
func (s *Store) Resolve(ctx context.Context, tx *sql.Tx, id int64, by auth.Caller, resolution string) (e Exception, resolved bool, err error) {
	res, err := tx.ExecContext(ctx, `
		UPDATE t_exception SET status = ?, resolution = ?, resolved_by = ?, resolve_time = ? WHERE id = ? AND status = ?`,
		statusResolved, resolution, by.UserID, s.Now(), id, statusOpen)
	if err != nil {
		return Exception{}, false, fmt.Errorf("resolve exception: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return Exception{}, false, fmt.Errorf("resolve exception: %w", err)
	}
	e, err = scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM t_exception WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return Exception{}, false, apperr.New(apperr.NotFound, "exception_not_found", "There is no exception %d.", id)
	}
	if err != nil {
		return Exception{}, false, fmt.Errorf("read exception: %w", err)
	}
	return e, n == 1, nil
}
