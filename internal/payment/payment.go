package payment

import (
	"fmt"
	"slices"
	"time"

	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/web"
)

// Status is where an attempt stands.
type Status uint8

// The states of an attempt. The numbers stand in the database.
const (
	Created   Status = 0 // stored; the channel has not answered yet
	Pending   Status = 1 // the channel waits for the buyer
	Unknown   Status = 2 // the channel was called and nobody knows what became of it
	Succeeded Status = 3 // the money arrived
	Failed    Status = 4
	Closed    Status = 5
)

var statusNames = [...]string{"CREATED", "PENDING", "UNKNOWN", "SUCCEEDED", "FAILED", "CLOSED"}

func (s Status) String() string { return nameOf(statusNames[:], uint8(s)) }

// MarshalText makes the name the JSON form.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Open reports whether the attempt may still bring money.
func (s Status) Open() bool { return s == Created || s == Pending || s == Unknown }

// RefundStatus is where a refund stands.
type RefundStatus uint8

// The states of a refund. The numbers stand in the database.
const (
	RefundProcessing RefundStatus = 0
	RefundSuccess    RefundStatus = 1
	RefundFailed     RefundStatus = 2
)

var refundStatusNames = [...]string{"PROCESSING", "SUCCESS", "FAILED"}

func (s RefundStatus) String() string { return nameOf(refundStatusNames[:], uint8(s)) }

// MarshalText makes the name the JSON form.
func (s RefundStatus) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the JSON form.
func (s *RefundStatus) UnmarshalText(text []byte) error {
	i := slices.Index(refundStatusNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("refund status %q is not known", text)
	}
	*s = RefundStatus(i)
	return nil
}

func nameOf(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("status(%d)", i)
}

// Payment is an attempt to pay an order on one channel.
type Payment struct {
	PayNo          string
	OrderNo        string
	UserID         int64
	Channel        string
	Amount         money.Amount
	Currency       money.Currency
	Status         Status
	TradeNo        string
	PayURL         string
	RefundedAmount money.Amount
	Polls          int
	NextPollAt     *time.Time
	CreatedAt      time.Time

	fresh bool // begun by this very run
}

type paymentView struct {
	PayNo          string         `json:"pay_no"`
	OrderNo        string         `json:"order_no"`
	Channel        string         `json:"channel"`
	Amount         money.Amount   `json:"amount"`
	Currency       money.Currency `json:"currency"`
	Status         Status         `json:"status"`
	TradeNo        *string        `json:"trade_no"`
	PayURL         *string        `json:"pay_url"`
	RefundedAmount money.Amount   `json:"refunded_amount"`
	CreatedAt      time.Time      `json:"created_at"`
}

func (p Payment) view() paymentView {
	return paymentView{p.PayNo, p.OrderNo, p.Channel, p.Amount, p.Currency, p.Status, web.OrNull(p.TradeNo), web.OrNull(p.PayURL), p.RefundedAmount, p.CreatedAt}
}

// Refund is money on its way back to where it came from.
type Refund struct {
	RefundNo   string
	OrderNo    string
	UserID     int64
	PayNo      string
	Channel    string
	TradeNo    string
	Amount     money.Amount
	Currency   money.Currency
	Status     RefundStatus
	Reason     string
	Auto       bool
	Polls      int
	NextPollAt *time.Time
	DecidedAt  *time.Time // by the channel's clock
	CreatedAt  time.Time
}

type refundView struct {
	RefundNo  string         `json:"refund_no"`
	OrderNo   string         `json:"order_no"`
	PayNo     string         `json:"pay_no"`
	Amount    money.Amount   `json:"amount"`
	Currency  money.Currency `json:"currency"`
	Status    RefundStatus   `json:"status"`
	Reason    string         `json:"reason"`
	Auto      bool           `json:"auto"`
	CreatedAt time.Time      `json:"created_at"`
}

func (r Refund) view() refundView {
	return refundView{r.RefundNo, r.OrderNo, r.PayNo, r.Amount, r.Currency, r.Status, r.Reason, r.Auto, r.CreatedAt}
}

// Disposition is what became of money that arrived. The numbers stand in the database.
type Disposition uint8

// The dispositions.
const (
	PaidOrder Disposition = 0 // it paid its order
	Returning Disposition = 1 // its order could not take it; it goes back
	ForPerson Disposition = 2 // its amount, currency or owner is not what was agreed
)

// received is a row of t_trade.
type received struct {
	Channel        string
	TradeNo        string
	PayNo          string
	OrderNo        string
	Amount         money.Amount
	Currency       money.Currency
	Disposition    Disposition
	RefundReserved money.Amount
}
