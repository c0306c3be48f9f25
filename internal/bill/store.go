package bill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/web"
)

// keep stores a bill as it came, once for each content.
func keep(ctx context.Context, db *mysqldb.DB, channel string, b payment.Bill, now time.Time) error {
	_, err := db.ExecContext(ctx, `INSERT INTO t_bill (channel, bill_date, sha256, body, create_time) VALUES (?, ?, ?, ?, ?)`,
		channel, b.Day, b.SHA256, b.Raw, now)
	if err != nil && !mysqldb.IsDuplicate(err, "uk_bill") {
		return fmt.Errorf("keep bill: %w", err)
	}
	return nil
}

// errExists: the channel's day has its row.
var errExists = errors.New("bill: this day has a reconciliation")

// insert makes the row of a channel's day and returns its id, or errExists.
func insert(ctx context.Context, tx *sql.Tx, channel, date string, runs int, next, now time.Time) (int64, error) {
	res, err := tx.ExecContext(ctx, `
		INSERT INTO t_reconciliation (channel, bill_date, status, runs, next_run_at, create_time, update_time) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		channel, date, Running, runs, next, now, now)
	if mysqldb.IsDuplicate(err, "uk_channel_date") {
		return 0, errExists
	}
	if err != nil {
		return 0, fmt.Errorf("insert reconciliation: %w", err)
	}
	return res.LastInsertId()
}

// again begins one more run of a day that has its row.
func again(ctx context.Context, tx *sql.Tx, channel, date string, next, now time.Time) (Reconciliation, error) {
	r, err := scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM t_reconciliation WHERE channel = ? AND bill_date = ? FOR UPDATE`, channel, date))
	if err != nil {
		return Reconciliation{}, fmt.Errorf("read reconciliation: %w", err)
	}
	r.wasComplete, r.Status, r.Complete = r.Complete, Running, false
	r.Runs++
	err = mysqldb.ExpectOne(tx.ExecContext(ctx, `UPDATE t_reconciliation SET status = ?, runs = ?, next_run_at = ?, update_time = ? WHERE id = ?`,
		r.Status, r.Runs, next, now, r.ID))
	if err != nil {
		return Reconciliation{}, fmt.Errorf("run reconciliation again: %w", err)
	}
	return r, nil
}

// claim takes a run that is due for this instance by moving its time on. False: another instance has it.
func claim(ctx context.Context, db *mysqldb.DB, r Reconciliation, next, now time.Time) (bool, error) {
	claimed, err := mysqldb.Matched(db.ExecContext(ctx, `
		UPDATE t_reconciliation SET status = ?, runs = runs + 1, next_run_at = ?, update_time = ? WHERE id = ? AND next_run_at = ?`,
		Running, next, now, r.ID, r.nextRunAt))
	if err != nil {
		return false, fmt.Errorf("claim reconciliation %d: %w", r.ID, err)
	}
	return claimed, nil
}

// done records a run that came to its end. next is when the bill will be final, if it is not yet.
func done(ctx context.Context, tx *sql.Tx, r Reconciliation, next *time.Time, now time.Time) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `
		UPDATE t_reconciliation SET status = ?, bill_lines = ?, matched = ?, bill_sha256 = ?, next_run_at = ?, last_error = '', update_time = ? WHERE id = ?`,
		Done, r.BillLines, r.Matched, r.BillSHA256, next, now, r.ID))
	if err != nil {
		return fmt.Errorf("end reconciliation %d: %w", r.ID, err)
	}
	return nil
}

// putOff records a run that did not come to its end, and when the job tries again; nil: never.
func putOff(ctx context.Context, tx *sql.Tx, id int64, status Status, cause string, next *time.Time, now time.Time) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `UPDATE t_reconciliation SET status = ?, last_error = ?, next_run_at = ?, update_time = ? WHERE id = ?`,
		status, mysqldb.Cut(cause), next, now, id))
	if err != nil {
		return fmt.Errorf("put off reconciliation %d: %w", id, err)
	}
	return nil
}

const columns = `id, channel, bill_date, status, runs, bill_lines, matched, bill_sha256, next_run_at, last_error, create_time, update_time`

func scan(row mysqldb.Scanner) (Reconciliation, error) {
	var (
		r    Reconciliation
		next sql.NullTime
	)
	err := row.Scan(&r.ID, &r.Channel, &r.Date, &r.Status, &r.Runs, &r.BillLines, &r.Matched, &r.BillSHA256, &next, &r.LastError, &r.CreatedAt, &r.UpdatedAt)
	if next.Valid {
		r.nextRunAt = &next.Time
	}
	r.Complete = r.Status == Done && !next.Valid // a bill that was not final has its next run planned
	return r, err
}

func query(ctx context.Context, q mysqldb.Querier, query string, args ...any) ([]Reconciliation, error) {
	list, err := mysqldb.Collect(scan)(q.QueryContext(ctx, query, args...))
	if err != nil {
		return nil, fmt.Errorf("read reconciliations: %w", err)
	}
	return list, nil
}

func dueRuns(ctx context.Context, q mysqldb.Querier, now time.Time, limit int) ([]Reconciliation, error) {
	return query(ctx, q, `SELECT `+columns+` FROM t_reconciliation WHERE next_run_at <= ? ORDER BY next_run_at LIMIT ?`, now, limit)
}

func newest(ctx context.Context, q mysqldb.Querier, page web.Page) ([]Reconciliation, error) {
	if page.Before != 0 {
		return query(ctx, q, `SELECT `+columns+` FROM t_reconciliation WHERE id < ? ORDER BY id DESC LIMIT ?`, page.Before, page.Rows())
	}
	return query(ctx, q, `SELECT `+columns+` FROM t_reconciliation ORDER BY id DESC LIMIT ?`, page.Rows())
}

