package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/mysqldb"
)

const paymentColumns = `pay_no, order_no, user_id, channel, amount, currency, status, trade_no, pay_url, refunded_amount, polls, next_poll_at, create_time`

func scanPayment(row mysqldb.Scanner) (Payment, error) {
	var (
		p    Payment
		next sql.NullTime
	)
	err := row.Scan(&p.PayNo, &p.OrderNo, &p.UserID, &p.Channel, &p.Amount, &p.Currency, &p.Status, &p.TradeNo, &p.PayURL,
		&p.RefundedAmount, &p.Polls, &next, &p.CreatedAt)
	if next.Valid {
		p.NextPollAt = &next.Time
	}
	return p, err
}

func getPayment(ctx context.Context, q mysqldb.Querier, payNo string) (*Payment, error) {
	p, err := scanPayment(q.QueryRowContext(ctx, `SELECT `+paymentColumns+` FROM t_payment WHERE pay_no = ?`, payNo))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read payment: %w", err)
	}
	return &p, nil
}

// paymentsOf returns an order's attempts, oldest first.
func paymentsOf(ctx context.Context, q mysqldb.Querier, orderNo string) ([]Payment, error) {
	return queryPayments(ctx, q, `SELECT `+paymentColumns+` FROM t_payment WHERE order_no = ? ORDER BY id`, orderNo)
}

// duePayments returns attempts whose next look at the channel is due.
func duePayments(ctx context.Context, q mysqldb.Querier, now time.Time, limit int) ([]Payment, error) {
	return queryPayments(ctx, q, `SELECT `+paymentColumns+` FROM t_payment WHERE next_poll_at <= ? ORDER BY next_poll_at LIMIT ?`, now, limit)
}

func queryPayments(ctx context.Context, q mysqldb.Querier, query string, args ...any) ([]Payment, error) {
	list, err := mysqldb.Collect(scanPayment)(q.QueryContext(ctx, query, args...))
	if err != nil {
		return nil, fmt.Errorf("read payments: %w", err)
	}
	return list, nil
}

func insertPayment(ctx context.Context, tx *sql.Tx, p Payment, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_payment (pay_no, order_no, user_id, channel, amount, currency, status, open_key, next_poll_at, create_time, update_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		p.PayNo, p.OrderNo, p.UserID, p.Channel, p.Amount, p.Currency, p.Status, openKey(p.OrderNo, p.Channel), p.NextPollAt, now, now)
	if mysqldb.IsDuplicate(err, "uk_open") || mysqldb.IsDuplicate(err, "uk_pay_no") {
		return fmt.Errorf("payment %s met another: %w", p.PayNo, mysqldb.ErrStale)
	}
	if err != nil {
		return fmt.Errorf("insert payment: %w", err)
	}
	return nil
}

// answered records what the channel said of an open attempt. False: the attempt is not open any more, somebody knows better.
func answered(ctx context.Context, tx *sql.Tx, payNo string, status Status, tradeNo, payURL string, nextPoll *time.Time, now time.Time) (bool, error) {
	return mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_payment SET status = ?, trade_no = CASE WHEN ? = '' THEN trade_no ELSE ? END,
			pay_url = CASE WHEN ? = '' THEN pay_url ELSE ? END, next_poll_at = ?, update_time = ?
		WHERE pay_no = ? AND status IN (?, ?, ?)`,
		status, tradeNo, tradeNo, payURL, payURL, nextPoll, now, payNo, Created, Pending, Unknown))
}

// ended moves an open attempt to FAILED or CLOSED. False: it was not open.
func ended(ctx context.Context, tx *sql.Tx, payNo string, status Status, now time.Time) (bool, error) {
	return mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_payment SET status = ?, open_key = NULL, next_poll_at = NULL, update_time = ?
		WHERE pay_no = ? AND status IN (?, ?, ?)`, status, now, payNo, Created, Pending, Unknown))
}

