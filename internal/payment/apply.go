package payment

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/ledger"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/order"
)

// Event is what happened at the channel.
type Event string

// The events, by the channels' own words (contract section 5).
const (
	EventPaid         Event = "payment.succeeded"
	EventPayFailed    Event = "payment.failed"
	EventPayClosed    Event = "payment.closed"
	EventRefunded     Event = "refund.succeeded"
	EventRefundFailed Event = "refund.failed"
)

// Fact is one thing a channel says happened, whatever way we heard of it.
type Fact struct {
	Event      Event
	Channel    string
	Merchant   string
	PayNo      string // the channel's out_trade_no
	TradeNo    string
	RefundNo   string // the channel's out_refund_no
	Amount     money.Amount
	Currency   money.Currency
	OccurredAt time.Time // by the channel's clock
	Source     string    // notice, query, bill or replay
}

// Disposal says what became of a fact.
type Disposal uint8

// The disposals. The numbers stand in t_channel_notice.status.
const (
	Parked   Disposal = 0 // what it speaks of is not here yet; it is kept and tried again
	Applied  Disposal = 1 // it took effect now
	Repeated Disposal = 2 // it took effect before
	Stale    Disposal = 3 // newer things have happened
	Personal Disposal = 4 // it needs a person, and has an exception
)

var disposalNames = [...]string{"parked", "applied", "repeated", "stale", "for_person"}

func (d Disposal) String() string { return nameOf(disposalNames[:], uint8(d)) }

// MarshalText makes the name the JSON form.
func (d Disposal) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Result is what Apply made of a fact.
type Result struct {
	Disposal Disposal
	Layer    string // the guard that stopped it, or ""
	Outcome  string // for people
	OrderNo  string // "" when it is not known whose it is
}

// Apply makes a fact take effect, once, in the caller's transaction: payment, order (compare-and-swap), stock, ledger, refund
// and message together. It is the one way in for callbacks, query results, bills and manual replay; for money its key is
// channel + trade_no, for a refund its number.
//
// A fact that cannot take effect is no error but a Result that says why. mysqldb.ErrStale makes InTx run the whole again; any
// other error means that nothing is decided.
func (s *Service) Apply(ctx context.Context, tx *sql.Tx, f Fact) (Result, error) {
	if f.OccurredAt.IsZero() { // a channel that does not say when
		f.OccurredAt = s.Now()
	}
	ch, known := s.Channels[f.Channel]
	if !known {
		return Result{}, fmt.Errorf("no channel %q", f.Channel)
	}
	switch f.Event {
	case EventPaid, EventPayFailed, EventPayClosed:
		return s.applyPayment(ctx, tx, ch, f)
	case EventRefunded, EventRefundFailed:
		return s.applyRefund(ctx, tx, ch, f)
	default:
		return Result{}, fmt.Errorf("no event %q", f.Event)
	}
}

// Count adds a result to the guards' counters. The caller does it after COMMIT, as Apply may run more than once.
func (s *Service) Count(f Fact, res Result) {
	outcome := metrics.Passed
	switch res.Disposal {
	case Repeated:
		outcome = metrics.Replayed
	case Stale, Parked, Personal:
		outcome = metrics.Blocked
	}
	guard := res.Layer
	if guard == "" {
		guard = apperr.LayerDedup
	}
	s.Metrics.GuardHit(guard, string(f.Event), outcome)
}

func (s *Service) applyPayment(ctx context.Context, tx *sql.Tx, ch Channel, f Fact) (Result, error) {
	p, err := getPayment(ctx, tx, f.PayNo)
	if err != nil {
		return Result{}, err
	}
	if p == nil || p.Channel != f.Channel {
		return Result{Disposal: Parked, Outcome: "no such payment yet"}, nil
	}
	if f.Event == EventPaid {
		return s.applyPaid(ctx, tx, ch, *p, f)
	}
	if f.Merchant != ch.Merchant() {
		return Result{Stale, apperr.LayerState, "for another merchant", p.OrderNo}, nil
	}
	status := Failed
	if f.Event == EventPayClosed {
		status = Closed
	}
	moved, err := ended(ctx, tx, p.PayNo, status, s.Now())
	if err != nil {
		return Result{}, fmt.Errorf("end payment %s: %w", p.PayNo, err)
	}
	if !moved {
		return s.endedBefore(ctx, tx, p.PayNo, status)
	}
	return Result{Disposal: Applied, Outcome: "attempt " + status.String(), OrderNo: p.OrderNo}, nil
}

