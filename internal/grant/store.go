package grant

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

const couponColumns = `id, coupon_no, user_id, grant_key, activity_id, template, discount, status, order_no, create_time`

func scanCoupon(row mysqldb.Scanner) (c Coupon, err error) {
	err = row.Scan(&c.ID, &c.CouponNo, &c.UserID, &c.GrantKey, &c.ActivityID, &c.Template, &c.Discount, &c.Status, &c.OrderNo, &c.CreatedAt)
	return c, err
}

// insertCoupon stores a new coupon. errRepeated: its cause has one.
func insertCoupon(ctx context.Context, tx *sql.Tx, c Coupon) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_coupon (coupon_no, user_id, grant_key, activity_id, template, discount, status, create_time, update_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		c.CouponNo, c.UserID, c.GrantKey, c.ActivityID, c.Template, c.Discount, c.Status, c.CreatedAt, c.CreatedAt)
	switch {
	case mysqldb.IsDuplicate(err, "uk_grant_key"):
		return errRepeated
	case mysqldb.IsDuplicate(err, "uk_coupon_no"):
		// Two numbers clashed, which says nothing about the cause: the whole transaction runs again with a new number.
		return fmt.Errorf("coupon_no %s is taken: %w", c.CouponNo, mysqldb.ErrStale)
	case err != nil:
		return fmt.Errorf("insert coupon: %w", err)
	}
	return nil
}

// couponByGrantKey returns the coupon of a cause, or nil.
func couponByGrantKey(ctx context.Context, q mysqldb.Querier, grantKey string) (*Coupon, error) {
	c, err := scanCoupon(q.QueryRowContext(ctx, `SELECT `+couponColumns+` FROM t_coupon WHERE grant_key = ?`, grantKey))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read coupon by grant_key: %w", err)
	}
	return &c, nil
}

// ownCoupon returns a person's coupon, or NotFound: whether it is another's is nobody's business.
func ownCoupon(ctx context.Context, q mysqldb.Querier, userID int64, couponNo string) (Coupon, error) {
	c, err := scanCoupon(q.QueryRowContext(ctx, `SELECT `+couponColumns+` FROM t_coupon WHERE coupon_no = ? AND user_id = ?`, couponNo, userID))
	if errors.Is(err, sql.ErrNoRows) {
		return Coupon{}, apperr.New(apperr.NotFound, "coupon_not_found", "You have no coupon %s.", couponNo)
	}
	if err != nil {
		return Coupon{}, fmt.Errorf("read coupon %s: %w", couponNo, err)
	}
	return c, nil
}

// use is the guarded update behind Use. False: the person has no such coupon that is UNUSED.
func use(ctx context.Context, tx *sql.Tx, userID int64, couponNo, orderNo string, now time.Time) (bool, error) {
	used, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_coupon SET status = ?, order_no = ?, update_time = ? WHERE coupon_no = ? AND user_id = ? AND status = ?`,
		Used, orderNo, now, couponNo, userID, Unused))
	if err != nil {
		return false, fmt.Errorf("use coupon %s: %w", couponNo, err)
	}
	return used, nil
}

// GiveBack makes the coupon of an order usable again. The order must be using it.
func GiveBack(ctx context.Context, tx *sql.Tx, couponNo, orderNo string, now time.Time) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `
		UPDATE t_coupon SET status = ?, order_no = '', update_time = ? WHERE coupon_no = ? AND status = ? AND order_no = ?`,
		Unused, now, couponNo, Used, orderNo))
	if err != nil {
		return fmt.Errorf("give coupon %s of order %s back: %w", couponNo, orderNo, err)
	}
	return nil
}

// TakeBack uses a coupon for its order again, after the refund that gave it back was undone. False: it is not UNUSED any more.
func TakeBack(ctx context.Context, tx *sql.Tx, couponNo, orderNo string, now time.Time) (bool, error) {
	taken, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_coupon SET status = ?, order_no = ?, update_time = ? WHERE coupon_no = ? AND status = ?`,
		Used, orderNo, now, couponNo, Unused))
	if err != nil {
		return false, fmt.Errorf("take coupon %s back for order %s: %w", couponNo, orderNo, err)
	}
	return taken, nil
}

// listCoupons returns a person's coupons newest first, all or only those of a status.
func listCoupons(ctx context.Context, q mysqldb.Querier, userID int64, status *Status, page web.Page) ([]Coupon, error) {
	query, args := `SELECT `+couponColumns+` FROM t_coupon WHERE user_id = ?`, []any{userID}
	if status != nil {
		query, args = query+` AND status = ?`, append(args, *status)
	}
	if page.Before != 0 {
		query, args = query+` AND id < ?`, append(args, page.Before)
	}
	coupons, err := mysqldb.Collect(scanCoupon)(q.QueryContext(ctx, query+` ORDER BY id DESC LIMIT ?`, append(args, page.Rows())...))
	if err != nil {
		return nil, fmt.Errorf("list coupons: %w", err)
	}
	return coupons, nil
}

// insertCode stores a code and returns its id.
func insertCode(ctx context.Context, tx *sql.Tx, c Code, by int64) (int64, error) {
	res, err := tx.ExecContext(ctx, `INSERT INTO t_coupon_code (code, template, created_by, create_time) VALUES (?, ?, ?, ?)`,
		c.Code, c.Template, by, c.CreatedAt)
	if mysqldb.IsDuplicate(err, "uk_code") {
		return 0, fmt.Errorf("a code is taken: %w", mysqldb.ErrStale) // the whole transaction runs again with a new one
	}
	if err != nil {
		return 0, fmt.Errorf("insert coupon code: %w", err)
	}
	id, err := res.LastInsertId()
	if err != nil {
		return 0, fmt.Errorf("insert coupon code: %w", err)
	}
	return id, nil
}
