// Package activity owns sales activities (t_activity): inside one, a person buys a SKU once, and may get a coupon.
package activity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// Activity is a sales activity.
type Activity struct {
	ID       string    `json:"activity_id"`
	Title    string    `json:"title"`
	StartsAt time.Time `json:"starts_at"`
	EndsAt   time.Time `json:"ends_at"`
	Coupon   *Coupon   `json:"coupon,omitzero"`
}

// Coupon is what an activity grants: Limit coupons in all, each worth Discount minor units.
type Coupon struct {
	Template string       `json:"template"`
	Discount money.Amount `json:"discount"`
	Limit    int64        `json:"limit"`
}

const maxTitle = 255 // characters; the column's width

// ParseID checks an activity's id: 1 to 64 of [A-Za-z0-9_-], case matters.
func ParseID(s string) error {
	ok := s != "" && len(s) <= 64
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}
	if !ok {
		return apperr.New(apperr.Invalid, "activity_id_invalid", "An activity_id has 1 to 64 letters, digits, _ or -.")
	}
	return nil
}

// Check returns the first fault.
func (a Activity) Check() error {
	invalid := func(format string, args ...any) error {
		return apperr.New(apperr.Invalid, "field_invalid", format, args...)
	}
	switch {
	case a.Title == "" || utf8.RuneCountInString(a.Title) > maxTitle:
		return invalid("title has 1 to %d characters.", maxTitle)
	case a.StartsAt.IsZero() || a.EndsAt.IsZero() || !a.StartsAt.Before(a.EndsAt):
		return invalid("starts_at comes before ends_at.")
	case a.StartsAt.Year() < 1970 || a.EndsAt.Year() > 9999:
		return invalid("starts_at and ends_at lie in the years 1970 to 9999.") // what DATETIME and RFC 3339 both hold
	case a.Coupon == nil:
		return nil
	case ParseID(a.Coupon.Template) != nil:
		return invalid("coupon.template has 1 to 64 letters, digits, _ or -.")
	case a.Coupon.Discount < 1 || a.Coupon.Limit < 1:
		return invalid("coupon.discount and coupon.limit are at least 1.")
	}
	return nil
}

// Running reports whether the activity has begun and not ended.
func (a Activity) Running(now time.Time) bool { return !now.Before(a.StartsAt) && now.Before(a.EndsAt) }

// Store reads and writes activities.
type Store struct {
	DB  *mysqldb.DB
	Now func() time.Time
}

// Put creates or changes an activity, and reports whether it created. Asking again is harmless.
//
// Errors: Conflict coupon_limit_too_low when more coupons are granted than the new limit, or the missing coupon, allows.
func (s *Store) Put(ctx context.Context, a Activity) (created bool, err error) {
	coupon := Coupon{}
	if a.Coupon != nil {
		coupon = *a.Coupon
	}
	now := s.Now()
	err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO t_activity (activity_id, title, starts_at, ends_at, coupon_template, coupon_discount, coupon_limit, create_time, update_time)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			a.ID, a.Title, a.StartsAt, a.EndsAt, coupon.Template, coupon.Discount, coupon.Limit, now, now)
		if err != nil {
			return err
		}
		return a.record(ctx, tx, "activity.create", now)
	})
	if !mysqldb.IsDuplicate(err, "PRIMARY") {
		return err == nil, wrap(err)
	}
	return false, wrap(s.DB.InTx(ctx, func(tx *sql.Tx) error {
		changed, err := mysqldb.Matched(tx.ExecContext(ctx, `
			UPDATE t_activity SET title = ?, starts_at = ?, ends_at = ?, coupon_template = ?, coupon_discount = ?, coupon_limit = ?, update_time = ?
			WHERE activity_id = ? AND coupon_granted <= ?`,
			a.Title, a.StartsAt, a.EndsAt, coupon.Template, coupon.Discount, coupon.Limit, now, a.ID, coupon.Limit))
		if err != nil {
			return err
		}
		if !changed { // the row is there: activities are never deleted
			return apperr.New(apperr.Conflict, "coupon_limit_too_low",
				"The activity %s has granted coupons: their definition stays, and its limit is no lower than their number.", a.ID)
		}
		return a.record(ctx, tx, "activity.change", now)
	}))
}