// daysSince returns the days of a channel that have a row, from a day on.
func daysSince(ctx context.Context, q mysqldb.Querier, channel, date string) ([]string, error) {
	list, err := mysqldb.Collect(scanText)(q.QueryContext(ctx, `SELECT bill_date FROM t_reconciliation WHERE channel = ? AND bill_date >= ?`, channel, date))
	if err != nil {
		return nil, fmt.Errorf("read the days of %s: %w", channel, err)
	}
	return list, nil
}

func scanText(row mysqldb.Scanner) (s string, err error) { return s, row.Scan(&s) }

// get returns a reconciliation with its differences, or nil.
func get(ctx context.Context, q mysqldb.Querier, id int64) (*Reconciliation, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM t_reconciliation WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read reconciliation: %w", err)
	}
	r.Differences, err = mysqldb.Collect(scanDifference)(q.QueryContext(ctx, `
		SELECT id, kind, subject, order_no, our_amount, bill_amount, currency, status, detail, create_time
		FROM t_recon_difference WHERE reconciliation_id = ? ORDER BY id`, id))
	if err != nil {
		return nil, fmt.Errorf("read differences: %w", err)
	}
	if r.Differences == nil {
		r.Differences = []Difference{} // none is an answer, too
	}
	return &r, nil
}

func scanDifference(row mysqldb.Scanner) (d Difference, err error) {
	err = row.Scan(&d.ID, &d.Class, &d.Subject, &d.OrderNo, &d.OurAmount, &d.BillAmount, &d.Currency, &d.Outcome, &d.Detail, &d.CreatedAt)
	return d, err
}

// errReported: this difference of this day has its row.
var errReported = errors.New("bill: this difference is reported already")

func insertDifference(ctx context.Context, tx *sql.Tx, id int64, d Difference, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_recon_difference (reconciliation_id, kind, subject, order_no, our_amount, bill_amount, currency, status, detail, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, d.Class, d.Subject, d.OrderNo, d.OurAmount, d.BillAmount, d.Currency, d.Outcome, mysqldb.Cut(d.Detail), now)
	if mysqldb.IsDuplicate(err, "uk_difference") {
		return errReported
	}
	if err != nil {
		return fmt.Errorf("report difference: %w", err)
	}
	return nil
}

const (
	tradeColumns  = `channel, trade_no, trade_no, pay_no, order_no, amount, currency, occurred_at, 0`
	refundColumns = `channel, refund_no, trade_no, pay_no, order_no, amount, currency, decided_at, status`
)

func scanBooked(kind payment.BillKind) func(mysqldb.Scanner) (booked, error) {
	return func(row mysqldb.Scanner) (booked, error) {
		var (
			b  = booked{entry: entry{kind: kind}}
			at sql.NullTime
		)
		err := row.Scan(&b.channel, &b.number, &b.tradeNo, &b.payNo, &b.orderNo, &b.amount, &b.currency, &at, &b.refund)
		b.at = at.Time
		return b, err
	}
}

// bookedOn returns the money that we have booked on a channel's day.
func bookedOn(ctx context.Context, q mysqldb.Querier, channel string, d day) ([]booked, error) {
	trades, err := mysqldb.Collect(scanBooked(payment.BillPayment))(q.QueryContext(ctx, `
		SELECT `+tradeColumns+` FROM t_trade WHERE channel = ? AND occurred_at >= ? AND occurred_at < ?`, channel, d.start, d.end))
	if err != nil {
		return nil, fmt.Errorf("read the day's trades: %w", err)
	}
	refunds, err := mysqldb.Collect(scanBooked(payment.BillRefund))(q.QueryContext(ctx, `
		SELECT `+refundColumns+` FROM t_refund WHERE channel = ? AND decided_at >= ? AND decided_at < ? AND status = ?`,
		channel, d.start, d.end, payment.RefundSuccess))
	if err != nil {
		return nil, fmt.Errorf("read the day's refunds: %w", err)
	}
	return append(trades, refunds...), nil
}

// lookUpAtOnce is how many numbers one statement asks for: a few kilobytes of SQL.
const lookUpAtOnce = 500

// lookUp returns what we have under the numbers of a bill's lines, of whatever day.
func lookUp(ctx context.Context, q mysqldb.Querier, channel string, lines []payment.BillLine) (map[entry]booked, error) {
	found := make(map[entry]booked, len(lines))
	for some := range slices.Chunk(lines, lookUpAtOnce) {
		var trades, refunds []string
		for _, l := range some {
			if l.Kind == payment.BillPayment {
				trades = append(trades, l.TradeNo)
			} else {
				refunds = append(refunds, l.RefundNo)
			}
		}
		var rows []booked
		if len(trades) > 0 {
			marks, args := mysqldb.In(trades, channel)
			list, err := mysqldb.Collect(scanBooked(payment.BillPayment))(q.QueryContext(ctx,
				`SELECT `+tradeColumns+` FROM t_trade WHERE channel = ? AND trade_no IN (`+marks+`)`, args...))
			if err != nil {
				return nil, fmt.Errorf("look trades up: %w", err)
			}
			rows = list
		}
		if len(refunds) > 0 {
			marks, args := mysqldb.In(refunds)
			list, err := mysqldb.Collect(scanBooked(payment.BillRefund))(q.QueryContext(ctx,
				`SELECT `+refundColumns+` FROM t_refund WHERE refund_no IN (`+marks+`)`, args...))
			if err != nil {
				return nil, fmt.Errorf("look refunds up: %w", err)
			}
			rows = append(rows, list...)
		}
		for _, b := range rows {
			found[b.entry] = b
		}
	}
	return found, nil
}
