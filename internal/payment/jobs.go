package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/order"
)

// batch is how many rows one round of a job takes: enough to keep up, few enough that other instances share the work.
const batch = 50

// unknownLooks are the pauses before each look at an outcome nobody knows. Most channels know within seconds; the long tail is
// for their outages. After the last look a person is asked.
func unknownLooks() []time.Duration {
	return []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	}
}

const (
	// pendingLook is the first pause while the buyer has the page open; the notice usually comes first.
	pendingLook = 30 * time.Second
	// maxPendingLook bounds its doubling, so that a lost notice delays an order by minutes at most.
	maxPendingLook = 5 * time.Minute
)

// nextLook is when to look at an attempt again after so many looks; nil after the last one at an unknown outcome.
func nextLook(status Status, looks int, now time.Time) *time.Time {
	var pause time.Duration
	switch schedule := unknownLooks(); {
	case status == Pending:
		pause = min(pendingLook<<min(looks, 10), maxPendingLook)
	case looks < len(schedule):
		pause = schedule[looks]
	default:
		return nil
	}
	at := now.Add(pause)
	return &at
}

// lastLook is when another instance takes the last look at an unknown outcome over: the one that claimed it died before it
// could ask a person.
const lastLook = time.Minute

// claimUntil is the time that claims a look: the next one's, or for the last look its own repeat.
func claimUntil(next *time.Time, now time.Time) *time.Time {
	if next != nil {
		return next
	}
	at := now.Add(lastLook)
	return &at
}

const (
	// slowLook is the pause between looks at a refund after the first hours: banks take days to return money.
	slowLook = 2 * time.Hour
	// slowLooks of them make a week, after which a person asks the channel.
	slowLooks = 84
)

// nextRefundLook is when to call or look for a refund again after so many looks; nil after the last one.
func nextRefundLook(looks int, now time.Time) *time.Time {
	if at := nextLook(Unknown, looks, now); at != nil || looks >= len(unknownLooks())+slowLooks {
		return at
	}
	at := now.Add(slowLook)
	return &at
}

// PollPayments asks the channels about attempts that are due. Each look is claimed by moving its time on, so that of several
// instances one looks. It returns the errors of the looks that failed; the next round comes anyway.
func (s *Service) PollPayments(ctx context.Context) error {
	due, err := duePayments(ctx, s.DB, s.Now(), batch)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range due {
		next := nextLook(p.Status, p.Polls+1, s.Now())
		claimed, err := claimPayment(ctx, s.DB, p, claimUntil(next, s.Now()))
		if err != nil {
			return fmt.Errorf("claim payment %s: %w", p.PayNo, err)
		}
		if !claimed {
			continue
		}
		if err := s.look(ctx, p, next == nil); err != nil {
			errs = append(errs, fmt.Errorf("payment %s: %w", p.PayNo, err))
		}
	}
	return errors.Join(errs...)
}

// look asks the channel once. An attempt whose order has ended is closed there, so that no more money comes.
func (s *Service) look(ctx context.Context, p Payment, last bool) error {
	ch, ok := s.Channels[p.Channel]
	if !ok {
		return fmt.Errorf("no channel %q", p.Channel)
	}
	callCtx, cancel := context.WithTimeout(ctx, s.CallBudget)
	defer cancel()
	trade, callErr := ch.Query(callCtx, p.PayNo)
	if callErr == nil && trade.Status == TradePending {
		o, err := order.Get(ctx, s.DB, p.OrderNo)
		if err != nil {
			return err
		}
		if o.Status != order.Init {
			closeCtx, cancel := context.WithTimeout(ctx, s.CallBudget)
			defer cancel()
			trade, callErr = ch.Close(closeCtx, p.PayNo)
		}
	}
	if callErr == nil && trade.Status != TradePending {
		return s.take(ctx, tradeFact(ch, p, trade, "query"))
	}
	return s.DB.InTx(ctx, func(tx *sql.Tx) error { return s.noteLook(ctx, tx, p, trade, callErr, last) })
}

// take makes a fact that a job found take effect, in a transaction of its own.
func (s *Service) take(ctx context.Context, f Fact) error {
	var res Result
	err := s.DB.InTx(ctx, func(tx *sql.Tx) (err error) {
		res, err = s.Apply(ctx, tx, f)
		return err
	})
	if err == nil {
		s.Count(f, res)
	}
	return err
}

// patience is how many looks at a trade that the channel confirmed and then does not know come before a person is asked: half an
// hour, in which its own trouble should have passed.
const patience = 8