// record writes what an operator has made of the activity.
func (a Activity) record(ctx context.Context, tx *sql.Tx, action string, now time.Time) error {
	detail := fmt.Sprintf("%q from %s to %s", a.Title, a.StartsAt.Format(time.RFC3339), a.EndsAt.Format(time.RFC3339))
	if c := a.Coupon; c != nil {
		detail += fmt.Sprintf(", %d coupons %s of %d", c.Limit, c.Template, c.Discount)
	}
	return audit.Write(ctx, tx, auth.From(ctx), action, "activity:"+a.ID, detail, now)
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("put activity: %w", err)
	}
	return nil
}

// Get returns an activity, or NotFound with code "activity_not_found".
func Get(ctx context.Context, q mysqldb.Querier, id string) (Activity, error) {
	a := Activity{Coupon: &Coupon{}}
	err := q.QueryRowContext(ctx, `
		SELECT activity_id, title, starts_at, ends_at, coupon_template, coupon_discount, coupon_limit FROM t_activity WHERE activity_id = ?`, id).
		Scan(&a.ID, &a.Title, &a.StartsAt, &a.EndsAt, &a.Coupon.Template, &a.Coupon.Discount, &a.Coupon.Limit)
	if errors.Is(err, sql.ErrNoRows) {
		return Activity{}, apperr.New(apperr.NotFound, "activity_not_found", "There is no activity %s.", id)
	}
	if err != nil {
		return Activity{}, fmt.Errorf("read activity: %w", err)
	}
	if a.Coupon.Template == "" {
		a.Coupon = nil
	}
	return a, nil
}

// CountCoupon counts one more coupon of an activity in the caller's transaction. The limit is a condition of the update, so that
// any number of claims at once stay within it.
//
// Errors: Conflict coupons_exhausted; the caller rolls the coupon back.
func CountCoupon(ctx context.Context, tx *sql.Tx, id string) error {
	counted, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_activity SET coupon_granted = coupon_granted + 1 WHERE activity_id = ? AND coupon_granted < coupon_limit`, id))
	if err != nil {
		return fmt.Errorf("count coupon of activity %s: %w", id, err)
	}
	if !counted {
		return apperr.New(apperr.Conflict, "coupons_exhausted", "All coupons of the activity %s are granted.", id)
	}
	return nil
}

// TemplateDiscount returns what a template's coupon is worth: in the activity that was put last of those that grant it. False: none
// does. It reads the whole table, which an operator writes by hand.
func TemplateDiscount(ctx context.Context, q mysqldb.Querier, template string) (money.Amount, bool, error) {
	var discount money.Amount
	err := q.QueryRowContext(ctx, `
		SELECT coupon_discount FROM t_activity WHERE coupon_template = ? ORDER BY update_time DESC, activity_id DESC LIMIT 1`, template).Scan(&discount)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read discount of template %s: %w", template, err)
	}
	return discount, true, nil
}

// PutHTTP answers PUT /v1/ops/activities/{activity_id}.
func (s *Store) PutHTTP(r *http.Request) (web.Answer, error) {
	id := web.PathParam(r, "activity_id")
	if err := ParseID(id); err != nil {
		return web.Answer{}, err
	}
	var req struct {
		Title    string    `json:"title"`
		StartsAt time.Time `json:"starts_at"`
		EndsAt   time.Time `json:"ends_at"`
		Coupon   *Coupon   `json:"coupon"`
	}
	if _, err := web.DecodeJSON(r, &req); err != nil {
		return web.Answer{}, err
	}
	a := Activity{
		ID: id, Title: req.Title, Coupon: req.Coupon,
		StartsAt: req.StartsAt.UTC().Truncate(time.Microsecond), EndsAt: req.EndsAt.UTC().Truncate(time.Microsecond),
	}
	if err := a.Check(); err != nil {
		return web.Answer{}, err
	}
	created, err := s.Put(r.Context(), a)
	if err != nil {
		return web.Answer{}, err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return web.JSON(status, a)
}