// endedBefore tells a repeat from news that come too late. It reads the attempt again: somebody may have ended it just now.
func (s *Service) endedBefore(ctx context.Context, tx *sql.Tx, payNo string, status Status) (Result, error) {
	p, err := getPayment(ctx, tx, payNo)
	if err != nil {
		return Result{}, err
	}
	disposal := Stale
	if p.Status == status {
		disposal = Repeated
	}
	return Result{disposal, apperr.LayerState, "the attempt is " + p.Status.String() + " already", p.OrderNo}, nil
}

// applyPaid decides what money that arrived is for. It was sent, so it is always recorded; only what it buys depends.
func (s *Service) applyPaid(ctx context.Context, tx *sql.Tx, ch Channel, p Payment, f Fact) (Result, error) {
	known, err := getTrade(ctx, tx, f.Channel, f.TradeNo)
	if err != nil {
		return Result{}, err
	}
	if known != nil {
		return s.knownTrade(ctx, tx, ch, *known, p, f)
	}
	owner, err := payNoOfTrade(ctx, tx, f.Channel, f.TradeNo)
	if err != nil {
		return Result{}, err
	}
	if owner != "" && owner != p.PayNo {
		return s.tradeConflict(ctx, tx, p, f, "it is the trade of payment "+owner)
	}
	t := received{Channel: f.Channel, TradeNo: f.TradeNo, PayNo: p.PayNo, OrderNo: p.OrderNo, Amount: f.Amount, Currency: f.Currency}
	if f.Merchant != ch.Merchant() || f.Amount != p.Amount || f.Currency != p.Currency {
		return s.wrongMoney(ctx, tx, t, p, f)
	}
	_, outcome, err := s.Orders.MarkPaid(ctx, tx, p.OrderNo, tradeCause(f.Channel, f.TradeNo), s.Now())
	switch {
	case err == nil && outcome == order.Already: // a twin committed since the trade was looked for
		return Result{Repeated, apperr.LayerState, "this trade has paid the order before", p.OrderNo}, nil
	case err == nil:
		t.Disposition = PaidOrder
		if err := s.book(ctx, tx, t, p, f, ledger.Sales); err != nil {
			return Result{}, err
		}
		return Result{Disposal: Applied, Outcome: "order PAID", OrderNo: p.OrderNo}, nil
	case apperr.Is(err, order.CodeIllegalMove):
		return s.returnMoney(ctx, tx, t, p, f)
	default:
		return Result{}, err
	}
}

// knownTrade answers for money that was recorded before: a repeat, unless it is now said to be other money.
func (s *Service) knownTrade(ctx context.Context, tx *sql.Tx, ch Channel, known received, p Payment, f Fact) (Result, error) {
	ours := f.Merchant == ch.Merchant() || known.Disposition == ForPerson // a repeat of wrong money is a repeat
	if known.PayNo == p.PayNo && known.Amount == f.Amount && known.Currency == f.Currency && ours {
		return Result{Repeated, apperr.LayerDedup, "this trade was recorded before", p.OrderNo}, nil
	}
	return s.tradeConflict(ctx, tx, p, f, fmt.Sprintf("it is recorded as %d %s for payment %s", known.Amount, known.Currency, known.PayNo))
}

