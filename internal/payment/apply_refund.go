package payment

import (
	"context"
	"database/sql"
	"fmt"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/ledger"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/outbox"
)

// applyRefund finds the refund by its number and its own trade, never by amount or order.
func (s *Service) applyRefund(ctx context.Context, tx *sql.Tx, ch Channel, f Fact) (Result, error) {
	found, err := getRefund(ctx, tx, f.RefundNo)
	if err != nil {
		return Result{}, err
	}
	if found == nil {
		return s.unknownRefund(ctx, tx, f)
	}
	r := *found
	if f.Merchant != ch.Merchant() || f.Channel != r.Channel || f.PayNo != r.PayNo || f.TradeNo != r.TradeNo || f.Amount != r.Amount || f.Currency != r.Currency {
		err := s.Exceptions.Open(ctx, tx, exception.Exception{
			Kind: exception.RefundMismatch, Subject: f.Channel + ":" + f.RefundNo, OrderNo: r.OrderNo, Channel: f.Channel, Amount: f.Amount, Currency: f.Currency,
			Detail: fmt.Sprintf("%s for refund %s names trade %s and %d %s; the refund returns %d %s of trade %s", f.Event, f.RefundNo, f.TradeNo, f.Amount, f.Currency, r.Amount, r.Currency, r.TradeNo),
		})
		return Result{Personal, apperr.LayerState, "the notice does not fit the refund", r.OrderNo}, err
	}
	if f.Event == EventRefunded {
		return s.refundSucceeded(ctx, tx, r, f)
	}
	return s.refundFailed(ctx, tx, r, f)
}

// unknownRefund keeps a notice of a refund we never asked for. If we know the order it speaks of, that is not shipped until
// somebody has looked: its money may be gone.
func (s *Service) unknownRefund(ctx context.Context, tx *sql.Tx, f Fact) (Result, error) {
	p, err := getPayment(ctx, tx, f.PayNo)
	if err != nil {
		return Result{}, err
	}
	if p == nil || p.Channel != f.Channel {
		return Result{Disposal: Parked, Outcome: "no such refund yet"}, nil
	}
	if err := s.Orders.Lock(ctx, tx, p.OrderNo); err != nil { // so that shipping comes before or after, not between
		return Result{}, err
	}
	err = s.Exceptions.Open(ctx, tx, exception.Exception{
		Kind: exception.UnknownRefund, Subject: f.Channel + ":" + f.RefundNo, OrderNo: p.OrderNo, Channel: f.Channel, Amount: f.Amount, Currency: f.Currency, BlocksOrder: true,
		Detail: fmt.Sprintf("%s for refund %s of trade %s, which this service did not ask for", f.Event, f.RefundNo, f.TradeNo),
	})
	return Result{Parked, "", "no such refund; a person is asked", p.OrderNo}, err
}

// refundSucceeded books money that has gone back.
func (s *Service) refundSucceeded(ctx context.Context, tx *sql.Tx, r Refund, f Fact) (Result, error) {
	switch r.Status {
	case RefundSuccess:
		return Result{Repeated, apperr.LayerDedup, "this refund was booked before", r.OrderNo}, nil
	case RefundFailed:
		return s.refundAfterFailure(ctx, tx, r, f)
	}
	if err := s.move(ctx, tx, r, RefundProcessing, RefundSuccess, f); err != nil {
		return Result{}, err
	}
	return Result{Disposal: Applied, Outcome: "refund SUCCESS", OrderNo: r.OrderNo}, s.bookRefund(ctx, tx, r, int64(r.Amount), ledger.Refund)
}

// refundAfterFailure: the cap was freed when the refund failed, and now the money is gone after all. Another refund may have
// taken the freed amount since, so no rule can book this; a person does.
func (s *Service) refundAfterFailure(ctx context.Context, tx *sql.Tx, r Refund, f Fact) (Result, error) {
	if r.DecidedAt != nil && !f.OccurredAt.After(*r.DecidedAt) {
		return Result{Stale, apperr.LayerState, "older than the failure", r.OrderNo}, nil
	}
	if err := s.Orders.Lock(ctx, tx, r.OrderNo); err != nil { // so that shipping comes before or after, not between
		return Result{}, err
	}
	err := s.Exceptions.Open(ctx, tx, exception.Exception{
		Kind: exception.RefundAfterFailure, Subject: r.RefundNo, OrderNo: r.OrderNo, Channel: r.Channel, Amount: r.Amount, Currency: r.Currency, BlocksOrder: true,
		Detail: fmt.Sprintf("refund %s had failed and its amount was free again; now the channel says it succeeded", r.RefundNo),
	})
	return Result{Personal, apperr.LayerState, "the refund had failed before", r.OrderNo}, err
}

