package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

const columns = `id, order_no, user_id, sku_id, activity_id, attempt, biz_token, status, version, quantity, amount, discount,
	coupon_no, refunded_amount, refund_seq, currency, expires_at, paid_at, create_time`

func scan(row mysqldb.Scanner) (Order, error) {
	var (
		o    Order
		paid sql.NullTime
	)
	err := row.Scan(&o.ID, &o.OrderNo, &o.UserID, &o.SKUID, &o.ActivityID, &o.Attempt, &o.BizToken, &o.Status, &o.Version,
		&o.Quantity, &o.Amount, &o.Discount, &o.CouponNo, &o.RefundedAmount, &o.RefundSeq, &o.Currency, &o.ExpiresAt, &paid, &o.CreatedAt)
	if paid.Valid {
		o.PaidAt = &paid.Time
	}
	return o, err
}

// one returns the row, or nil when there is none.
func one(row *sql.Row, what string) (*Order, error) {
	o, err := scan(row)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read order by %s: %w", what, err)
	}
	return &o, nil
}

// Get returns an order by its number, or nil. Reads that decide something go to the primary like all others: there is no
// other (S0 §9.3).
func Get(ctx context.Context, q mysqldb.Querier, orderNo string) (*Order, error) {
	return one(q.QueryRowContext(ctx, `SELECT `+columns+` FROM t_order WHERE order_no = ?`, orderNo), "order_no")
}

func byBizToken(ctx context.Context, q mysqldb.Querier, bizToken string) (*Order, error) {
	return one(q.QueryRowContext(ctx, `SELECT `+columns+` FROM t_order WHERE biz_token = ?`, bizToken), "biz_token")
}

// lastInActivity returns the latest attempt of a person to buy a SKU in an activity, or nil.
func lastInActivity(ctx context.Context, q mysqldb.Querier, in CreateInput) (*Order, error) {
	return one(q.QueryRowContext(ctx, `
		SELECT `+columns+` FROM t_order WHERE user_id = ? AND sku_id = ? AND activity_id = ? ORDER BY attempt DESC LIMIT 1`,
		in.UserID, in.SKUID, in.ActivityID), "activity")
}

// list returns orders newest first; user 0 stands for everybody's.
func list(ctx context.Context, q mysqldb.Querier, user int64, page web.Page) ([]Order, error) {
	query, args := `SELECT `+columns+` FROM t_order WHERE 1 = 1`, []any{}
	if user != 0 {
		query, args = query+` AND user_id = ?`, append(args, user)
	}
	if page.Before != 0 {
		query, args = query+` AND id < ?`, append(args, page.Before)
	}
	orders, err := mysqldb.Collect(scan)(q.QueryContext(ctx, query+` ORDER BY id DESC LIMIT ?`, append(args, page.Rows())...))
	if err != nil {
		return nil, fmt.Errorf("list orders: %w", err)
	}
	return orders, nil
}

func insert(ctx context.Context, tx *sql.Tx, o Order) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_order (order_no, user_id, sku_id, activity_id, attempt, biz_token, status, version, quantity, amount, discount,
			coupon_no, currency, expires_at, next_close_at, create_time, update_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		o.OrderNo, o.UserID, o.SKUID, o.ActivityID, o.Attempt, o.BizToken, o.Status, o.Version, o.Quantity, o.Amount, o.Discount,
		o.CouponNo, o.Currency, o.ExpiresAt, o.ExpiresAt, o.CreatedAt, o.CreatedAt)
	if mysqldb.IsDuplicate(err, "uk_order_no") {
		// Two numbers clashed, which says nothing about the action: the whole transaction runs again with a new number.
		return fmt.Errorf("order_no %s is taken: %w", o.OrderNo, mysqldb.ErrStale)
	}
	if err != nil {
		return fmt.Errorf("insert order: %w", err)
	}
	return nil
}

