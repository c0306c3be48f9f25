package payment

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
)

// fake is a channel whose every call ends with err.
type fake struct {
	Channel
	name, merchant string
	calls          *int
	err            *error
}

func (f fake) Name() string     { return f.name }
func (f fake) Merchant() string { return f.merchant }

func (f fake) answer() error { *f.calls++; return *f.err }

func (f fake) Charge(context.Context, Charge) (Trade, error) { return Trade{}, f.answer() }
func (f fake) Query(context.Context, string) (Trade, error)  { return Trade{}, f.answer() }
func (f fake) Close(context.Context, string) (Trade, error)  { return Trade{}, f.answer() }
func (f fake) Refund(context.Context, RefundOrder) (RefundState, error) {
	return RefundState{}, f.answer()
}
func (f fake) QueryRefund(context.Context, string) (RefundState, error) {
	return RefundState{}, f.answer()
}

// guardedCalls are the calls of a channel, each through its breaker.
func guardedCalls(b *Breaker) map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"charge":       func() error { _, err := b.Charge(ctx, Charge{}); return err },
		"query":        func() error { _, err := b.Query(ctx, ""); return err },
		"close":        func() error { _, err := b.Close(ctx, ""); return err },
		"refund":       func() error { _, err := b.Refund(ctx, RefundOrder{}); return err },
		"query refund": func() error { _, err := b.QueryRefund(ctx, ""); return err },
	}
}

// Every call counts for the breaker and is held back by it: five without an answer open it, nothing is sent meanwhile, and after
// its time one call is let through, which decides.
func TestTheBreakerOpensAndRecovers(t *testing.T) {
	for name := range guardedCalls(nil) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, down := 0, error(io.ErrUnexpectedEOF)
				var log strings.Builder
				b := NewBreaker(fake{name: "mockpay", calls: &calls, err: &down}, metrics.New(), slog.New(slog.NewTextHandler(&log, nil)))
				do := guardedCalls(b)[name]
				refused := func() bool {
					before := calls
					err := do()
					e, _ := apperr.As(err)
					return apperr.Is(err, codeChannelDown) && e.RetryAfter > 0 && e.Retryable() && calls == before
				}
				for i := range breakAfter {
					if err := do(); !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("call %d: %v; want the channel's own error", i, err)
					}
				}
				if !refused() {
					t.Error("after five failures a call was sent")
				}
				time.Sleep(breakFor - time.Nanosecond) // of the bubble's clock
				if !refused() {
					t.Error("a call was sent before the breaker's time was over")
				}
				time.Sleep(2 * time.Nanosecond)
				if err := do(); !errors.Is(err, io.ErrUnexpectedEOF) || !refused() {
					t.Errorf("the trial failed with %v, and the breaker is not open again", err)
				}
				time.Sleep(breakFor + time.Nanosecond)
				down = nil
				for range breakAfter {
					if err := do(); err != nil {
						t.Errorf("the channel works again: %v", err)
					}
				}
				if !strings.Contains(log.String(), "breaker_is=open") || !strings.Contains(log.String(), "breaker_is=closed") {
					t.Errorf("the log does not tell: %s", log.String())
				}
			})
		})
	}
}

// An answer that settles something is health, and so is a success between failures.
func TestARefusalIsAnAnswer(t *testing.T) {
	calls, answer := 0, error(nil)
	b := NewBreaker(fake{name: "mockpay", calls: &calls, err: &answer}, metrics.New(), slog.New(slog.DiscardHandler))
	for _, err := range []error{ErrNotThere, &Refused{Code: "trade_differs"}, nil} {
		for range 3 * breakAfter {
			answer = io.EOF
			for range breakAfter - 1 {
				if _, got := b.Query(t.Context(), ""); !errors.Is(got, io.EOF) {
					t.Fatalf("got %v; want the channel's error", got)
				}
			}
			answer = err
			if _, got := b.Query(t.Context(), ""); !errors.Is(got, err) {
				t.Fatalf("got %v, want %v", got, err)
			}
		}
	}
}
