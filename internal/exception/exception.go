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
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
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
	BillChannelOnly    Kind = "bill_channel_only"    // a channel's bill has money that no rule can book
	BillLocalOnly      Kind = "bill_local_only"      // we have booked money that the channel's bill does not have
	BillAmountMismatch Kind = "bill_amount_mismatch" // a channel's bill has other money than we have booked
	BillRejected       Kind = "bill_rejected"        // a channel's bill is wrong, unreadable, or never came
	DeadLetter         Kind = "dead_letter"          // a consumer gave a message up
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

	Again bool `json:"-"` // to Open: it is new trouble also when the same subject had trouble that is resolved
}

// Store reads and writes exceptions.
type Store struct {
	DB      *mysqldb.DB
	Metrics *metrics.Metrics
	Now     func() time.Time
}

// Open records trouble in the caller's transaction, and raises the alarm. Trouble that has a row already gets no second one; if it
// comes again after it was resolved, its row is opened again.
func (s *Store) Open(ctx context.Context, tx *sql.Tx, e Exception) error {
	var status int
	err := tx.QueryRowContext(ctx, `SELECT status FROM t_exception WHERE kind = ? AND subject = ?`, e.Kind, e.Subject).Scan(&status)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = s.insert(ctx, tx, e)
	case err == nil && e.Again && status == statusResolved:
		err = mysqldb.ExpectOne(tx.ExecContext(ctx, `
			UPDATE t_exception SET status = ?, detail = ?, resolution = '', resolved_by = 0, resolve_time = NULL WHERE kind = ? AND subject = ?`,
			statusOpen, mysqldb.Cut(e.Detail), e.Kind, e.Subject))
	case err == nil:
		return nil
	}
	if err != nil {
		return fmt.Errorf("open exception: %w", err)
	}
	s.Metrics.ExceptionOpened(string(e.Kind))
	web.Log(ctx).Error("needs a person", "kind", e.Kind, "subject", e.Subject, "order_no", e.OrderNo, "amount", e.Amount, "currency", e.Currency)
	return nil
}

func (s *Store) insert(ctx context.Context, tx *sql.Tx, e Exception) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_exception (kind, subject, order_no, channel, amount, currency, detail, blocks_order, status, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.Kind, e.Subject, e.OrderNo, e.Channel, e.Amount, e.Currency, mysqldb.Cut(e.Detail), e.BlocksOrder, statusOpen, s.Now())
	if mysqldb.IsDuplicate(err, "uk_kind_subject") {
		err = fmt.Errorf("exception %s %s was opened meanwhile: %w", e.Kind, e.Subject, mysqldb.ErrStale)
	}
	return err
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

// Known reports whether there is or was trouble of a kind with a subject.
func (s *Store) Known(ctx context.Context, q mysqldb.Querier, kind Kind, subject string) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM t_exception WHERE kind = ? AND subject = ?`, kind, subject).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("look for exception: %w", err)
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

// Resolve closes an exception in the caller's transaction. Resolving a resolved one changes nothing and is no error: the first
// resolution stands.
func (s *Store) Resolve(ctx context.Context, tx *sql.Tx, id int64, by auth.Caller, resolution string) (Exception, error) {
	resolved, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_exception SET status = ?, resolution = ?, resolved_by = ?, resolve_time = ? WHERE id = ? AND status = ?`,
		statusResolved, resolution, by.UserID, s.Now(), id, statusOpen))
	if err != nil {
		return Exception{}, fmt.Errorf("resolve exception: %w", err)
	}
	e, err := scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM t_exception WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return Exception{}, apperr.New(apperr.NotFound, "exception_not_found", "There is no exception %d.", id)
	}
	if err != nil {
		return Exception{}, fmt.Errorf("read exception: %w", err)
	}
	if resolved {
		err = audit.Write(ctx, tx, by, "exception.resolve", fmt.Sprintf("exception:%d", id), string(e.Kind)+": "+resolution, s.Now())
	}
	return e, err
}

// ResolveSubject closes the trouble with a subject in the caller's transaction, if there is any that is open: what caused it has
// been put right elsewhere, and is recorded there.
func (s *Store) ResolveSubject(ctx context.Context, tx *sql.Tx, kind Kind, subject string, by auth.Caller, resolution string) error {
	var id int64
	err := tx.QueryRowContext(ctx, `SELECT id FROM t_exception WHERE kind = ? AND subject = ?`, kind, subject).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `
			UPDATE t_exception SET status = ?, resolution = ?, resolved_by = ?, resolve_time = ? WHERE id = ? AND status = ?`,
			statusResolved, mysqldb.Cut(resolution), by.UserID, s.Now(), id, statusOpen)
	}
	if err != nil {
		return fmt.Errorf("resolve exception %s %s: %w", kind, subject, err)
	}
	return nil
}
