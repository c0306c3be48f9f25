package callback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/payment"
)

// Service receives notices and tries the kept ones again.
type Service struct {
	DB         *mysqldb.DB
	Payments   *payment.Service
	Exceptions *exception.Store
	Now        func() time.Time
}

// Receive verifies a notice over the bytes as they came, parses it once, and makes it take effect.
//
// Errors: NotFound for an unknown channel; Unauthenticated signature_invalid or signature_stale; Invalid notice_invalid;
// anything else means that nothing is decided and the notice should come again.
func (s *Service) Receive(ctx context.Context, channel string, header http.Header, body []byte) (payment.Acknowledgement, error) {
	ch, ok := s.Payments.Channels[channel]
	if !ok {
		return payment.Acknowledgement{}, apperr.New(apperr.NotFound, "channel_not_found", "There is no such channel.")
	}
	now := s.Now()
	if err := ch.Verify(header, body, now); err != nil {
		return payment.Acknowledgement{}, s.refused(channel, err)
	}
	n, err := ch.ParseNotice(body)
	if err != nil {
		return payment.Acknowledgement{}, s.refused(channel, err)
	}
	// One transaction: the notice and what became of it. Guards: trade or refund known before (dedup), the order's status and
	// version (state), the unique indexes below both.
	var res payment.Result
	err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
		if res, err = s.Payments.Apply(ctx, tx, n.Fact); err != nil {
			return err
		}
		return insert(ctx, tx, n, body, res, now)
	})
	if err != nil {
		return payment.Acknowledgement{}, undecided(err)
	}
	s.Payments.Count(n.Fact, res)
	s.Payments.Wake() // there may be money to return
	return ch.Acknowledge(), nil
}

// refused counts a notice that was not taken in, by reason: stale signatures that rise show a clock that is off.
func (s *Service) refused(channel string, err error) error {
	reason := "other"
	if e, ok := apperr.As(err); ok {
		reason = e.Code
	}
	s.Payments.Metrics.NoticeRefused(channel, reason)
	return err
}

// undecided turns whatever kept a notice from being decided into 503, so that it comes again.
func undecided(err error) error {
	return apperr.New(apperr.Unavailable, "undecided", "The notice could not be decided now; send it again.").After(time.Second).Wrap(err)
}

// Replay applies a stored notice again, by hand. It changes nothing that took effect before.
func (s *Service) Replay(ctx context.Context, tx *sql.Tx, id int64, by auth.Caller) (Notice, error) {
	n, err := get(ctx, tx, id)
	if err != nil {
		return Notice{}, err
	}
	if n == nil {
		return Notice{}, apperr.New(apperr.NotFound, "notice_not_found", "There is no notice %d.", id)
	}
	f := n.fact()
	f.Source = "replay"
	after, err := s.apply(ctx, tx, *n, f)
	if err != nil {
		return Notice{}, err
	}
	return after, audit.Write(ctx, tx, by, "notice.replay", fmt.Sprintf("notice:%d", id), after.Status.String()+": "+after.Outcome, s.Now())
}

// apply makes a stored notice take effect and notes what became of it.
func (s *Service) apply(ctx context.Context, tx *sql.Tx, n Notice, f payment.Fact) (Notice, error) {
	res, err := s.Payments.Apply(ctx, tx, f)
	if err != nil {
		return Notice{}, err
	}
	if n.Status == payment.Applied || res.Disposal == payment.Repeated && n.Status != payment.Parked {
		return n, nil // what it did stands; that it was looked at again is no news of it
	}
	n.Status, n.Layer, n.Outcome = res.Disposal, res.Layer, res.Outcome
	if res.OrderNo != "" {
		n.OrderNo = res.OrderNo
	}
	return n, update(ctx, tx, n, s.Now())
}

const (
	// parkedRetry is the pause between tries of a kept notice: what it waits for is usually a commit on its way.
	parkedRetry = 5 * time.Second
	// parkedFor is how long a notice waits for its payment before a person is asked (contract section 5).
	parkedFor = 24 * time.Hour
	// batch is how many notices one round takes.
	batch = 50
)

// RetryParked tries kept notices again, each claimed by moving its time on. After a day a person is asked instead.
func (s *Service) RetryParked(ctx context.Context) error {
	due, err := dueParked(ctx, s.DB, s.Now(), batch)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range due {
		claimed, err := claim(ctx, s.DB, n, s.Now().Add(parkedRetry))
		if err != nil {
			return err
		}
		if claimed {
			errs = append(errs, s.retry(ctx, n))
		}
	}
	return errors.Join(errs...)
}

func (s *Service) retry(ctx context.Context, n Notice) error {
	var after Notice
	err := s.DB.InTx(ctx, func(tx *sql.Tx) (err error) {
		after, err = s.apply(ctx, tx, n, n.fact())
		if err != nil || after.Status != payment.Parked || s.Now().Sub(n.ReceivedAt) < parkedFor {
			return err
		}
		kind, subject := exception.UnknownPayment, n.Channel+":"+n.TradeNo
		if n.OutRefundNo != "" {
			kind, subject = exception.UnknownRefund, n.Channel+":"+n.OutRefundNo
		}
		err = s.Exceptions.Open(ctx, tx, exception.Exception{
			Kind: kind, Subject: subject, OrderNo: after.OrderNo, Channel: n.Channel, Amount: n.Amount, Currency: n.Currency,
			Detail: fmt.Sprintf("notice %d, %s of trade %s (out_trade_no %s), has waited a day for what it speaks of", n.ID, n.Event, n.TradeNo, n.OutTradeNo),
		})
		if err != nil {
			return err
		}
		after.Status, after.Outcome = payment.Personal, "waited a day; a person is asked"
		return update(ctx, tx, after, s.Now())
	})
	if err != nil {
		return fmt.Errorf("notice %d: %w", n.ID, err)
	}
	return nil
}
