package bill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/payment"
)

// reconcile is one run over a day. What an earlier run has reported is left alone.
func (s *Service) reconcile(ctx context.Context, rec *Reconciliation, ch payment.Channel, d day) error {
	before, err := get(ctx, s.DB, rec.ID)
	if err != nil {
		return err
	}
	reported := make(map[string]bool, len(before.Differences))
	for _, r := range before.Differences {
		reported[string(r.Class)+" "+r.Subject] = true
	}
	// Our side first: money that arrives from now on may be in the bill, and is looked for there; it is not missed in it.
	ours, err := bookedOn(ctx, s.DB, rec.Channel, d)
	if err != nil {
		return err
	}
	b, err := s.fetch(ctx, ch, d)
	if err != nil {
		return err
	}
	under, err := lookUp(ctx, s.DB, rec.Channel, b.Lines)
	if err != nil {
		return err
	}
	findings, matched := compare(rec.Channel, b.Lines, under)
	rec.BillLines, rec.Matched, rec.BillSHA256 = len(b.Lines), matched, b.SHA256
	for _, row := range missing(ours, b.Lines) {
		findings = append(findings, finding{class: LocalOnly, entry: row.entry, ours: &row})
	}
	for _, f := range findings {
		if reported[string(f.class)+" "+f.entry.String()] {
			continue
		}
		agreed, err := s.settle(ctx, rec.ID, ch, d, f)
		if err != nil {
			return fmt.Errorf("%s %s: %w", f.class, f.entry, err)
		}
		if agreed && f.line != nil {
			rec.Matched++
		}
	}
	return nil
}

// fetch gets the bill and keeps it.
func (s *Service) fetch(ctx context.Context, ch payment.Channel, d day) (payment.Bill, error) {
	callCtx, cancel := context.WithTimeout(ctx, fetchBudget)
	defer cancel()
	b, err := ch.Bill(callCtx, d.name)
	switch {
	case errors.Is(err, payment.ErrBillChecksum):
		return b, apperr.New(apperr.Unavailable, codeChecksum, "The channel's bill is not what its hash says. Nothing was compared; it will be fetched again.").
			After(firstRetry).Wrap(err)
	case errors.Is(err, payment.ErrBillUnreadable):
		return b, apperr.New(apperr.Unavailable, codeUnreadable, "The channel's bill cannot be read to its end. Nothing was compared; it will be fetched again.").
			After(firstRetry).Wrap(err)
	case err != nil:
		return b, silent(err)
	}
	return b, keep(ctx, s.DB, ch.Name(), b, s.Now())
}

// silent is a channel that does not answer, or is known not to (the breaker says so itself).
func silent(err error) error {
	if _, ok := apperr.As(err); ok {
		return err
	}
	return apperr.New(apperr.Unavailable, "channel_unavailable", "The payment channel does not answer at the moment. The day will be compared later.").
		After(firstRetry).Wrap(err)
}

// settle decides what becomes of a finding: in one transaction the repair, or the question to a person, and the row that reports
// it. True: bill and books agree after all.
func (s *Service) settle(ctx context.Context, id int64, ch payment.Channel, d day, f finding) (agreed bool, err error) {
	if f.class == LocalOnly {
		if f.detail, err = s.ask(ctx, ch, d, *f.ours); err != nil || f.detail == "" {
			return f.detail == "", err
		}
	}
	var res payment.Result
	err = s.DB.InTx(ctx, func(tx *sql.Tx) (err error) {
		diff := f.difference()
		switch f.class {
		case ChannelOnly:
			if res, err = s.Payments.Apply(ctx, tx, fact(ch, *f.line)); err != nil || res.Disposal == payment.Repeated {
				return err // Repeated: we heard of it since we looked
			}
			err = s.repaired(ctx, tx, ch, &diff, res)
		case RepeatedLine:
			diff.Outcome = Noted
		default:
			err = s.question(ctx, tx, ch, diff, f.entry.kind == payment.BillPayment)
		}
		if err != nil {
			return err
		}
		return insertDifference(ctx, tx, id, diff, s.Now())
	})
	if errors.Is(err, errReported) { // by a run at the same time; what this one did is rolled back
		s.Metrics.GuardHit(apperr.LayerUniqueIndex, "bill.difference", metrics.Replayed)
		return false, nil
	}
	if err != nil || f.class != ChannelOnly {
		return false, err
	}
	s.Payments.Count(fact(ch, *f.line), res)
	s.Payments.Wake() // there may be money to return
	return res.Disposal == payment.Repeated, nil
}

