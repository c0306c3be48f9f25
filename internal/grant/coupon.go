package grant

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// Service holds the use cases of coupons, redemptions and codes.
type Service struct {
	DB          *mysqldb.DB
	Keys        *idemkey.Store
	Metrics     *metrics.Metrics
	Now         func() time.Time // UTC, cut to microseconds
	NewCouponNo func() (string, error)
	NewCode     func() string // NewCode
}

// Status is where a coupon stands. The numbers stand in the database.
type Status int

// The states of a coupon. A used one becomes unused again when its order ends without a sale.
const (
	Unused Status = 0
	Used   Status = 1
	Void   Status = 2
)

func (s Status) String() string {
	switch s {
	case Unused:
		return "UNUSED"
	case Used:
		return "USED"
	case Void:
		return "VOID"
	default:
		return fmt.Sprintf("STATUS_%d", int(s))
	}
}

// Coupon takes its discount off one order. Times are UTC, cut to microseconds, as the database keeps them.
type Coupon struct {
	ID         int64
	CouponNo   string
	UserID     int64
	GrantKey   string
	ActivityID string // "": bought with points
	Template   string
	Discount   money.Amount // minor units of the order it is used for
	Status     Status
	OrderNo    string // "": no order uses it
	CreatedAt  time.Time
}

// couponView is a coupon as clients see it (contract section 3).
type couponView struct {
	CouponNo   string       `json:"coupon_no"`
	ActivityID *string      `json:"activity_id"`
	Template   string       `json:"template"`
	Discount   money.Amount `json:"discount"`
	Status     string       `json:"status"`
	OrderNo    *string      `json:"order_no"`
	CreatedAt  time.Time    `json:"created_at"`
}

func (c Coupon) view() couponView {
	return couponView{
		CouponNo: c.CouponNo, ActivityID: web.OrNull(c.ActivityID), Template: c.Template, Discount: c.Discount,
		Status: c.Status.String(), OrderNo: web.OrNull(c.OrderNo), CreatedAt: c.CreatedAt,
	}
}

// couponsPath is where a new coupon can be seen.
const couponsPath = "/v1/me/coupons"

const opClaim = "coupon.claim"

// errRepeated: this cause has been granted before. The caller rolls back, then looks.
var errRepeated = errors.New("grant: this cause has been granted before")

// Claim grants a person the coupon of an activity, once: 201 with the coupon. Claiming again is 200 with the same coupon as it is
// now, also after the activity's end or when all are granted.
//
// Errors: NotFound activity_not_found; Conflict activity_not_running, no_coupon, coupons_exhausted.
func (s *Service) Claim(ctx context.Context, userID int64, activityID string, key idemkey.Key) (web.Answer, error) {
	answer, err := s.Keys.Once(ctx, key, func(tx *sql.Tx) (web.Answer, error) {
		c, err := s.claim(ctx, tx, userID, activityID)
		if err != nil {
			return web.Answer{}, err
		}
		a, err := web.JSON(http.StatusCreated, c.view())
		a.Location = couponsPath
		return a, err
	})
	if !errors.Is(err, errRepeated) {
		return answer, err
	}
	c, err := s.granted(ctx, opClaim, activityGrantKey(userID, activityID))
	if err != nil {
		return web.Answer{}, err
	}
	if answer, err = web.JSON(http.StatusOK, c.view()); err != nil {
		return web.Answer{}, err
	}
	return s.Keys.Keep(ctx, key, answer)
}

func (s *Service) claim(ctx context.Context, tx *sql.Tx, userID int64, activityID string) (Coupon, error) {
	a, err := activity.Get(ctx, tx, activityID)
	if err != nil {
		return Coupon{}, err
	}
	now, grantKey := s.Now(), activityGrantKey(userID, activityID)
	if refusal := refuses(a, now); refusal != nil {
		// Looked at before the refusal: a repeat may come after the activity's end.
		own, err := couponByGrantKey(ctx, tx, grantKey)
		if err == nil && own != nil {
			err = errRepeated
		}
		return Coupon{}, cmp.Or(err, refusal)
	}
	c := Coupon{UserID: userID, GrantKey: grantKey, ActivityID: a.ID, Template: a.Coupon.Template, Discount: a.Coupon.Discount, CreatedAt: now}
	// The unique index first, so that a repeat is a repeat and not "exhausted"; the count, which everybody wants, last.
	if err := s.insert(ctx, tx, &c); err != nil {
		return Coupon{}, err
	}
	return c, activity.CountCoupon(ctx, tx, a.ID)
}

// refuses says why an activity grants nobody a coupon now, or nil.
func refuses(a activity.Activity, now time.Time) error {
	switch {
	case a.Coupon == nil:
		return apperr.New(apperr.Conflict, "no_coupon", "The activity %s grants no coupon.", a.ID)
	case !a.Running(now):
		return apperr.New(apperr.Conflict, "activity_not_running", "The activity %s runs from %s to %s.", a.ID,
			a.StartsAt.Format(time.RFC3339), a.EndsAt.Format(time.RFC3339))
	}
	return nil
}

// insert gives a coupon its number and stores it.
func (s *Service) insert(ctx context.Context, tx *sql.Tx, c *Coupon) (err error) {
	if c.CouponNo, err = s.NewCouponNo(); err != nil {
		return fmt.Errorf("make coupon_no: %w", err)
	}
	return insertCoupon(ctx, tx, *c)
}

// granted returns the coupon that stood in the way of a second one. It reads from the pool, after the transaction was rolled back:
// inside it, under REPEATABLE READ, the winner could be invisible.
func (s *Service) granted(ctx context.Context, operation, grantKey string) (Coupon, error) {
	s.Metrics.GuardHit(apperr.LayerUniqueIndex, operation, metrics.Replayed)
	web.Log(ctx).Warn("duplicate grant", "guard", apperr.LayerUniqueIndex, "grant_key", grantKey)
	c, err := couponByGrantKey(ctx, s.DB, grantKey)
	if err != nil {
		return Coupon{}, err
	}
	if c == nil {
		return Coupon{}, fmt.Errorf("the coupon that was in the way is gone: %w", mysqldb.ErrStale)
	}
	return *c, nil
}

// The functions below are what package order asks of coupons, in the order's transaction.

// Discount returns what a person's coupon takes off an order, in minor units, whoever uses it now: a twin may have used it, and Use
// decides.
//
// Errors: NotFound coupon_not_found, also for another's coupon.
func Discount(ctx context.Context, q mysqldb.Querier, userID int64, couponNo string) (money.Amount, error) {
	c, err := ownCoupon(ctx, q, userID, couponNo)
	return c.Discount, err
}

// Use uses a person's coupon for an order.
//
// Errors: NotFound coupon_not_found; Conflict coupon_used, coupon_void.
func Use(ctx context.Context, tx *sql.Tx, userID int64, couponNo, orderNo string, now time.Time) error {
	used, err := use(ctx, tx, userID, couponNo, orderNo, now)
	if err != nil || used {
		return err
	}
	c, err := ownCoupon(ctx, tx, userID, couponNo)
	if err != nil {
		return err
	}
	switch c.Status {
	case Used:
		return apperr.New(apperr.Conflict, "coupon_used", "The coupon %s is used by an order.", couponNo).At(apperr.LayerState)
	case Void:
		return apperr.New(apperr.Conflict, "coupon_void", "The coupon %s is void.", couponNo).At(apperr.LayerState)
	default:
		return fmt.Errorf("coupon %s was given back meanwhile: %w", couponNo, mysqldb.ErrStale)
	}
}
