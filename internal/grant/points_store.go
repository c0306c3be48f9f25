package grant

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// orderPoints is what an order has earned by the newest message about its money.
type orderPoints struct {
	OrderNo   string
	UserID    int64
	RefundSeq int
	Points    int64
}

// getOrderPoints returns an order's row, or nil.
func getOrderPoints(ctx context.Context, q mysqldb.Querier, orderNo string) (*orderPoints, error) {
	var p orderPoints
	err := q.QueryRowContext(ctx, `SELECT order_no, user_id, refund_seq, points FROM t_order_points WHERE order_no = ?`, orderNo).
		Scan(&p.OrderNo, &p.UserID, &p.RefundSeq, &p.Points)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read points of order %s: %w", orderNo, err)
	}
	return &p, nil
}

func insertOrderPoints(ctx context.Context, tx *sql.Tx, p orderPoints, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_order_points (order_no, user_id, refund_seq, points, update_time) VALUES (?, ?, ?, ?, ?)`,
		p.OrderNo, p.UserID, p.RefundSeq, p.Points, now)
	if mysqldb.IsDuplicate(err, "PRIMARY") {
		return fmt.Errorf("order %s was heard of meanwhile: %w", p.OrderNo, mysqldb.ErrStale)
	}
	if err != nil {
		return fmt.Errorf("insert points of order %s: %w", p.OrderNo, err)
	}
	return nil
}

// moveOrderPoints changes an order's row if it still is the one that was read.
func moveOrderPoints(ctx context.Context, tx *sql.Tx, readSeq int, p orderPoints, now time.Time) error {
	moved, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_order_points SET refund_seq = ?, points = ?, update_time = ? WHERE order_no = ? AND refund_seq = ?`,
		p.RefundSeq, p.Points, now, p.OrderNo, readSeq))
	if err != nil {
		return fmt.Errorf("move points of order %s: %w", p.OrderNo, err)
	}
	if !moved {
		return fmt.Errorf("order %s was heard of meanwhile: %w", p.OrderNo, mysqldb.ErrStale)
	}
	return nil
}

// insertEntry writes why a balance changes. errRepeated: this cause has changed it before.
func insertEntry(ctx context.Context, tx *sql.Tx, e Entry) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_point_entry (user_id, cause, kind, delta, order_no, create_time) VALUES (?, ?, ?, ?, ?, ?)`,
		e.UserID, e.Cause, e.Kind, e.Delta, e.OrderNo, e.CreatedAt)
	if mysqldb.IsDuplicate(err, "uk_cause_kind") {
		return fmt.Errorf("points for %s: %w", e.Cause, errRepeated)
	}
	if err != nil {
		return fmt.Errorf("write point entry: %w", err)
	}
	return nil
}

// addPoints changes a balance, which need not exist yet and may fall below zero. Its entry is in the same transaction.
func addPoints(ctx context.Context, tx *sql.Tx, userID, delta int64, now time.Time) error {
	changed, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_point_account SET balance = balance + ?, update_time = ? WHERE user_id = ?`, delta, now, userID))
	if err != nil {
		return fmt.Errorf("add points of user %d: %w", userID, err)
	}
	if changed {
		return nil
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO t_point_account (user_id, balance, update_time) VALUES (?, ?, ?)`, userID, delta, now)
	if mysqldb.IsDuplicate(err, "PRIMARY") {
		return fmt.Errorf("user %d got an account meanwhile: %w", userID, mysqldb.ErrStale)
	}
	if err != nil {
		return fmt.Errorf("open point account of user %d: %w", userID, err)
	}
	return nil
}

// spendPoints takes points from a balance that holds them. False: it does not.
func spendPoints(ctx context.Context, tx *sql.Tx, userID, points int64, now time.Time) (bool, error) {
	spent, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_point_account SET balance = balance - ?, update_time = ? WHERE user_id = ? AND balance >= ?`, points, now, userID, points))
	if err != nil {
		return false, fmt.Errorf("spend points of user %d: %w", userID, err)
	}
	return spent, nil
}

// getBalance returns a person's points; who never had any has 0.
func getBalance(ctx context.Context, q mysqldb.Querier, userID int64) (balance int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT balance FROM t_point_account WHERE user_id = ?`, userID).Scan(&balance)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("read points of user %d: %w", userID, err)
	}
	return balance, nil
}

func scanEntry(row mysqldb.Scanner) (e Entry, err error) {
	err = row.Scan(&e.ID, &e.UserID, &e.Cause, &e.Kind, &e.Delta, &e.OrderNo, &e.CreatedAt)
	return e, err
}

// listEntries returns the changes of a person's points, newest first.
func listEntries(ctx context.Context, q mysqldb.Querier, userID int64, page web.Page) ([]Entry, error) {
	query, args := `SELECT id, user_id, cause, kind, delta, order_no, create_time FROM t_point_entry WHERE user_id = ?`, []any{userID}
	if page.Before != 0 {
		query, args = query+` AND id < ?`, append(args, page.Before)
	}
	entries, err := mysqldb.Collect(scanEntry)(q.QueryContext(ctx, query+` ORDER BY id DESC LIMIT ?`, append(args, page.Rows())...))
	if err != nil {
		return nil, fmt.Errorf("list point entries: %w", err)
	}
	return entries, nil
}
