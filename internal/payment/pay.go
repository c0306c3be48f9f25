package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/web"
)

// PayInput is a checked request to pay an order.
type PayInput struct {
	OrderNo string
	Channel string
	By      auth.Caller
	Key     idemkey.Key
}

const opPay = "payment.create"

// firstLook is when the jobs look at an attempt whose run has not recorded an answer: longer than a call's budget, so that a
// living run is not disturbed.
const firstLook = 10 * time.Second

// Pay opens an attempt to pay an order, or gives the open one again. The answer is 201 with the attempt, or 202 while nobody
// knows whether the channel took it.
//
// Errors: NotFound order_not_found; Invalid channel_unknown; Conflict order_state_illegal, order_expired; Declined
// payment_declined; InProgress payment_unresolved while another attempt's outcome is unknown; Unavailable channel_unavailable.
func (s *Service) Pay(ctx context.Context, in PayInput) (web.Answer, error) {
	ch, err := s.channel(in.Channel)
	if err != nil {
		return web.Answer{}, err
	}
	// Guard 1: Idempotency-Key.
	if stored, err := s.Keys.Find(ctx, in.Key); err != nil {
		return web.Answer{}, err
	} else if stored != nil {
		return *stored, nil
	}
	// Guard 2: lock. Attempts on one order queue, so that the channel is not called side by side.
	var answer web.Answer
	err = s.Locks.Do(ctx, opPay, bizkey.Build("p1", in.OrderNo), func(ctx context.Context) error {
		answer, err = s.pay(ctx, in, ch)
		return err
	})
	return answer, err
}

// pay is: record the intention, call, record the outcome. No call is made inside a transaction.
func (s *Service) pay(ctx context.Context, in PayInput, ch Channel) (web.Answer, error) {
	p, answer, err := s.intend(ctx, in)
	switch {
	case errors.Is(err, idemkey.ErrTaken):
		return s.Keys.Replay(ctx, in.Key)
	case idemkey.Final(err):
		return s.Keys.Keep(ctx, in.Key, web.Problem(ctx, err))
	case errors.Is(err, mysqldb.ErrOutcomeUnknown): // the claim may be there, and nothing was sent
		return web.Answer{}, errors.Join(err, s.abandon(ctx, in.Key))
	case err != nil:
		return web.Answer{}, err
	case answer != nil:
		return s.Keys.First(in.Key, *answer), nil
	}
	callCtx, cancel := detached(ctx, s.CallBudget)
	defer cancel()
	trade, callErr := ch.Charge(callCtx, Charge{PayNo: p.PayNo, Amount: p.Amount, Currency: p.Currency, NotifyURL: s.notifyURL(ch.Name())})
	if apperr.Is(callErr, codeChannelDown) { // not called at all
		return web.Answer{}, errors.Join(callErr, s.withdraw(ctx, p), s.abandon(ctx, in.Key))
	}
	// From here on neither the client's going nor the lock's loss ends the run: the answer is known here and nowhere else.
	ctx, stop := detached(ctx, recordBudget)
	defer stop()
	recorded, err := s.record(ctx, in, ch, p, trade, callErr)
	switch {
	case err == nil:
		return s.Keys.First(in.Key, recorded), nil
	case errors.Is(err, idemkey.ErrTaken): // presumed dead, this run was taken over; what the other one stored counts
		return s.Keys.Replay(ctx, in.Key)
	default:
		return web.Answer{}, errors.Join(err, s.abandon(ctx, in.Key))
	}
}

// abandon gives the key up after a failure that is not an answer, so that the same request may run again at once. If that
// fails too, the lease ends it.
func (s *Service) abandon(ctx context.Context, k idemkey.Key) error {
	ctx, cancel := detached(ctx, recordBudget)
	defer cancel()
	return s.Keys.Abandon(ctx, k)
}

// withdraw ends an attempt that this run began and of which the channel has not heard, so that it does not keep the order from
// another channel. One that an earlier run began may have been heard of, and stays.
func (s *Service) withdraw(ctx context.Context, p Payment) error {
	if !p.fresh {
		return nil
	}
	ctx, cancel := detached(ctx, recordBudget)
	defer cancel()
	return s.DB.InTx(ctx, func(tx *sql.Tx) error {
		_, err := ended(ctx, tx, p.PayNo, Failed, s.Now())
		return err
	})
}

// intend records, in one transaction, that this key is at work and which attempt it is about. An attempt that needs no call
// is answered at once.
func (s *Service) intend(ctx context.Context, in PayInput) (p Payment, answer *web.Answer, err error) {
	err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
		answer = nil
		// Guard 3: the key's record.
		if err := s.Keys.Begin(ctx, tx, in.Key); err != nil {
			return err
		}
		// Guard 4: the order's row, locked: no attempt starts while another starts, or while the order ends.
		o, err := s.Orders.LockFor(ctx, tx, in.OrderNo, in.By)
		if err != nil {
			return err
		}
		attempts, err := paymentsOf(ctx, tx, o.OrderNo)
		if err != nil {
			return err
		}
		if p, err = s.attempt(o, attempts, in.Channel); err != nil {
			return err
		}
		if p.PayNo == "" {
			p, err = s.newAttempt(ctx, tx, o, in.Channel)
			return err
		}
		if p.Status == Created { // its run died, or is slow: calling again with the same number is harmless
			return nil
		}
		done, err := paymentAnswer(p)
		if err != nil {
			return err
		}
		answer = &done
		return s.Keys.Finish(ctx, tx, in.Key, done)
	})
	return p, answer, err
}

