package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/grant"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/token"
	"example.com/oncepay/internal/web"
)

// Locker queues the callers of one key. lock.Redis does it; lock.None lets everybody through (DISABLE_GUARDS=lock).
type Locker interface {
	Do(ctx context.Context, operation, key string, fn func(ctx context.Context) error) error
}

// Service holds the use cases of orders.
type Service struct {
	DB            *mysqldb.DB
	Keys          *idemkey.Store
	Tokens        *token.Store
	Locks         Locker
	Exceptions    *exception.Store
	Metrics       *metrics.Metrics
	Now           func() time.Time // UTC, cut to microseconds
	NewOrderNo    func() (string, error)
	PayTimeout    time.Duration
	TokenRequired bool
}

// CreateInput is a checked request for an order.
type CreateInput struct {
	UserID     int64
	SKUID      int64
	Quantity   int64
	ActivityID string
	CouponNo   string
	Token      string // the submit token, or ""
	Key        idemkey.Key
}

const opCreate = "order.create"

// Create makes the order of one business action, once. The answer is 201 with the order; the same action again gets the
// same order, the same request under the same key the same bytes.
//
// Errors: Conflict out_of_stock, activity_not_running, coupon_used, coupon_void, token_spent, order_differs; NotFound sku_not_found,
// activity_not_found, coupon_not_found; KeyReused; InProgress when a twin is still at work; Unavailable when the outcome is
// not known. Whatever is not a decision of the business leaves the key and the token usable.
func (s *Service) Create(ctx context.Context, in CreateInput) (web.Answer, error) {
	// Guard 1: Idempotency-Key. What was answered before is answered again, before anything is used up.
	if stored, err := s.Keys.Find(ctx, in.Key); err != nil {
		return web.Answer{}, err
	} else if stored != nil {
		return *stored, nil
	}

	// Guard 2: submit token. One request holds it; a twin waits until it is spent or free again.
	claim, err := s.claim(ctx, in)
	if err != nil {
		return s.resultOr(ctx, in, err)
	}

	made := false
	defer func() { // also after a panic: nothing but success uses a token up
		if made {
			claim.Settle(ctx)
		} else {
			claim.Release(ctx)
		}
	}()

	// Guard 3: lock. Repeats of one action queue here; the database below decides.
	var answer web.Answer
	err = s.Locks.Do(ctx, opCreate, in.lockKey(), func(ctx context.Context) error {
		answer, err = s.createOnce(ctx, in)
		return err
	})
	if apperr.Is(err, "lock_busy") {
		answer, err = s.resultOr(ctx, in, err)
	}
	made = err == nil && answer.Status < http.StatusMultipleChoices
	return answer, err
}

// createOnce is the data layer's part: it alone keeps the promise when everything above it is gone.
func (s *Service) createOnce(ctx context.Context, in CreateInput) (web.Answer, error) {
	var answer web.Answer
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		// Guard 4: the key's record, in the transaction of its effect.
		if err := s.Keys.Begin(ctx, tx, in.Key); err != nil {
			return err
		}
		o, err := s.draft(ctx, tx, in)
		if err != nil {
			return err
		}
		// Guard 5: the unique index uk_biz_token. Insert first; the index decides, not a look before.
		if err := insert(ctx, tx, o); err != nil {
			return err
		}
		// Guard 6: stock and coupon, by conditional updates; with them history and message.
		if err := s.owe(ctx, tx, o, nil, causeCreate, actor(o)); err != nil {
			return err
		}
		if o.Amount == 0 {
			now := s.Now()
			if o, _, err = s.Apply(ctx, tx, o.OrderNo, Move{From: []Status{Init}, To: Paid, Cause: causeFree, Actor: actor(o), PaidAt: &now}); err != nil {
				return err
			}
		}
		if answer, err = o.created(); err != nil {
			return err
		}
		return s.Keys.Finish(ctx, tx, in.Key, answer)
	})
	switch {
	case err == nil:
		s.Metrics.GuardHit("unique_index", opCreate, metrics.Passed)
		return s.Keys.First(in.Key, answer), nil
	case errors.Is(err, idemkey.ErrTaken):
		return s.Keys.Replay(ctx, in.Key)
	case errors.Is(err, errExists), mysqldb.IsDuplicate(err, "uk_biz_token"):
		s.Metrics.GuardHit("unique_index", opCreate, metrics.Replayed)
		web.Log(ctx).Warn("duplicate order", "guard", "unique_index", "biz_token", in.lockKey())
		return s.resultOr(ctx, in, fmt.Errorf("the order that was in the way is gone: %w", mysqldb.ErrStale))
	case idemkey.Final(err):
		return s.Keys.Keep(ctx, in.Key, web.Problem(ctx, err))
	default:
		return web.Answer{}, err
	}
}

