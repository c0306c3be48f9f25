package grant

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/web"
)

const (
	// minorPerPoint is what earns a point: one for each full 100 minor units paid (contract section 3).
	minorPerPoint = 100
	// RedemptionPrice is how many points a coupon costs (S0 §2.3).
	RedemptionPrice = 100
	// pointWorth is the discount for each point of a coupon whose template no activity defines: one minor unit.
	pointWorth = 1
)

// The kinds of entries. A cause can be written once for each kind.
const (
	kindOrder  = "order"  // an order's money earned points or no longer does; the cause is the message that said so
	kindRedeem = "redeem" // points bought a coupon; the cause is the redemption
)

// Entry is one change of a person's points.
type Entry struct {
	ID        int64
	UserID    int64
	Delta     int64
	Kind      string
	Cause     string
	OrderNo   string // "": of no order
	CreatedAt time.Time
}

// entryView is an entry as clients see it.
type entryView struct {
	ID        int64     `json:"id"`
	Delta     int64     `json:"delta"`
	Kind      string    `json:"kind"`
	Cause     string    `json:"cause"`
	OrderNo   *string   `json:"order_no"`
	CreatedAt time.Time `json:"created_at"`
}

func (e Entry) view() entryView {
	return entryView{ID: e.ID, Delta: e.Delta, Kind: e.Kind, Cause: e.Cause, OrderNo: web.OrNull(e.OrderNo), CreatedAt: e.CreatedAt}
}

// Points is the consumer of order.paid, refund.succeeded and refund.undone.
type Points struct {
	Now func() time.Time // UTC, cut to microseconds
}

// What a message came to.
const (
	outcomeApplied = "applied"
	outcomeStale   = "stale"   // a newer message about the order's money was applied before
	outcomeIgnored = "ignored" // about money that never paid an order
)

// Handle brings an order's points to what the rest of its money earns, in the consumer's transaction. Messages may come in any
// order and more than once: the newest one about an order counts, so that a refund that is heard of before the payment leaves a
// row that refuses the late payment. Points that were spent are taken back as well; the balance then is below zero, and nothing
// can be redeemed until it has recovered.
func (p Points) Handle(ctx context.Context, tx *sql.Tx, m outbox.Stored) (outcome string, err error) {
	f, err := parseFact(m.Payload)
	if err != nil {
		return "", fmt.Errorf("message %s: %w", m.ID, err)
	}
	if f.RefundSeq == otherMoney {
		return outcomeIgnored, nil
	}
	now, next := p.Now(), f.points()
	before, err := getOrderPoints(ctx, tx, f.OrderNo)
	switch {
	case err != nil:
	case before == nil:
		before = &orderPoints{}
		err = insertOrderPoints(ctx, tx, next, now)
	case before.RefundSeq >= next.RefundSeq:
		return outcomeStale, nil
	default:
		err = moveOrderPoints(ctx, tx, before.RefundSeq, next, now)
	}
	if err != nil {
		return "", err
	}
	if delta := next.Points - before.Points; delta != 0 {
		// The entry is the guard against repeats; the balance after it is locked for the shortest time.
		if err := insertEntry(ctx, tx, Entry{UserID: f.UserID, Delta: delta, Kind: kindOrder, Cause: m.ID, OrderNo: f.OrderNo, CreatedAt: now}); err != nil {
			return "", err
		}
		if err := addPoints(ctx, tx, f.UserID, delta, now); err != nil {
			return "", err
		}
	}
	return outcomeApplied, nil
}

// otherMoney is the refund_seq of a refund of money that never paid an order (it was late or double).
const otherMoney = -1

// fact is what every message about an order's money says, among other things.
type fact struct {
	OrderNo   string       `json:"order_no"`
	UserID    int64        `json:"user_id"`
	Paid      money.Amount `json:"paid"`
	Refunded  money.Amount `json:"refunded"`   // in all, so far
	RefundSeq int          `json:"refund_seq"` // counts the changes of Refunded
}

// points is what the order has earned.
func (f fact) points() orderPoints {
	return orderPoints{OrderNo: f.OrderNo, UserID: f.UserID, RefundSeq: f.RefundSeq, Points: int64(f.Paid-f.Refunded) / minorPerPoint}
}

