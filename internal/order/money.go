package order

import (
	"context"
	"database/sql"
	"time"

	"example.com/oncepay/internal/auth"
)

// This file is what the money path (package payment) asks of orders. All of it runs in the caller's transaction, so that the
// order, the money and the goods move together.

// MarkPaid records that money arrived. The cause is the trade that brought it: the same trade again is Already, another trade
// is refused as illegal once the order is paid or has ended, because it is other money.
func (s *Service) MarkPaid(ctx context.Context, tx *sql.Tx, orderNo, trade string, at time.Time) (Order, Outcome, error) {
	return s.Apply(ctx, tx, orderNo, Move{To: Paid, From: []Status{Init}, Cause: trade, Actor: "system:payment", PaidAt: &at})
}

// Lock holds the order's row to the transaction's end.
func (s *Service) Lock(ctx context.Context, tx *sql.Tx, orderNo string) error {
	o, err := lockRow(ctx, tx, orderNo)
	if err == nil && o == nil {
		err = errNotFound()
	}
	return err
}

// LockFor holds the row of the caller's own order and returns it. An operator's role does not make an order theirs to pay.
func (s *Service) LockFor(ctx context.Context, tx *sql.Tx, orderNo string, by auth.Caller) (Order, error) {
	o, err := lockRow(ctx, tx, orderNo)
	if err != nil {
		return Order{}, err
	}
	if o == nil || o.UserID != by.UserID {
		return Order{}, errNotFound()
	}
	return *o, nil
}

// DueToClose lists unpaid orders whose time to pay is over.
func (s *Service) DueToClose(ctx context.Context, now time.Time, limit int) ([]Due, error) {
	return dueToClose(ctx, s.DB, now, limit)
}

// ClaimClose takes the closing of an order for this instance by moving its time on. False: another instance has it.
func (s *Service) ClaimClose(ctx context.Context, d Due, next time.Time) (bool, error) {
	return claimClose(ctx, s.DB, d, next)
}

// Expire ends an unpaid order whose attempts are all closed at their channels, and gives its stock back, once.
func (s *Service) Expire(ctx context.Context, tx *sql.Tx, orderNo string) error {
	_, _, err := s.Apply(ctx, tx, orderNo, Move{To: Cancelled, From: []Status{Init}, Cause: causeExpire, Actor: "system:timeout"})
	return err
}

// StartRefund marks that all of an order's money is on its way back.
func (s *Service) StartRefund(ctx context.Context, tx *sql.Tx, orderNo, refund string, by auth.Caller) error {
	_, _, err := s.Apply(ctx, tx, orderNo, Move{To: Refunding, From: []Status{Paid, Shipped, Finished}, Cause: refund, Actor: by.Actor()})
	return err
}

// CountRefund adds what a refund gave back (or takes it off again, amount < 0), and returns how the order's money stands then.
// When all of it is back the order is REFUNDED.
func (s *Service) CountRefund(ctx context.Context, tx *sql.Tx, orderNo string, amount int64, refund string) (Money, error) {
	if err := addRefunded(ctx, tx, orderNo, amount, s.Now()); err != nil {
		return Money{}, err
	}
	o, err := Get(ctx, tx, orderNo)
	if err != nil {
		return Money{}, err
	}
	if o.RefundedAmount != o.Amount || o.Status != Refunding {
		return o.Money(), nil
	}
	_, _, err = s.Apply(ctx, tx, orderNo, Move{To: Refunded, From: []Status{Refunding}, Cause: refund + ":done", Actor: "system:payment"})
	return o.Money(), err
}

// RefundFailed brings an order whose money was all on its way back to where it stood: some of it stays.
func (s *Service) RefundFailed(ctx context.Context, tx *sql.Tx, orderNo, refund string) error {
	o, err := Get(ctx, tx, orderNo)
	if err != nil {
		return err
	}
	if o.Status != Refunding && o.Status != Refunded {
		return nil // only a part was on its way; the order had not moved
	}
	before, err := statusBeforeRefund(ctx, tx, orderNo)
	if err != nil {
		return err
	}
	_, _, err = s.Apply(ctx, tx, orderNo, Move{To: before, From: []Status{Refunding, Refunded}, Cause: refund + ":failed", Actor: "system:payment"})
	return err
}