// enoughLooks: a channel that says twice it knows no such trade has never got the charge.
const enoughLooks = 2

// noteLook records a look that found nothing decided.
func (s *Service) noteLook(ctx context.Context, tx *sql.Tx, p Payment, trade Trade, callErr error, last bool) error {
	now := s.Now()
	switch {
	case errors.Is(callErr, ErrNotThere) && p.Status != Pending && p.Polls+1 >= enoughLooks:
		_, err := ended(ctx, tx, p.PayNo, Failed, now)
		return err
	case errors.Is(callErr, ErrNotThere) && p.Polls+1 >= patience:
		return errors.Join(s.forgotten(ctx, tx, p, false), stopPolling(ctx, tx, p.PayNo))
	case callErr != nil && last:
		err := s.Exceptions.Open(ctx, tx, exception.Exception{
			Kind: exception.PaymentUnresolved, Subject: p.PayNo, OrderNo: p.OrderNo, Channel: p.Channel, Amount: p.Amount, Currency: p.Currency,
			Detail: fmt.Sprintf("the channel never said what became of payment %s; last answer: %v", p.PayNo, callErr),
		})
		return errors.Join(err, stopPolling(ctx, tx, p.PayNo))
	case callErr != nil:
		return nil // the next look is planned
	default:
		_, err := answered(ctx, tx, p.PayNo, Pending, trade.TradeNo, trade.PayURL, nextLook(Pending, p.Polls+1, now), now)
		return err
	}
}

// closeRetry is the pause before an order is tried again whose attempts could not be closed: the channel did not answer.
const closeRetry = 30 * time.Second