// succeeded records that an attempt's money arrived, whatever was thought of it before. An attempt keeps its first trade.
func succeeded(ctx context.Context, tx *sql.Tx, p Payment, tradeNo string, paid bool, now time.Time) error {
	var paidOrder *string
	if paid {
		paidOrder = &p.OrderNo
	}
	// Not matching means that it has its first trade already.
	_, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_payment SET status = ?, trade_no = ?, open_key = NULL, paid_order_no = ?, next_poll_at = NULL, update_time = ?
		WHERE pay_no = ? AND status <> ?`, Succeeded, tradeNo, paidOrder, now, p.PayNo, Succeeded))
	if err != nil {
		return fmt.Errorf("payment %s succeeded: %w", p.PayNo, err)
	}
	return nil
}

// claimPayment takes the next look at an attempt for this instance by moving its time on. False: another instance has it.
func claimPayment(ctx context.Context, db *mysqldb.DB, p Payment, next *time.Time) (bool, error) {
	return mysqldb.Matched(db.ExecContext(ctx, `UPDATE t_payment SET next_poll_at = ?, polls = polls + 1 WHERE pay_no = ? AND next_poll_at = ?`,
		next, p.PayNo, p.NextPollAt))
}

// stopPolling ends the looks at an attempt whose outcome a person is asked about.
func stopPolling(ctx context.Context, tx *sql.Tx, payNo string) error {
	if err := mysqldb.ExpectOne(tx.ExecContext(ctx, `UPDATE t_payment SET next_poll_at = NULL WHERE pay_no = ?`, payNo)); err != nil {
		return fmt.Errorf("stop looking at payment %s: %w", payNo, err)
	}
	return nil
}

func getTrade(ctx context.Context, q mysqldb.Querier, channel, tradeNo string) (*received, error) {
	return oneTrade(q.QueryRowContext(ctx, `
		SELECT channel, trade_no, pay_no, order_no, amount, currency, disposition, refund_reserved
		FROM t_trade WHERE channel = ? AND trade_no = ?`, channel, tradeNo))
}

// payNoOfTrade returns the attempt a channel opened a trade for, or "".
func payNoOfTrade(ctx context.Context, q mysqldb.Querier, channel, tradeNo string) (string, error) {
	var payNo string
	err := q.QueryRowContext(ctx, `SELECT pay_no FROM t_payment WHERE channel = ? AND trade_no = ?`, channel, tradeNo).Scan(&payNo)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("read the trade's payment: %w", err)
	}
	return payNo, nil
}

// tradeThatPaid returns the money that paid an order, or nil.
func tradeThatPaid(ctx context.Context, q mysqldb.Querier, orderNo string) (*received, error) {
	return oneTrade(q.QueryRowContext(ctx, `
		SELECT channel, trade_no, pay_no, order_no, amount, currency, disposition, refund_reserved
		FROM t_trade WHERE order_no = ? AND disposition = ?`, orderNo, PaidOrder))
}

func oneTrade(row *sql.Row) (*received, error) {
	var t received
	err := row.Scan(&t.Channel, &t.TradeNo, &t.PayNo, &t.OrderNo, &t.Amount, &t.Currency, &t.Disposition, &t.RefundReserved)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read trade: %w", err)
	}
	return &t, nil
}

func insertTrade(ctx context.Context, tx *sql.Tx, t received, source string, occurredAt, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_trade (channel, trade_no, pay_no, order_no, amount, currency, disposition, source, refund_reserved, occurred_at, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		t.Channel, t.TradeNo, t.PayNo, t.OrderNo, t.Amount, t.Currency, t.Disposition, source, t.RefundReserved, occurredAt, now)
	if mysqldb.IsDuplicate(err, "uk_channel_trade") {
		return fmt.Errorf("trade %s came twice at once: %w", t.TradeNo, mysqldb.ErrStale)
	}
	if err != nil {
		return fmt.Errorf("insert trade: %w", err)
	}
	return nil
}

// reserveRefund takes an amount from what may still be refunded of a trade. False: there is not that much left. This one
// statement is the cap.
func reserveRefund(ctx context.Context, tx *sql.Tx, t received, amount int64) (bool, error) {
	return mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_trade SET refund_reserved = refund_reserved + ?
		WHERE channel = ? AND trade_no = ? AND refund_reserved <= amount - ?`, amount, t.Channel, t.TradeNo, amount)) // a sum could overflow
}

// freeRefund gives a failed refund's amount back to what may be refunded.
func freeRefund(ctx context.Context, tx *sql.Tx, r Refund) error {
	return mysqldb.ExpectOne(tx.ExecContext(ctx, `
		UPDATE t_trade SET refund_reserved = refund_reserved - ?
		WHERE channel = ? AND trade_no = ? AND refund_reserved >= ?`, r.Amount, r.Channel, r.TradeNo, r.Amount))
}
