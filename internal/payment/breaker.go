package payment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sony/gobreaker/v2"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
)

const (
	// breakAfter consecutive calls without an answer, a channel counts as down: one may be chance, five are not.
	breakAfter = 5
	// breakFor is how long calls then fail at once, before one is let through to see.
	breakFor = 10 * time.Second

	codeChannelDown = "channel_unavailable"
)

// Breaker is a channel that is not called while it is known to be down: callers fail fast, and the channel can recover. An
// error that settles something (refused, not there) is an answer and counts as health.
type Breaker struct {
	Channel
	moves *gobreaker.CircuitBreaker[any] // calls that move money
	looks *gobreaker.CircuitBreaker[any] // calls that ask: they often work while the others do not, and must not hide it
}

// NewBreaker guards a channel. When it opens and closes, that is logged and counted.
func NewBreaker(ch Channel, m *metrics.Metrics, log *slog.Logger) *Breaker {
	return &Breaker{Channel: ch, moves: newCircuit(ch, "moves", m, log), looks: newCircuit(ch, "looks", m, log)}
}

func newCircuit(ch Channel, calls string, m *metrics.Metrics, log *slog.Logger) *gobreaker.CircuitBreaker[any] {
	m.ChannelDown(ch.Name(), calls, false)
	return gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name: ch.Name(), Timeout: breakFor,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakAfter },
		IsSuccessful: func(err error) bool { return err == nil || definite(err) },
		OnStateChange: func(name string, from, to gobreaker.State) {
			log.Error("payment channel", "channel", name, "calls", calls, "breaker_was", from.String(), "breaker_is", to.String())
			m.ChannelDown(name, calls, to == gobreaker.StateOpen)
		},
	})
}

// guarded runs a call unless the channel is down.
func guarded[T any](circuit *gobreaker.CircuitBreaker[any], call func() (T, error)) (T, error) {
	var zero T
	got, err := circuit.Execute(func() (any, error) { return call() })
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return zero, apperr.New(apperr.Unavailable, codeChannelDown, "The payment channel does not answer at the moment. Nothing was sent; try again.").
			After(breakFor).Wrap(fmt.Errorf("channel %s: %w", circuit.Name(), err))
	}
	if err != nil {
		return zero, err
	}
	return got.(T), nil
}

// Charge is Channel's.
func (b *Breaker) Charge(ctx context.Context, c Charge) (Trade, error) {
	return guarded(b.moves, func() (Trade, error) { return b.Channel.Charge(ctx, c) })
}

// Query is Channel's.
func (b *Breaker) Query(ctx context.Context, payNo string) (Trade, error) {
	return guarded(b.looks, func() (Trade, error) { return b.Channel.Query(ctx, payNo) })
}

// Close is Channel's.
func (b *Breaker) Close(ctx context.Context, payNo string) (Trade, error) {
	return guarded(b.moves, func() (Trade, error) { return b.Channel.Close(ctx, payNo) })
}

// Refund is Channel's.
func (b *Breaker) Refund(ctx context.Context, r RefundOrder) (RefundState, error) {
	return guarded(b.moves, func() (RefundState, error) { return b.Channel.Refund(ctx, r) })
}

// QueryRefund is Channel's.
func (b *Breaker) QueryRefund(ctx context.Context, refundNo string) (RefundState, error) {
	return guarded(b.looks, func() (RefundState, error) { return b.Channel.QueryRefund(ctx, refundNo) })
}
