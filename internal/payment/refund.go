package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// RefundInput is a checked request to return money of an order.
type RefundInput struct {
	OrderNo  string
	RefundNo string // "": derived from the key
	Amount   money.Amount
	Reason   string
	By       auth.Caller
	Key      idemkey.Key
}

const opRefund = "refund.create"

// RequestRefund accepts a refund: 202 with the refund as PROCESSING. It is committed before the channel is called, which a job
// does at once and again until the outcome is known.
//
// The same refund_no again gives the same refund. Errors: NotFound order_not_found; Conflict nothing_paid, refund_exceeds_paid
// over the cap, refund_no_taken when the number is another refund's.
func (s *Service) RequestRefund(ctx context.Context, in RefundInput) (web.Answer, error) {
	if in.RefundNo == "" {
		in.RefundNo = keyedRefundNo(in.Key)
	}
	// Guard 1 and 3: the key, looked up and recorded with the effect. Guard 2, a lock, is not taken: the cap is one
	// conditional update and the number a unique index, and queueing would change no outcome.
	answer, err := s.Keys.Once(ctx, in.Key, func(tx *sql.Tx) (web.Answer, error) {
		r, err := s.accept(ctx, tx, in)
		if err != nil {
			return web.Answer{}, err
		}
		return refundAnswer(r)
	})
	if errors.Is(err, errRefundExists) {
		s.Metrics.GuardHit(apperr.LayerUniqueIndex, opRefund, metrics.Replayed)
		return s.sameRefund(ctx, in)
	}
	if err == nil {
		s.Wake()
	}
	return answer, err
}

// accept reserves the amount, stores the refund, and moves the order when all of its money is on its way back.
func (s *Service) accept(ctx context.Context, tx *sql.Tx, in RefundInput) (Refund, error) {
	if _, err := s.Orders.Visible(ctx, tx, in.OrderNo, in.By); err != nil {
		return Refund{}, err
	}
	t, err := tradeThatPaid(ctx, tx, in.OrderNo)
	if err != nil {
		return Refund{}, err
	}
	if t == nil {
		return Refund{}, apperr.New(apperr.Conflict, "nothing_paid", "No money was received for this order.").At(apperr.LayerState)
	}
	p, err := getPayment(ctx, tx, t.PayNo)
	if err != nil {
		return Refund{}, err
	}
	r := Refund{
		RefundNo: in.RefundNo, OrderNo: in.OrderNo, UserID: p.UserID, PayNo: t.PayNo, Channel: t.Channel, TradeNo: t.TradeNo,
		Amount: in.Amount, Currency: t.Currency, Reason: in.Reason, CreatedAt: s.Now(),
	}
	// Guard 4: uk_refund_no, first, so that a repeat is a repeat and not "over the cap".
	if err := insertRefund(ctx, tx, r, r.CreatedAt); err != nil {
		return Refund{}, err
	}
	// Guard 5: the cap, one conditional update.
	ok, err := reserveRefund(ctx, tx, *t, int64(in.Amount))
	if err != nil {
		return Refund{}, fmt.Errorf("reserve refund: %w", err)
	}
	if !ok {
		return Refund{}, apperr.New(apperr.Conflict, "refund_exceeds_paid", "%s was paid; with what is returned already, %s more is too much.",
			money.Format(t.Amount, t.Currency), money.Format(in.Amount, t.Currency)).At(apperr.LayerState)
	}
	after, err := getTrade(ctx, tx, t.Channel, t.TradeNo)
	if err != nil {
		return Refund{}, err
	}
	if after.RefundReserved == after.Amount {
		if err := s.Orders.StartRefund(ctx, tx, in.OrderNo, refundCause(r.RefundNo), in.By); err != nil {
			return Refund{}, err
		}
	}
	if in.By.Ops {
		return r, audit.Write(ctx, tx, in.By, opRefund, "refund:"+r.RefundNo, fmt.Sprintf("%d %s of order %s: %s", r.Amount, r.Currency, r.OrderNo, r.Reason), s.Now())
	}
	return r, nil
}