// CloseExpired ends orders whose time to pay is over: query the channel, close there, then cancel, in this order. If the
// channel says paid, the order is PAID; if it does not answer, nothing is cancelled yet. Each order is claimed by moving its
// time on, so that of several instances one does it.
func (s *Service) CloseExpired(ctx context.Context) error {
	due, err := s.Orders.DueToClose(ctx, s.Now(), batch)
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range due {
		claimed, err := s.Orders.ClaimClose(ctx, o, s.Now().Add(closeRetry))
		if err != nil {
			return err
		}
		if claimed {
			if err := s.closeOne(ctx, o.OrderNo); err != nil {
				errs = append(errs, fmt.Errorf("close order %s: %w", o.OrderNo, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *Service) closeOne(ctx context.Context, orderNo string) error {
	// An order that a person has to look at stays as it is until they have.
	if blocked, err := s.Exceptions.Blocks(ctx, s.DB, orderNo); err != nil || blocked {
		return err
	}
	attempts, err := paymentsOf(ctx, s.DB, orderNo)
	if err != nil {
		return err
	}
	for _, p := range attempts {
		if !p.Status.Open() {
			continue
		}
		if err := s.closeAttempt(ctx, p); err != nil {
			return err
		}
	}
	err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
		if err := s.Orders.Lock(ctx, tx, orderNo); err != nil {
			return err
		}
		// Again, now that the row is held: whoever blocks an order locks it first.
		if blocked, err := s.Exceptions.Blocks(ctx, tx, orderNo); err != nil || blocked {
			return err
		}
		attempts, err := paymentsOf(ctx, tx, orderNo)
		if err != nil {
			return err
		}
		for _, p := range attempts {
			if p.Status.Open() {
				return nil // one began in between; the next round closes it first
			}
		}
		return s.Orders.Expire(ctx, tx, orderNo)
	})
	if apperr.Is(err, order.CodeIllegalMove) {
		return nil // it was paid meanwhile: what had to be decided is decided
	}
	return err
}

// closeAttempt asks what became of an attempt and closes it at the channel if nothing did.
func (s *Service) closeAttempt(ctx context.Context, p Payment) error {
	ch, ok := s.Channels[p.Channel]
	if !ok {
		return fmt.Errorf("no channel %q", p.Channel)
	}
	callCtx, cancel := context.WithTimeout(ctx, 2*s.CallBudget)
	defer cancel()
	trade, err := ch.Query(callCtx, p.PayNo)
	if err == nil && trade.Status == TradePending {
		trade, err = ch.Close(callCtx, p.PayNo)
	}
	if errors.Is(err, ErrNotThere) {
		return s.DB.InTx(ctx, func(tx *sql.Tx) error { return s.closeForgotten(ctx, tx, p) })
	}
	if err != nil {
		return fmt.Errorf("payment %s: %w", p.PayNo, err)
	}
	if trade.Status == TradePending {
		return fmt.Errorf("payment %s is still open at the channel after closing it", p.PayNo)
	}
	return s.take(ctx, tradeFact(ch, p, trade, "query"))
}

// closeForgotten ends an attempt that its channel does not know. If the channel had confirmed its trade, that is no proof that no
// money came: a person is asked, and the order stays until they have resolved it.
func (s *Service) closeForgotten(ctx context.Context, tx *sql.Tx, p Payment) error {
	if p.TradeNo != "" {
		settled, err := s.Exceptions.Resolved(ctx, tx, exception.PaymentUnresolved, p.PayNo)
		if err != nil {
			return err
		}
		if !settled {
			return s.forgotten(ctx, tx, p, true)
		}
	}
	_, err := ended(ctx, tx, p.PayNo, Closed, s.Now())
	return err
}

func (s *Service) forgotten(ctx context.Context, tx *sql.Tx, p Payment, blocks bool) error {
	return s.Exceptions.Open(ctx, tx, exception.Exception{
		Kind: exception.PaymentUnresolved, Subject: p.PayNo, OrderNo: p.OrderNo, Channel: p.Channel, Amount: p.Amount, Currency: p.Currency, BlocksOrder: blocks,
		Detail: fmt.Sprintf("the channel had confirmed trade %s of payment %s and now knows nothing of it", p.TradeNo, p.PayNo),
	})
}

// SendRefunds calls the channel for refunds that are due and asks about those in flight. A refund keeps its number over all
// of it, and is never ended locally while nobody knows.
func (s *Service) SendRefunds(ctx context.Context) error {
	due, err := dueRefunds(ctx, s.DB, s.Now(), batch)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range due {
		next := nextRefundLook(r.Polls, s.Now())
		claimed, err := claimRefund(ctx, s.DB, r, claimUntil(next, s.Now()))
		if err != nil {
			return fmt.Errorf("claim refund %s: %w", r.RefundNo, err)
		}
		if !claimed {
			continue
		}
		if err := s.sendRefund(ctx, r, next == nil); err != nil {
			errs = append(errs, fmt.Errorf("refund %s: %w", r.RefundNo, err))
		}
	}
	return errors.Join(errs...)
}

// sendRefund asks first whether the channel has the refund already, unless this is the first call ever.
func (s *Service) sendRefund(ctx context.Context, r Refund, last bool) error {
	ch, ok := s.Channels[r.Channel]
	if !ok {
		return fmt.Errorf("no channel %q", r.Channel)
	}
	callCtx, cancel := context.WithTimeout(ctx, 2*s.CallBudget)
	defer cancel()
	state, callErr := RefundState{}, ErrNotThere
	if r.Polls > 0 {
		state, callErr = ch.QueryRefund(callCtx, r.RefundNo)
	}
	if errors.Is(callErr, ErrNotThere) {
		state, callErr = ch.Refund(callCtx, RefundOrder{
			RefundNo: r.RefundNo, PayNo: r.PayNo, TradeNo: r.TradeNo, Amount: r.Amount, NotifyURL: s.notifyURL(ch.Name()),
		})
	}
	f := Fact{
		Event: EventRefunded, Channel: ch.Name(), Merchant: ch.Merchant(), PayNo: r.PayNo, TradeNo: r.TradeNo, RefundNo: r.RefundNo,
		Amount: r.Amount, Currency: r.Currency, OccurredAt: state.At, Source: "query",
	}
	var refused *Refused
	switch {
	case errors.As(callErr, &refused):
		s.Log.ErrorContext(ctx, "the channel refused a refund", "refund_no", r.RefundNo, "error", callErr)
		f.Event, f.OccurredAt = EventRefundFailed, s.Now()
	case callErr == nil && state.Status == RefundSuccess:
	case callErr == nil && state.Status == RefundFailed:
		f.Event = EventRefundFailed
	case last:
		return s.DB.InTx(ctx, func(tx *sql.Tx) error {
			err := s.Exceptions.Open(ctx, tx, exception.Exception{
				Kind: exception.RefundUnresolved, Subject: r.RefundNo, OrderNo: r.OrderNo, Channel: r.Channel, Amount: r.Amount, Currency: r.Currency,
				Detail: fmt.Sprintf("the channel has not decided refund %s after %d calls; last error: %v", r.RefundNo, r.Polls+1, callErr),
			})
			return errors.Join(err, stopSending(ctx, tx, r.RefundNo))
		})
	default:
		return callErr // still in flight, or not known: the next look is planned
	}
	return s.take(ctx, f)
}