// tradeConflict asks a person about a trade that the channel tells two stories of. The first one stands; nothing is changed.
func (s *Service) tradeConflict(ctx context.Context, tx *sql.Tx, p Payment, f Fact, known string) (Result, error) {
	err := s.Exceptions.Open(ctx, tx, exception.Exception{
		Kind: exception.TradeConflict, Subject: f.Channel + ":" + f.TradeNo + ":" + p.PayNo, OrderNo: p.OrderNo, Channel: f.Channel,
		Amount: f.Amount, Currency: f.Currency,
		Detail: fmt.Sprintf("trade %s is now said to be %d %s for payment %s of merchant %s, but %s; nothing was changed", f.TradeNo, f.Amount, f.Currency, p.PayNo, f.Merchant, known),
	})
	return Result{Personal, apperr.LayerDedup, "the trade is known as other money", p.OrderNo}, err
}

// wrongMoney keeps money that is not what was agreed, for a person. The order stays; the attempt is over, so that the buyer may
// begin another.
func (s *Service) wrongMoney(ctx context.Context, tx *sql.Tx, t received, p Payment, f Fact) (Result, error) {
	if err := s.Orders.Lock(ctx, tx, p.OrderNo); err != nil { // so that it is neither shipped nor expired at the same moment
		return Result{}, err
	}
	t.Disposition = ForPerson
	if err := insertTrade(ctx, tx, t, f.Source, f.OccurredAt, s.Now()); err != nil {
		return Result{}, err
	}
	if f.Amount > 0 {
		if err := s.post(ctx, tx, t, ledger.Suspense); err != nil {
			return Result{}, err
		}
	}
	if _, err := ended(ctx, tx, p.PayNo, Failed, s.Now()); err != nil {
		return Result{}, fmt.Errorf("end payment %s: %w", p.PayNo, err)
	}
	err := s.Exceptions.Open(ctx, tx, exception.Exception{
		Kind: exception.AmountMismatch, Subject: f.Channel + ":" + f.TradeNo, OrderNo: p.OrderNo, Channel: f.Channel,
		Amount: f.Amount, Currency: f.Currency, BlocksOrder: true,
		Detail: fmt.Sprintf("trade %s brought %d %s for merchant %s; payment %s expects %d %s", f.TradeNo, f.Amount, f.Currency, f.Merchant, p.PayNo, p.Amount, p.Currency),
	})
	return Result{Personal, "", "amount, currency or merchant differ", p.OrderNo}, err
}

// returnMoney records money that its order cannot take, because it ended or was paid by another trade, together with the one
// refund that returns it. Nothing of the order, its stock or its own money is touched.
func (s *Service) returnMoney(ctx context.Context, tx *sql.Tx, t received, p Payment, f Fact) (Result, error) {
	t.Disposition, t.RefundReserved = Returning, t.Amount
	if err := s.book(ctx, tx, t, p, f, ledger.Suspense); err != nil {
		return Result{}, err
	}
	err := insertRefund(ctx, tx, Refund{
		RefundNo: autoRefundNo(t.Channel, t.TradeNo), OrderNo: t.OrderNo, UserID: p.UserID, PayNo: t.PayNo, Channel: t.Channel, TradeNo: t.TradeNo,
		Amount: t.Amount, Currency: t.Currency, Reason: "the order could not take this money", Auto: true,
	}, s.Now())
	if err != nil {
		return Result{}, err
	}
	return Result{Applied, apperr.LayerState, "money is returned: the order ended or was paid by another trade", p.OrderNo}, nil
}

// book writes what every trade owes: its row, its attempt's success, its posting.
func (s *Service) book(ctx context.Context, tx *sql.Tx, t received, p Payment, f Fact, from ledger.Account) error {
	if err := insertTrade(ctx, tx, t, f.Source, f.OccurredAt, s.Now()); err != nil {
		return err
	}
	if err := succeeded(ctx, tx, p, t.TradeNo, t.Disposition == PaidOrder, s.Now()); err != nil {
		return err
	}
	return s.post(ctx, tx, t, from)
}

func (s *Service) post(ctx context.Context, tx *sql.Tx, t received, from ledger.Account) error {
	return ledger.Post(ctx, tx, ledger.Transfer{
		Cause: tradeCause(t.Channel, t.TradeNo), Kind: ledger.Pay, Debit: ledger.Channel(t.Channel), Credit: from,
		Amount: t.Amount, Currency: t.Currency, OrderNo: t.OrderNo,
	}, s.Now())
}