// sameRefund answers a refund number that is there already: with its refund if it is the same request's.
func (s *Service) sameRefund(ctx context.Context, in RefundInput) (web.Answer, error) {
	r, err := getRefund(ctx, s.DB, in.RefundNo)
	if err != nil {
		return web.Answer{}, err
	}
	if r == nil {
		return web.Answer{}, fmt.Errorf("refund %s was in the way and is gone", in.RefundNo)
	}
	if r.OrderNo != in.OrderNo || !in.By.MaySee(r.UserID) || r.Amount != in.Amount || r.Auto {
		refusal := apperr.New(apperr.Conflict, "refund_no_taken", "This refund_no belongs to another refund.").At(apperr.LayerUniqueIndex)
		return s.Keys.Keep(ctx, in.Key, web.Problem(ctx, refusal))
	}
	answer, err := refundAnswer(*r)
	if err != nil {
		return web.Answer{}, err
	}
	return s.Keys.Keep(ctx, in.Key, answer)
}

func refundAnswer(r Refund) (web.Answer, error) {
	a, err := web.JSON(http.StatusAccepted, r.view())
	a.Location = "/v1/refunds/" + r.RefundNo
	return a, err
}

// ReturnHeld sends money back that an exception holds: money that was not what was agreed, or whose automatic refund failed. It
// never touches money that paid its order; that is refunded by its own route. The refund's number is made from the exception,
// so that one exception returns money once.
func (s *Service) ReturnHeld(ctx context.Context, tx *sql.Tx, e exception.Exception) error {
	if sent, err := getRefund(ctx, tx, heldRefundNo(e.ID)); err != nil || sent != nil {
		return err // asked for again: it is on its way
	}
	channel, tradeNo, _ := strings.Cut(e.Subject, ":") // AmountMismatch
	if e.Kind == exception.AutoRefundFailed {
		failed, err := getRefund(ctx, tx, e.Subject)
		if err != nil {
			return err
		}
		if failed == nil {
			return fmt.Errorf("exception %d is about refund %s, which is not there", e.ID, e.Subject)
		}
		channel, tradeNo = failed.Channel, failed.TradeNo
	} else if e.Kind != exception.AmountMismatch {
		return apperr.New(apperr.Conflict, "nothing_to_return", "An exception of kind %s holds no money that could be returned.", e.Kind).At(apperr.LayerState)
	}
	t, err := getTrade(ctx, tx, channel, tradeNo)
	if err != nil {
		return err
	}
	if t == nil || t.Disposition == PaidOrder || t.RefundReserved > 0 || t.Amount == 0 {
		return apperr.New(apperr.Conflict, "nothing_to_return", "This money is not held, or is on its way back already.").At(apperr.LayerState)
	}
	p, err := getPayment(ctx, tx, t.PayNo)
	if err != nil {
		return err
	}
	ok, err := reserveRefund(ctx, tx, *t, int64(t.Amount))
	if err != nil {
		return fmt.Errorf("reserve refund: %w", err)
	}
	if !ok { // somebody returned it between reading and reserving
		return mysqldb.ErrStale
	}
	err = insertRefund(ctx, tx, Refund{
		RefundNo: heldRefundNo(e.ID), OrderNo: t.OrderNo, UserID: p.UserID, PayNo: t.PayNo, Channel: t.Channel, TradeNo: t.TradeNo,
		Amount: t.Amount, Currency: t.Currency, Reason: "returned by an operator: " + string(e.Kind), Auto: true,
	}, s.Now())
	if err != nil {
		return err
	}
	return audit.Write(ctx, tx, auth.From(ctx), "exception.return_money", "refund:"+heldRefundNo(e.ID),
		fmt.Sprintf("%d %s of trade %s, exception %d", t.Amount, t.Currency, t.TradeNo, e.ID), s.Now())
}
