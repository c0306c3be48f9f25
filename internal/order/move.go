package order

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/grant"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
)

// CodeIllegalMove is the code of the refusal of a move that the state table does not have.
const CodeIllegalMove = "order_state_illegal"

// Outcome says what asking for a move came to, when it was not refused.
type Outcome int

const (
	// Applied: the order moved now, and everything the move owes is in the transaction.
	Applied Outcome = iota
	// Already: this cause has moved the order before. Nothing was done and nothing need be.
	Already
)

// Move asks for one step in the state table.
type Move struct {
	From   []Status // where this action starts; a step of the table from elsewhere is another action's (a failed refund's)
	To     Status
	Cause  string // asking again with the same cause is a repeat, whatever the order has become since
	Actor  string
	PaidAt *time.Time // for Paid
}

// The causes that are not a trade's or a refund's.
const (
	causeCreate = "create"
	causeCancel = "cancel"
	causeShip   = "ship"
	causeFinish = "finish"
	causeExpire = "expire"
	causeFree   = "free" // an order over nothing pays itself
)

// Apply moves an order in the caller's transaction, with its history row, its stock and its message. It reads the order,
// then updates on status AND version first of all, so that the row's lock is all that follows need wait for.
//
// Errors: NotFound; Conflict with code "order_state_illegal" when the order is not where the move starts and this cause has not
// made it before. When somebody moved the order in between, mysqldb.ErrStale makes InTx run the whole function again.
func (s *Service) Apply(ctx context.Context, tx *sql.Tx, orderNo string, m Move) (Order, Outcome, error) {
	read, err := Get(ctx, tx, orderNo)
	if err != nil {
		return Order{}, 0, err
	}
	if read == nil {
		return Order{}, 0, errNotFound()
	}
	o := *read
	if !slices.Contains(m.From, o.Status) || !o.Status.CanMoveTo(m.To) {
		return s.notMoved(ctx, tx, o, m)
	}
	moved, err := compareAndMove(ctx, tx, o, m.To, m.PaidAt, s.Now())
	if err != nil {
		return Order{}, 0, err
	}
	if !moved {
		return Order{}, 0, fmt.Errorf("order %s moved on from version %d: %w", o.OrderNo, o.Version, mysqldb.ErrStale)
	}
	from := o.Status
	o.Status, o.Version = m.To, o.Version+1
	if m.PaidAt != nil {
		o.PaidAt = m.PaidAt
	}
	if err := s.owe(ctx, tx, o, &from, m.Cause, m.Actor); err != nil {
		return Order{}, 0, err
	}
	s.Metrics.GuardHit("state", "order."+strings.ToLower(m.To.String()), metrics.Passed)
	return o, Applied, nil
}

// notMoved tells a repeat from a refusal: it asks whether this cause took effect, not whether the status happens to be the
// wanted one. Only an end without money is one fact whoever brought it about.
func (s *Service) notMoved(ctx context.Context, tx *sql.Tx, o Order, m Move) (Order, Outcome, error) {
	done := m.To == Cancelled && o.Status == Cancelled
	if !done {
		var err error
		if done, err = tookEffect(ctx, tx, o.OrderNo, m.Cause); err != nil {
			return Order{}, 0, err
		}
	}
	operation := "order." + strings.ToLower(m.To.String())
	if done {
		s.Metrics.GuardHit("state", operation, metrics.Replayed)
		return o, Already, nil
	}
	s.Metrics.GuardHit("state", operation, metrics.Blocked)
	return Order{}, 0, apperr.New(apperr.Conflict, CodeIllegalMove, "The order is %s and cannot become %s.", o.Status, m.To).
		At(apperr.LayerState).With("order_status", o.Status)
}

// owe writes what every move owes: its history row, its effect on the stock and on the coupon, its message.
func (s *Service) owe(ctx context.Context, tx *sql.Tx, o Order, from *Status, cause, actor string) error {
	now := s.Now()
	if err := insertHistory(ctx, tx, o, from, cause, actor, now); err != nil {
		return err
	}
	if kind, ok := stockEffect(from, o.Status); ok {
		lines := []inventory.Line{{SKU: o.SKUID, Quantity: o.Quantity}}
		if err := inventory.Move(ctx, tx, stockCause(o.OrderNo), kind, lines, now); err != nil {
			return err
		}
	}
	if o.CouponNo != "" {
		if err := moveCoupon(ctx, tx, o, from, now); err != nil {
			return err
		}
	}
	return outbox.Add(ctx, tx, outbox.Message{
		ID: messageID(o.OrderNo, o.Version), Topic: topic(from, o.Status), Key: o.OrderNo, Version: o.Version, Payload: message{o.view(), o.Money()},
	}, now)
}

// stockEffect is what a move does to the goods. Only the moves that say "held", "sold" and "not sold after all" do.
func stockEffect(from *Status, to Status) (inventory.Kind, bool) {
	switch {
	case from == nil && to == Init:
		return inventory.Reserve, true
	case from == nil:
		return "", false
	case *from == Init && to == Paid:
		return inventory.Confirm, true
	case *from == Init && to == Cancelled:
		return inventory.Release, true
	default:
		return "", false
	}
}

// moveCoupon uses the order's coupon when the order begins, and gives it back when it ends without a sale. When a full refund
// is undone the order lives again: it takes its coupon back, or keeps its discount without one if another order has it by now.
func moveCoupon(ctx context.Context, tx *sql.Tx, o Order, from *Status, now time.Time) error {
	switch {
	case from == nil:
		return grant.Use(ctx, tx, o.UserID, o.CouponNo, o.OrderNo, now)
	case o.Status.EndedWithoutSale():
		return grant.GiveBack(ctx, tx, o.CouponNo, o.OrderNo, now)
	case from.EndedWithoutSale():
		taken, err := grant.TakeBack(ctx, tx, o.CouponNo, o.OrderNo, now)
		if err != nil || taken {
			return err
		}
		return loseCoupon(ctx, tx, o.OrderNo, now)
	default:
		return nil
	}
}

// topic names a move for those who hear of it. Going back from a refund that failed has a name of its own: whoever grants
// something for "order.paid" must hear that once.
func topic(from *Status, to Status) string {
	switch {
	case from == nil:
		return "order.created"
	case *from == Refunded, *from == Refunding && to != Refunded:
		return "order.refund_failed"
	default:
		return "order." + strings.ToLower(to.String())
	}
}