// errExists: the activity has a living order of this person for this SKU.
var errExists = errors.New("order: the action has an order already")

// draft builds the order from what the catalogue says now.
func (s *Service) draft(ctx context.Context, tx *sql.Tx, in CreateInput) (Order, error) {
	sku, err := inventory.Get(ctx, tx, in.SKUID)
	if err != nil {
		return Order{}, err
	}
	amount, ok := sku.Price.Times(in.Quantity)
	if !ok {
		return Order{}, apperr.New(apperr.Invalid, "amount_out_of_range", "%d of SKU %d cost more than can be counted.", in.Quantity, in.SKUID)
	}
	now := s.Now()
	attempt := 1
	if in.ActivityID != "" {
		if attempt, err = s.attempt(ctx, tx, in, now); err != nil {
			return Order{}, err
		}
	}
	discount := money.Amount(0)
	if in.CouponNo != "" {
		if discount, err = grant.Discount(ctx, tx, in.UserID, in.CouponNo); err != nil {
			return Order{}, err
		}
		discount = min(discount, amount)
	}
	orderNo, err := s.NewOrderNo()
	if err != nil {
		return Order{}, fmt.Errorf("make order_no: %w", err)
	}
	return Order{
		OrderNo: orderNo, UserID: in.UserID, SKUID: in.SKUID, ActivityID: in.ActivityID, Attempt: attempt,
		BizToken: in.bizToken(attempt), Status: Init, Version: 1, Quantity: in.Quantity, Amount: amount - discount,
		Discount: discount, CouponNo: in.CouponNo, Currency: sku.Currency,
		ExpiresAt: now.Add(s.PayTimeout), CreatedAt: now,
	}, nil
}

// attempt numbers the purchase within the activity. Two requests may come to the same number: the index decides.
func (s *Service) attempt(ctx context.Context, tx *sql.Tx, in CreateInput, now time.Time) (int, error) {
	last, err := lastInActivity(ctx, tx, in)
	if err != nil {
		return 0, err
	}
	if last != nil && !last.Status.EndedWithoutSale() {
		return 0, errExists // looked at before the activity's times: a repeat may come after its end
	}
	a, err := activity.Get(ctx, tx, in.ActivityID)
	if err != nil {
		return 0, err
	}
	if !a.Running(now) {
		return 0, apperr.New(apperr.Conflict, "activity_not_running", "The activity %s runs from %s to %s.", a.ID,
			a.StartsAt.Format(time.RFC3339), a.EndsAt.Format(time.RFC3339))
	}
	if last == nil {
		return 1, nil
	}
	return last.Attempt + 1, nil
}

// claim takes the submit token, if one was sent.
func (s *Service) claim(ctx context.Context, in CreateInput) (*token.Claim, error) {
	if in.Token == "" {
		if s.TokenRequired && !s.Tokens.Disabled {
			return nil, apperr.New(apperr.Invalid, "submit_token_required", "Get a token from POST /v1/tokens and send it as X-Submit-Token.").
				At(apperr.LayerToken)
		}
		return nil, nil
	}
	claim, err := s.Tokens.Claim(ctx, token.SceneOrderCreate, in.UserID, in.Token, in.claimOwner())
	if errors.Is(err, token.ErrSpent) {
		return nil, apperr.New(apperr.Conflict, "token_spent", "This submit token has been used, or is too old. Refresh the page and try again. (请刷新后重试)").
			At(apperr.LayerToken)
	}
	return claim, err
}