// parseFact reads a payload. One that lacks a member or contradicts itself is a fault of ours, which must not pass for "no points".
func parseFact(payload []byte) (fact, error) {
	const missing = -2
	f := fact{Paid: missing, Refunded: missing, RefundSeq: missing}
	if err := json.Unmarshal(payload, &f); err != nil {
		return fact{}, fmt.Errorf("read payload: %w", err)
	}
	if f.RefundSeq == otherMoney {
		return f, nil
	}
	if f.OrderNo == "" || f.UserID < 1 || f.Refunded < 0 || f.Paid < f.Refunded || f.RefundSeq < 0 {
		return fact{}, fmt.Errorf("the payload is not about an order's money: %+v", f)
	}
	return f, nil
}

// redemption is a bought coupon as clients see it.
type redemption struct {
	RedemptionNo string     `json:"redemption_no"`
	Points       int64      `json:"points"`
	Balance      int64      `json:"balance"`
	Coupon       couponView `json:"coupon"`
}

const opRedeem = "points.redeem"

// Redeem buys a coupon for RedemptionPrice points, both or neither: 201. The same key gives the same coupon, also past the key's
// retention, then with the coupon and the balance as they are now.
//
// Errors: Conflict points_insufficient; KeyReused when the key bought a coupon of another template.
func (s *Service) Redeem(ctx context.Context, template string, key idemkey.Key) (web.Answer, error) {
	no := redemptionNo(key)
	answer, err := s.Keys.Once(ctx, key, func(tx *sql.Tx) (web.Answer, error) {
		c, err := s.redeem(ctx, tx, no, template, key.Caller)
		if err != nil {
			return web.Answer{}, err
		}
		balance, err := getBalance(ctx, tx, key.Caller)
		if err != nil {
			return web.Answer{}, err
		}
		return redeemed(no, balance, c)
	})
	if !errors.Is(err, errRepeated) {
		return answer, err
	}
	c, err := s.granted(ctx, opRedeem, redemptionGrantKey(no))
	if err != nil {
		return web.Answer{}, err
	}
	if c.Template != template {
		return web.Answer{}, idemkey.Reused().At(apperr.LayerUniqueIndex)
	}
	balance, err := getBalance(ctx, s.DB, key.Caller)
	if err != nil {
		return web.Answer{}, err
	}
	if answer, err = redeemed(no, balance, c); err != nil {
		return web.Answer{}, err
	}
	return s.Keys.Keep(ctx, key, answer)
}

func (s *Service) redeem(ctx context.Context, tx *sql.Tx, no, template string, userID int64) (Coupon, error) {
	discount, defined, err := activity.TemplateDiscount(ctx, tx, template)
	if err != nil {
		return Coupon{}, err
	}
	if !defined {
		discount = RedemptionPrice * pointWorth
	}
	now := s.Now()
	// The entry first, so that a repeat is a repeat and not "too few points"; the balance, which all that changes it wait for, last.
	if err := insertEntry(ctx, tx, Entry{UserID: userID, Delta: -RedemptionPrice, Kind: kindRedeem, Cause: no, CreatedAt: now}); err != nil {
		return Coupon{}, err
	}
	c := Coupon{UserID: userID, GrantKey: redemptionGrantKey(no), Template: template, Discount: discount, CreatedAt: now}
	if err := s.insert(ctx, tx, &c); err != nil {
		return Coupon{}, err
	}
	spent, err := spendPoints(ctx, tx, userID, RedemptionPrice, now)
	if err != nil {
		return Coupon{}, err
	}
	if !spent {
		return Coupon{}, apperr.New(apperr.Conflict, "points_insufficient", "You have fewer than %d points.", RedemptionPrice)
	}
	return c, nil
}

func redeemed(no string, balance int64, c Coupon) (web.Answer, error) {
	a, err := web.JSON(http.StatusCreated, redemption{RedemptionNo: no, Points: RedemptionPrice, Balance: balance, Coupon: c.view()})
	a.Location = couponsPath
	return a, err
}