// refundFailed frees the cap, once. After a success it also takes the booking back, and a person looks.
func (s *Service) refundFailed(ctx context.Context, tx *sql.Tx, r Refund, f Fact) (Result, error) {
	switch {
	case r.Status == RefundFailed:
		return Result{Repeated, apperr.LayerDedup, "this failure was booked before", r.OrderNo}, nil
	case r.Status == RefundSuccess && r.DecidedAt != nil && !f.OccurredAt.After(*r.DecidedAt):
		return Result{Stale, apperr.LayerState, "older than the success", r.OrderNo}, nil
	}
	if err := s.move(ctx, tx, r, r.Status, RefundFailed, f); err != nil {
		return Result{}, err
	}
	if err := freeRefund(ctx, tx, r); err != nil {
		return Result{}, fmt.Errorf("free the cap of refund %s: %w", r.RefundNo, err)
	}
	if r.Status == RefundSuccess {
		if err := s.bookRefund(ctx, tx, r, -int64(r.Amount), ledger.RefundUndo); err != nil {
			return Result{}, err
		}
	}
	paid, err := paidItsOrder(ctx, tx, r)
	if err != nil {
		return Result{}, err
	}
	if paid {
		if err := s.Orders.RefundFailed(ctx, tx, r.OrderNo, refundCause(r.RefundNo)); err != nil {
			return Result{}, err
		}
	}
	return s.tellFailure(ctx, tx, r)
}

// tellFailure asks a person when the failure leaves something to be decided: a success taken back, or money of nobody's.
func (s *Service) tellFailure(ctx context.Context, tx *sql.Tx, r Refund) (Result, error) {
	e := exception.Exception{Subject: r.RefundNo, OrderNo: r.OrderNo, Channel: r.Channel, Amount: r.Amount, Currency: r.Currency}
	switch {
	case r.Status == RefundSuccess:
		e.Kind, e.BlocksOrder = exception.RefundUndone, true // the buyer waits for money, not for goods
		e.Detail = fmt.Sprintf("the channel took the success of refund %s back; the amount may be refunded again", r.RefundNo)
	case r.Auto:
		e.Kind, e.Detail = exception.AutoRefundFailed, fmt.Sprintf("refund %s of late or double money failed; the money is still here", r.RefundNo)
	default:
		return Result{Disposal: Applied, Outcome: "refund FAILED", OrderNo: r.OrderNo}, nil
	}
	return Result{Disposal: Applied, Outcome: "refund FAILED; a person is asked", OrderNo: r.OrderNo}, s.Exceptions.Open(ctx, tx, e)
}

// move is a refund's one change of state: a conditional update. Who comes too late reads again.
func (s *Service) move(ctx context.Context, tx *sql.Tx, r Refund, from, to RefundStatus, f Fact) error {
	moved, err := decide(ctx, tx, r.RefundNo, from, to, f.OccurredAt, s.Now())
	if err != nil {
		return fmt.Errorf("refund %s to %s: %w", r.RefundNo, to, err)
	}
	if !moved {
		return fmt.Errorf("refund %s moved on from %s: %w", r.RefundNo, from, mysqldb.ErrStale)
	}
	return nil
}

// refundMessage is the payload of a refund's messages: the refund as clients see it, and how its order's money stands with it.
type refundMessage struct {
	refundView
	UserID int64 `json:"user_id"`
	order.Money
}

// noOrderMoney is the RefundSeq of a refund that returns money which never paid an order: it changes nothing of the order's.
const noOrderMoney = -1

// bookRefund writes what a refund's success owes (amount > 0), or what taking it back does (amount < 0): the attempt's sum, the
// order's, the posting and the message.
func (s *Service) bookRefund(ctx context.Context, tx *sql.Tx, r Refund, amount int64, kind string) error {
	now := s.Now()
	if err := countRefunded(ctx, tx, r.PayNo, amount, now); err != nil {
		return fmt.Errorf("count refund %s: %w", r.RefundNo, err)
	}
	paid, err := paidItsOrder(ctx, tx, r)
	if err != nil {
		return err
	}
	account, m := ledger.Suspense, order.Money{RefundSeq: noOrderMoney}
	if paid {
		account = ledger.Sales
		if m, err = s.Orders.CountRefund(ctx, tx, r.OrderNo, amount, refundCause(r.RefundNo)); err != nil {
			return err
		}
	}
	t := ledger.Transfer{
		Cause: refundCause(r.RefundNo), Kind: kind, Debit: account, Credit: ledger.Channel(r.Channel), Amount: r.Amount, Currency: r.Currency, OrderNo: r.OrderNo,
	}
	event := "refund.succeeded"
	if amount < 0 {
		t.Debit, t.Credit = t.Credit, t.Debit
		event = "refund.undone"
	}
	if err := ledger.Post(ctx, tx, t, now); err != nil {
		return err
	}
	return outbox.Add(ctx, tx, outbox.Message{
		ID: refundMessageID(r.RefundNo, event), Topic: event, Key: r.OrderNo, Version: m.RefundSeq, Payload: refundMessage{r.view(), r.UserID, m},
	}, now)
}