// resultOr answers a request that a guard has stopped with the request's own result, if there is one: under its key, or
// under its business key. Otherwise the guard's answer stands. It reads from the pool, after any transaction was rolled
// back: inside it, under REPEATABLE READ, the winner could be invisible.
func (s *Service) resultOr(ctx context.Context, in CreateInput, stopped error) (web.Answer, error) {
	if stored, err := s.Keys.Find(ctx, in.Key); err != nil {
		return web.Answer{}, err
	} else if stored != nil {
		return *stored, nil
	}
	var (
		o   *Order
		err error
	)
	if in.ActivityID != "" {
		o, err = lastInActivity(ctx, s.DB, in)
	} else {
		o, err = byBizToken(ctx, s.DB, in.bizToken(1))
	}
	if err != nil {
		return web.Answer{}, err
	}
	if o == nil || (in.ActivityID != "" && o.Status.EndedWithoutSale()) {
		return web.Answer{}, stopped
	}
	if o.SKUID != in.SKUID || o.Quantity != in.Quantity || o.ActivityID != in.ActivityID || o.CouponNo != in.CouponNo {
		refusal := apperr.New(apperr.Conflict, "order_differs", "This action has made order %s already, with other contents.", o.OrderNo).
			At(apperr.LayerUniqueIndex).With("order_no", o.OrderNo)
		return s.Keys.Keep(ctx, in.Key, web.Problem(ctx, refusal))
	}
	answer, err := o.created()
	if err != nil {
		return web.Answer{}, err
	}
	return s.Keys.Keep(ctx, in.Key, answer)
}

// actor names an order's buyer as the one who acts.
func actor(o Order) string { return auth.Caller{UserID: o.UserID}.Actor() }

// Cancel ends an unpaid order and gives its stock back, once. Asking again is Already.
func (s *Service) Cancel(ctx context.Context, tx *sql.Tx, orderNo string, by auth.Caller) (Order, error) {
	return s.step(ctx, tx, orderNo, Move{From: []Status{Init}, To: Cancelled, Cause: causeCancel, Actor: by.Actor()}, by)
}

// Ship marks a paid order as on its way. Asking again is Already. An order whose money needs a person is not shipped.
func (s *Service) Ship(ctx context.Context, tx *sql.Tx, orderNo string, by auth.Caller) (Order, error) {
	o, err := s.step(ctx, tx, orderNo, Move{From: []Status{Paid}, To: Shipped, Cause: causeShip, Actor: by.Actor()}, by)
	if err != nil {
		return Order{}, err
	}
	// Looked at after the move, which holds the order's row: whoever blocks an order locks that row first.
	blocked, err := s.Exceptions.Blocks(ctx, tx, orderNo)
	if err != nil {
		return Order{}, err
	}
	if blocked {
		return Order{}, apperr.New(apperr.InProgress, "order_blocked", "The order has an open exception about its money; ask again when it is resolved.").At(apperr.LayerState)
	}
	return o, nil
}

// Finish marks an order as received. Asking again is Already.
func (s *Service) Finish(ctx context.Context, tx *sql.Tx, orderNo string, by auth.Caller) (Order, error) {
	return s.step(ctx, tx, orderNo, Move{From: []Status{Paid, Shipped}, To: Finished, Cause: causeFinish, Actor: by.Actor()}, by)
}

func (s *Service) step(ctx context.Context, tx *sql.Tx, orderNo string, m Move, by auth.Caller) (Order, error) {
	o, err := s.Visible(ctx, tx, orderNo, by)
	if err != nil {
		return Order{}, err
	}
	o, outcome, err := s.Apply(ctx, tx, o.OrderNo, m)
	if err == nil && outcome == Applied && by.Ops {
		err = audit.Write(ctx, tx, by, "order."+m.Cause, "order:"+orderNo, "now "+o.Status.String(), s.Now())
	}
	return o, err
}

// Visible returns an order that the caller may see; another's is not found, not forbidden.
func (s *Service) Visible(ctx context.Context, q mysqldb.Querier, orderNo string, by auth.Caller) (Order, error) {
	o, err := Get(ctx, q, orderNo)
	if err != nil {
		return Order{}, err
	}
	if o == nil || !by.MaySee(o.UserID) {
		return Order{}, errNotFound()
	}
	return *o, nil
}
