package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/mysqldb"
)

const refundColumns = `refund_no, order_no, user_id, pay_no, channel, trade_no, amount, currency, status, reason, auto, polls, next_poll_at, decided_at, create_time`

func scanRefund(row mysqldb.Scanner) (Refund, error) {
	var (
		r             Refund
		next, decided sql.NullTime
	)
	err := row.Scan(&r.RefundNo, &r.OrderNo, &r.UserID, &r.PayNo, &r.Channel, &r.TradeNo, &r.Amount, &r.Currency, &r.Status,
		&r.Reason, &r.Auto, &r.Polls, &next, &decided, &r.CreatedAt)
	if next.Valid {
		r.NextPollAt = &next.Time
	}
	if decided.Valid {
		r.DecidedAt = &decided.Time
	}
	return r, err
}

func getRefund(ctx context.Context, q mysqldb.Querier, refundNo string) (*Refund, error) {
	r, err := scanRefund(q.QueryRowContext(ctx, `SELECT `+refundColumns+` FROM t_refund WHERE refund_no = ?`, refundNo))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read refund: %w", err)
	}
	return &r, nil
}

// dueRefunds returns refunds whose next call or look is due.
func dueRefunds(ctx context.Context, q mysqldb.Querier, now time.Time, limit int) ([]Refund, error) {
	list, err := mysqldb.Collect(scanRefund)(q.QueryContext(ctx, `
		SELECT `+refundColumns+` FROM t_refund WHERE next_poll_at <= ? ORDER BY next_poll_at LIMIT ?`, now, limit))
	if err != nil {
		return nil, fmt.Errorf("read refunds: %w", err)
	}
	return list, nil
}

// errRefundExists: there is a refund under this number.
var errRefundExists = errors.New("payment: this refund number is taken")

func insertRefund(ctx context.Context, tx *sql.Tx, r Refund, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_refund (refund_no, order_no, user_id, pay_no, channel, trade_no, amount, currency, status, reason, auto, next_poll_at, create_time, update_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.RefundNo, r.OrderNo, r.UserID, r.PayNo, r.Channel, r.TradeNo, r.Amount, r.Currency, r.Status, r.Reason, r.Auto, now, now, now)
	if mysqldb.IsDuplicate(err, "uk_refund_no") {
		return errRefundExists
	}
	if err != nil {
		return fmt.Errorf("insert refund: %w", err)
	}
	return nil
}

// decide moves a refund from one state to another by the channel's word. False: it is not in that state any more.
func decide(ctx context.Context, tx *sql.Tx, refundNo string, from, to RefundStatus, at, now time.Time) (bool, error) {
	return mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_refund SET status = ?, decided_at = ?, next_poll_at = NULL, update_time = ? WHERE refund_no = ? AND status = ?`,
		to, at, now, refundNo, from))
}

// countRefunded adds to what an attempt has given back; negative when a success is taken back.
func countRefunded(ctx context.Context, tx *sql.Tx, payNo string, amount int64, now time.Time) error {
	return mysqldb.ExpectOne(tx.ExecContext(ctx, `
		UPDATE t_payment SET refunded_amount = refunded_amount + ?, update_time = ? WHERE pay_no = ? AND refunded_amount + ? >= 0`,
		amount, now, payNo, amount))
}

// claimRefund takes the next call or look at a refund for this instance. False: another instance has it.
func claimRefund(ctx context.Context, db *mysqldb.DB, r Refund, next *time.Time) (bool, error) {
	return mysqldb.Matched(db.ExecContext(ctx, `UPDATE t_refund SET next_poll_at = ?, polls = polls + 1 WHERE refund_no = ? AND next_poll_at = ?`,
		next, r.RefundNo, r.NextPollAt))
}

// stopSending ends the calls for a refund whose outcome a person is asked about.
func stopSending(ctx context.Context, tx *sql.Tx, refundNo string) error {
	if err := mysqldb.ExpectOne(tx.ExecContext(ctx, `UPDATE t_refund SET next_poll_at = NULL WHERE refund_no = ?`, refundNo)); err != nil {
		return fmt.Errorf("stop looking at refund %s: %w", refundNo, err)
	}
	return nil
}

// paidItsOrder reports whether a refund returns the money that paid its order; late and double money is no affair of it.
func paidItsOrder(ctx context.Context, tx *sql.Tx, r Refund) (bool, error) {
	t, err := getTrade(ctx, tx, r.Channel, r.TradeNo)
	if err != nil {
		return false, err
	}
	if t == nil {
		return false, fmt.Errorf("refund %s returns trade %s, which is not there", r.RefundNo, r.TradeNo)
	}
	return t.Disposition == PaidOrder, nil
}
