package payment

import (
	"context"
	"errors"
	"net/http"
	"time"

	"example.com/oncepay/internal/money"
)

// Channel is a payment channel as this package needs it. Every call carries our own number, so that repeating it is
// harmless; every error that is neither ErrNotThere nor a *Refused leaves the outcome unknown.
type Channel interface {
	Name() string
	// Merchant is who we are to the channel; a notice for another is not for us.
	Merchant() string
	// Charge opens a trade under pay_no, or returns the one that is there.
	Charge(ctx context.Context, c Charge) (Trade, error)
	// Query returns the trade of a pay_no, or ErrNotThere.
	Query(ctx context.Context, payNo string) (Trade, error)
	// Close ends an unpaid trade. A trade that is paid is returned as it is: the money decides. ErrNotThere: nothing to close.
	Close(ctx context.Context, payNo string) (Trade, error)
	// Refund asks for money to go back under refund_no, or returns the refund that is there.
	Refund(ctx context.Context, r RefundOrder) (RefundState, error)
	// QueryRefund returns the refund of a refund_no, or ErrNotThere.
	QueryRefund(ctx context.Context, refundNo string) (RefundState, error)
	// Verify checks a notice's signature over the bytes as received, and its freshness at now.
	Verify(header http.Header, body []byte, now time.Time) error
	// ParseNotice reads verified bytes, once.
	ParseNotice(body []byte) (Notice, error)
	// Acknowledge is the answer, byte for byte, that stops the channel from sending a notice again.
	Acknowledge() Acknowledgement
	// Bill returns the channel's own account of one of its days, such as 2026-05-01, checked against the hash that the channel
	// gives for it. ErrBillChecksum and ErrBillUnreadable: there is a bill that nothing may be concluded from.
	Bill(ctx context.Context, day string) (Bill, error)
	// Zone is where the channel's days begin and end.
	Zone() *time.Location
}

// ErrNotThere: the channel knows no trade or refund under this number.
var ErrNotThere = errors.New("payment: the channel knows no such number")

// ErrBillChecksum: the bytes of a bill are not those that the channel's hash is of.
var ErrBillChecksum = errors.New("payment: the bill is not what its hash says")

// ErrBillUnreadable: something in a bill cannot be read for certain, so that none of it is.
var ErrBillUnreadable = errors.New("payment: the bill cannot be read")

// Refused is a channel's definite no: nothing happened there, and the same request would be refused again.
type Refused struct{ Code, Detail string }

func (r *Refused) Error() string { return "payment: the channel refused: " + r.Code + ": " + r.Detail }

// Charge is an attempt to open a trade.
type Charge struct {
	PayNo     string
	Amount    money.Amount
	Currency  money.Currency
	NotifyURL string
}

// TradeStatus is a trade's state at the channel.
type TradeStatus int

// The states of a trade.
const (
	TradePending TradeStatus = iota
	TradeSucceeded
	TradeFailed
	TradeClosed
)

// Trade is a trade at the channel.
type Trade struct {
	TradeNo  string
	Status   TradeStatus
	PayURL   string
	Amount   money.Amount
	Currency money.Currency
	At       time.Time // when it got this status, by the channel's clock
}

// RefundOrder asks for money to go back, against the trade that brought it.
type RefundOrder struct {
	RefundNo  string
	PayNo     string
	TradeNo   string
	Amount    money.Amount
	NotifyURL string
}

// RefundState is a refund at the channel.
type RefundState struct {
	Status RefundStatus
	At     time.Time
}

// Notice is what a channel tells us on its own.
type Notice struct {
	NotifyID string
	Fact     Fact
}

// Acknowledgement is a channel's own form of "heard".
type Acknowledgement struct {
	Status      int
	ContentType string
	Body        string
}

// BillKind is what a line of a bill is about.
type BillKind string

// The kinds of lines. A reversal takes back a refund that had succeeded.
const (
	BillPayment  BillKind = "payment"
	BillRefund   BillKind = "refund"
	BillReversal BillKind = "refund_reversal"
)

// Bill is the money that moved on one of a channel's days.
type Bill struct {
	Day    string
	Raw    []byte // as it came
	SHA256 string // in hex, as the channel says and Raw has
	Lines  []BillLine
}

// BillLine is one movement of money.
type BillLine struct {
	Kind     BillKind
	TradeNo  string
	PayNo    string // the channel's out_trade_no
	RefundNo string // the channel's out_refund_no; "" on a payment
	Amount   money.Amount
	Currency money.Currency
	At       time.Time // by the channel's clock
}

// Channels are the channels we have, by name.
type Channels map[string]Channel