// compareAndMove is the one update of a status: on the status and the version that were read. False: somebody was faster. An
// order that leaves INIT needs no closing any more.
func compareAndMove(ctx context.Context, tx *sql.Tx, o Order, to Status, paidAt *time.Time, now time.Time) (bool, error) {
	moved, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_order SET status = ?, version = version + 1, paid_at = COALESCE(?, paid_at), next_close_at = NULL, update_time = ?
		WHERE order_no = ? AND status = ? AND version = ?`,
		to, paidAt, now, o.OrderNo, o.Status, o.Version))
	if err != nil {
		return false, fmt.Errorf("move order %s to %s: %w", o.OrderNo, to, err)
	}
	return moved, nil
}

func insertHistory(ctx context.Context, tx *sql.Tx, o Order, from *Status, cause, actor string, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_order_history (order_no, version, from_status, to_status, cause, actor, request_id, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		o.OrderNo, o.Version, from, o.Status, cause, actor, web.RequestID(ctx), now)
	if err != nil {
		return fmt.Errorf("write history of order %s: %w", o.OrderNo, err)
	}
	return nil
}

// tookEffect reports whether a cause has moved an order before, whatever the order has become since.
func tookEffect(ctx context.Context, q mysqldb.Querier, orderNo, cause string) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM t_order_history WHERE order_no = ? AND cause = ?`, orderNo, cause).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("read history of order %s: %w", orderNo, err)
	}
	return n > 0, nil
}

// lockRow waits for the order's row and holds it to the transaction's end: whatever else wants to move or pay the order comes
// before or after.
func lockRow(ctx context.Context, tx *sql.Tx, orderNo string) (*Order, error) {
	return one(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM t_order WHERE order_no = ? FOR UPDATE`, orderNo), "order_no")
}

// Due is an unpaid order whose time is over, and the time that claims the look at it.
type Due struct {
	OrderNo     string
	nextCloseAt time.Time
}

func dueToClose(ctx context.Context, q mysqldb.Querier, now time.Time, limit int) ([]Due, error) {
	due, err := mysqldb.Collect(scanDue)(q.QueryContext(ctx, `
		SELECT order_no, next_close_at FROM t_order WHERE next_close_at <= ? ORDER BY next_close_at LIMIT ?`, now, limit))
	if err != nil {
		return nil, fmt.Errorf("read orders to close: %w", err)
	}
	return due, nil
}

func scanDue(row mysqldb.Scanner) (d Due, err error) {
	err = row.Scan(&d.OrderNo, &d.nextCloseAt)
	return d, err
}

func claimClose(ctx context.Context, db *mysqldb.DB, d Due, next time.Time) (bool, error) {
	claimed, err := mysqldb.Matched(db.ExecContext(ctx, `UPDATE t_order SET next_close_at = ? WHERE order_no = ? AND next_close_at = ?`, next, d.OrderNo, d.nextCloseAt))
	if err != nil {
		return false, fmt.Errorf("claim order to close: %w", err)
	}
	return claimed, nil
}

// addRefunded adds to what has gone back, and counts that it changed; the sum stays between nothing and what was paid.
func addRefunded(ctx context.Context, tx *sql.Tx, orderNo string, amount int64, now time.Time) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `
		UPDATE t_order SET refunded_amount = refunded_amount + ?, refund_seq = refund_seq + 1, update_time = ?
		WHERE order_no = ? AND refunded_amount + ? BETWEEN 0 AND amount`, amount, now, orderNo, amount))
	if err != nil {
		return fmt.Errorf("count refund of order %s: %w", orderNo, err)
	}
	return nil
}

// loseCoupon takes a coupon that is another order's by now off an order.
func loseCoupon(ctx context.Context, tx *sql.Tx, orderNo string, now time.Time) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `UPDATE t_order SET coupon_no = '', update_time = ? WHERE order_no = ?`, now, orderNo))
	if err != nil {
		return fmt.Errorf("take the coupon off order %s: %w", orderNo, err)
	}
	return nil
}

// statusBeforeRefund is where an order stood when the refund of all its money began.
func statusBeforeRefund(ctx context.Context, q mysqldb.Querier, orderNo string) (Status, error) {
	var s Status
	err := q.QueryRowContext(ctx, `
		SELECT from_status FROM t_order_history WHERE order_no = ? AND to_status = ? ORDER BY version DESC LIMIT 1`, orderNo, Refunding).Scan(&s)
	if err != nil {
		return 0, fmt.Errorf("read where order %s stood: %w", orderNo, err)
	}
	return s, nil
}
