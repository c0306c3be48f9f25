package payment

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/order"
)

// Service holds the use cases of payments and refunds.
type Service struct {
	DB         *mysqldb.DB
	Keys       *idemkey.Store
	Locks      order.Locker
	Orders     *order.Service
	Exceptions *exception.Store
	Channels   Channels
	Metrics    *metrics.Metrics
	Log        *slog.Logger
	Now        func() time.Time
	NewPayNo   func() (string, error)
	PublicURL  string        // where channels call back
	CallBudget time.Duration // one call to a channel; well under the request's own deadline
	Wake       func()        // tells the refund job that there is work; its own clock finds it otherwise
}

// recordBudget bounds the transaction that records a channel's answer. It runs to its end even when the client has gone: the
// answer is known here and nowhere else.
const recordBudget = 5 * time.Second

// detached is a context for work that must outlive its client, bounded on its own.
func detached(ctx context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), budget)
}

// notifyURL is where a channel tells us of a trade or refund.
func (s *Service) notifyURL(channel string) string { return s.PublicURL + "/v1/callbacks/" + channel }

// GetPayment returns an attempt that the caller may see.
func (s *Service) GetPayment(ctx context.Context, payNo string, by auth.Caller) (Payment, error) {
	p, err := getPayment(ctx, s.DB, payNo)
	if err != nil {
		return Payment{}, err
	}
	if p == nil || !by.MaySee(p.UserID) {
		return Payment{}, errPaymentNotFound()
	}
	return *p, nil
}

// GetRefund returns a refund that the caller may see.
func (s *Service) GetRefund(ctx context.Context, refundNo string, by auth.Caller) (Refund, error) {
	r, err := getRefund(ctx, s.DB, refundNo)
	if err != nil {
		return Refund{}, err
	}
	if r == nil || !by.MaySee(r.UserID) {
		return Refund{}, errRefundNotFound()
	}
	return *r, nil
}

func errPaymentNotFound() *apperr.Error {
	return apperr.New(apperr.NotFound, "payment_not_found", "There is no such payment.")
}

func errRefundNotFound() *apperr.Error {
	return apperr.New(apperr.NotFound, "refund_not_found", "There is no such refund.")
}

// channel returns a channel by name, or Invalid.
func (s *Service) channel(name string) (Channel, error) {
	ch, ok := s.Channels[name]
	if !ok {
		return nil, apperr.New(apperr.Invalid, "channel_unknown", "There is no such payment channel.")
	}
	return ch, nil
}

// definite reports whether a channel's error settles the matter: all others leave the outcome unknown.
func definite(err error) bool {
	var refused *Refused
	return errors.As(err, &refused) || errors.Is(err, ErrNotThere)
}