// attempt finds the order's open attempt on a channel; a zero Payment means that a new one may start.
func (s *Service) attempt(o order.Order, attempts []Payment, channel string) (Payment, error) {
	if o.Status != order.Init {
		return Payment{}, apperr.New(apperr.Conflict, order.CodeIllegalMove, "The order is %s; only an unpaid one can be paid.", o.Status).
			At(apperr.LayerState).With("order_status", o.Status)
	}
	var open Payment
	for _, a := range attempts {
		// CREATED on another channel is as unknown: its run died after the call, or is in the middle of it.
		if (a.Status == Unknown || a.Status == Created) && a.Channel != channel {
			return Payment{}, apperr.New(apperr.InProgress, "payment_unresolved",
				"Attempt %s on %s may have taken the money; it is being asked. Try again soon.", a.PayNo, a.Channel).
				At(apperr.LayerState).After(unresolvedRetry)
		}
		if a.Status.Open() && a.Channel == channel {
			open = a
		}
	}
	if open.PayNo == "" && !s.Now().Before(o.ExpiresAt) {
		return Payment{}, apperr.New(apperr.Conflict, "order_expired", "The time to pay ended at %s.", o.ExpiresAt.Format(time.RFC3339)).
			At(apperr.LayerState)
	}
	return open, nil
}

// unresolvedRetry: the jobs have looked a few times by then.
const unresolvedRetry = 5 * time.Second

func (s *Service) newAttempt(ctx context.Context, tx *sql.Tx, o order.Order, channel string) (Payment, error) {
	payNo, err := s.NewPayNo()
	if err != nil {
		return Payment{}, fmt.Errorf("make pay_no: %w", err)
	}
	now := s.Now()
	look := now.Add(firstLook)
	p := Payment{
		PayNo: payNo, OrderNo: o.OrderNo, UserID: o.UserID, Channel: channel, Amount: o.Amount, Currency: o.Currency,
		Status: Created, NextPollAt: &look, CreatedAt: now, fresh: true,
	}
	// Guard 5: the unique index uk_open.
	return p, insertPayment(ctx, tx, p, now)
}

// record stores the channel's answer together with the key's, or that there is none.
func (s *Service) record(ctx context.Context, in PayInput, ch Channel, p Payment, trade Trade, callErr error) (web.Answer, error) {
	var answer web.Answer
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		if err := s.note(ctx, tx, ch, p, trade, callErr); err != nil {
			return err
		}
		now, err := getPayment(ctx, tx, p.PayNo)
		if err != nil {
			return err
		}
		var refused *Refused
		if errors.As(callErr, &refused) {
			answer = web.Problem(ctx, apperr.New(apperr.Declined, "payment_declined", "The channel refused: %s", refused.Detail))
		} else if answer, err = paymentAnswer(*now); err != nil {
			return err
		}
		return s.Keys.Finish(ctx, tx, in.Key, answer)
	})
	return answer, err
}

// note writes what the channel said of an attempt, or that nobody knows.
func (s *Service) note(ctx context.Context, tx *sql.Tx, ch Channel, p Payment, trade Trade, callErr error) error {
	now := s.Now()
	var err error
	var refused *Refused
	switch {
	case errors.As(callErr, &refused):
		_, err = ended(ctx, tx, p.PayNo, Failed, now)
	case callErr != nil:
		s.Log.WarnContext(ctx, "the channel's answer is not known", "pay_no", p.PayNo, "channel", p.Channel, "error", callErr)
		_, err = answered(ctx, tx, p.PayNo, Unknown, "", "", nextLook(Unknown, 0, now), now)
	case trade.Status == TradePending:
		_, err = answered(ctx, tx, p.PayNo, Pending, trade.TradeNo, trade.PayURL, nextLook(Pending, 0, now), now)
	default:
		_, err = s.Apply(ctx, tx, tradeFact(ch, p, trade, "query"))
	}
	if err != nil {
		return fmt.Errorf("record payment %s: %w", p.PayNo, err)
	}
	return nil
}

// tradeFact turns what a channel says of a trade into the fact it is.
func tradeFact(ch Channel, p Payment, trade Trade, source string) Fact {
	f := Fact{
		Event: EventPaid, Channel: ch.Name(), Merchant: ch.Merchant(), PayNo: p.PayNo, TradeNo: trade.TradeNo,
		Amount: trade.Amount, Currency: trade.Currency, OccurredAt: trade.At.UTC().Truncate(time.Microsecond), Source: source,
	}
	switch trade.Status {
	case TradeFailed:
		f.Event = EventPayFailed
	case TradeClosed:
		f.Event = EventPayClosed
	}
	return f
}

// paymentAnswer shows an attempt: 202 while its outcome is unknown.
func paymentAnswer(p Payment) (web.Answer, error) {
	status := http.StatusCreated
	if p.Status == Unknown || p.Status == Created {
		status = http.StatusAccepted
	}
	a, err := web.JSON(status, p.view())
	a.Location = "/v1/payments/" + p.PayNo
	return a, err
}
