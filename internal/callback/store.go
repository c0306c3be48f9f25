package callback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/web"
)

// Notice is a verified notice and what became of it.
type Notice struct {
	ID          int64            `json:"id"`
	Channel     string           `json:"channel"`
	NotifyID    string           `json:"notify_id"`
	Event       payment.Event    `json:"event"`
	MerchantID  string           `json:"merchant_id"`
	OutTradeNo  string           `json:"out_trade_no"`
	TradeNo     string           `json:"trade_no"`
	OutRefundNo string           `json:"out_refund_no"`
	Amount      money.Amount     `json:"amount"`
	Currency    money.Currency   `json:"currency"`
	OccurredAt  time.Time        `json:"occurred_at"`
	OrderNo     string           `json:"order_no"`
	Status      payment.Disposal `json:"status"`
	Layer       string           `json:"layer"`
	Outcome     string           `json:"outcome"`
	ReceivedAt  time.Time        `json:"received_at"`

	nextTryAt *time.Time
}

func (n Notice) fact() payment.Fact {
	return payment.Fact{
		Event: n.Event, Channel: n.Channel, Merchant: n.MerchantID, PayNo: n.OutTradeNo, TradeNo: n.TradeNo, RefundNo: n.OutRefundNo,
		Amount: n.Amount, Currency: n.Currency, OccurredAt: n.OccurredAt, Source: "notice",
	}
}

const columns = `id, channel, notify_id, event, merchant_id, out_trade_no, trade_no, out_refund_no, amount, currency, occurred_at,
	order_no, status, layer, outcome, received_at, next_try_at`

func scan(row mysqldb.Scanner) (Notice, error) {
	var (
		n    Notice
		next sql.NullTime
	)
	err := row.Scan(&n.ID, &n.Channel, &n.NotifyID, &n.Event, &n.MerchantID, &n.OutTradeNo, &n.TradeNo, &n.OutRefundNo, &n.Amount,
		&n.Currency, &n.OccurredAt, &n.OrderNo, &n.Status, &n.Layer, &n.Outcome, &n.ReceivedAt, &next)
	if next.Valid {
		n.nextTryAt = &next.Time
	}
	return n, err
}

// insert keeps a delivery. Each has a row of its own: notify_id is the channel's affair and guards nothing here.
func insert(ctx context.Context, tx *sql.Tx, n payment.Notice, body []byte, res payment.Result, now time.Time) error {
	var applied, next *time.Time
	switch res.Disposal {
	case payment.Applied:
		applied = &now
	case payment.Parked:
		at := now.Add(parkedRetry)
		next = &at
	}
	f := n.Fact
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_channel_notice (channel, notify_id, event, merchant_id, out_trade_no, trade_no, out_refund_no, amount, currency,
			occurred_at, order_no, status, layer, outcome, request_id, body, received_at, applied_at, next_try_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.Channel, n.NotifyID, f.Event, f.Merchant, f.PayNo, f.TradeNo, f.RefundNo, f.Amount, f.Currency,
		f.OccurredAt, res.OrderNo, res.Disposal, res.Layer, res.Outcome, web.RequestID(ctx), body, now, applied, next)
	if err != nil {
		return fmt.Errorf("keep notice: %w", err)
	}
	return nil
}

func get(ctx context.Context, q mysqldb.Querier, id int64) (*Notice, error) {
	n, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM t_channel_notice WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read notice: %w", err)
	}
	return &n, nil
}

// update notes what became of a notice. One that is not parked any more is not tried again.
func update(ctx context.Context, tx *sql.Tx, n Notice, now time.Time) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `
		UPDATE t_channel_notice SET order_no = ?, status = ?, layer = ?, outcome = ?,
			applied_at = CASE WHEN ? = 1 THEN ? ELSE applied_at END, next_try_at = CASE WHEN ? = 0 THEN next_try_at ELSE NULL END
		WHERE id = ?`,
		n.OrderNo, n.Status, n.Layer, n.Outcome, n.Status, now, n.Status, n.ID))
	if err != nil {
		return fmt.Errorf("note what became of notice %d: %w", n.ID, err)
	}
	return nil
}

func dueParked(ctx context.Context, q mysqldb.Querier, now time.Time, limit int) ([]Notice, error) {
	list, err := mysqldb.Collect(scan)(q.QueryContext(ctx, `
		SELECT `+columns+` FROM t_channel_notice WHERE next_try_at <= ? ORDER BY next_try_at LIMIT ?`, now, limit))
	if err != nil {
		return nil, fmt.Errorf("read notices: %w", err)
	}
	return list, nil
}

// claim takes a notice's next try for this instance. False: another has it.
func claim(ctx context.Context, db *mysqldb.DB, n Notice, next time.Time) (bool, error) {
	claimed, err := mysqldb.Matched(db.ExecContext(ctx, `UPDATE t_channel_notice SET next_try_at = ? WHERE id = ? AND next_try_at = ?`, next, n.ID, n.nextTryAt))
	if err != nil {
		return false, fmt.Errorf("claim notice %d: %w", n.ID, err)
	}
	return claimed, nil
}