// fact is a line in the terms of Apply.
func fact(ch payment.Channel, l payment.BillLine) payment.Fact {
	event := payment.EventPaid
	switch l.Kind {
	case payment.BillRefund:
		event = payment.EventRefunded
	case payment.BillReversal:
		event = payment.EventRefundFailed
	}
	return payment.Fact{
		Event: event, Channel: ch.Name(), Merchant: ch.Merchant(), PayNo: l.PayNo, TradeNo: l.TradeNo, RefundNo: l.RefundNo,
		Amount: l.Amount, Currency: l.Currency, OccurredAt: l.At, Source: "bill",
	}
}

// repaired notes what Apply made of money that only the channel knew. Where Apply has asked a person itself, nobody asks again.
func (s *Service) repaired(ctx context.Context, tx *sql.Tx, ch payment.Channel, diff *Difference, res payment.Result) error {
	diff.Detail = res.Outcome
	if diff.OrderNo == "" {
		diff.OrderNo = res.OrderNo
	}
	asked := res.Disposal == payment.Personal || res.Disposal == payment.Parked && res.OrderNo != ""
	switch {
	case res.Disposal == payment.Applied:
		diff.Outcome = Repaired
		return nil
	case asked:
		return nil
	default:
		return s.question(ctx, tx, ch, *diff, false)
	}
}

// question asks a person. Blocks: the order's goods wait for the answer, as its money may not be there.
func (s *Service) question(ctx context.Context, tx *sql.Tx, ch payment.Channel, diff Difference, blocks bool) error {
	blocks = blocks && diff.OrderNo != ""
	if blocks { // so that shipping comes before or after, not between; a row that lost its order is a difference all the same
		if err := s.Payments.Orders.Lock(ctx, tx, diff.OrderNo); err != nil && !apperr.Is(err, "order_not_found") {
			return err
		}
	}
	kinds := map[Class]exception.Kind{
		ChannelOnly: exception.BillChannelOnly, LocalOnly: exception.BillLocalOnly, AmountMismatch: exception.BillAmountMismatch,
	}
	return s.Exceptions.Open(ctx, tx, exception.Exception{
		Kind: kinds[diff.Class], Subject: ch.Name() + ":" + diff.Subject, OrderNo: diff.OrderNo, Channel: ch.Name(),
		Amount: diff.amount(), Currency: diff.Currency, Detail: diff.Detail, BlocksOrder: blocks,
	})
}

// ask asks the channel about money that its bill does not have. "": the channel confirms it, and its own time is of another day.
func (s *Service) ask(ctx context.Context, ch payment.Channel, d day, b booked) (why string, err error) {
	callCtx, cancel := context.WithTimeout(ctx, s.Payments.CallBudget)
	defer cancel()
	var (
		confirmed bool
		at        time.Time
	)
	if b.kind == payment.BillPayment {
		var t payment.Trade
		t, err = ch.Query(callCtx, b.payNo)
		confirmed = t.Status == payment.TradeSucceeded && t.TradeNo == b.tradeNo && t.Amount == b.amount && t.Currency == b.currency
		at = t.At
	} else {
		var r payment.RefundState
		r, err = ch.QueryRefund(callCtx, b.number)
		confirmed, at = r.Status == payment.RefundSuccess, r.At
	}
	var refused *payment.Refused
	switch {
	case errors.Is(err, payment.ErrNotThere):
		return "neither the bill nor the channel itself knows it", nil
	case errors.As(err, &refused):
		return "the bill does not have it, and the channel refuses to tell: " + refused.Code, nil
	case err != nil:
		return "", silent(err)
	case !confirmed:
		return "the bill does not have it, and the channel does not confirm that it succeeded with this amount", nil
	case !at.IsZero() && d.has(at):
		return "the channel confirms it for this day, but the bill does not have it", nil
	default:
		return "", nil
	}
}
