package bill

import (
	"fmt"
	"time"

	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/payment"
)

// Status is where the comparison of a day stands.
type Status uint8

// The states of a reconciliation. The numbers stand in the database.
const (
	Running Status = 0 // at work, or to be gone on with by the job
	Done    Status = 1
	Failed  Status = 2 // the last run could not compare the day; last_error says why
)

var statusNames = [...]string{"RUNNING", "DONE", "FAILED"}

func (s Status) String() string { return nameOf(statusNames[:], uint8(s)) }

// MarshalText makes the name the JSON form.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Reconciliation is the comparison of one channel's day.
type Reconciliation struct {
	ID          int64        `json:"id"`
	Channel     string       `json:"channel"`
	Date        string       `json:"date"` // the channel's own day
	Status      Status       `json:"status"`
	Complete    bool         `json:"complete"` // done with a bill that was final; otherwise it will be run again
	Runs        int          `json:"runs"`
	BillLines   int          `json:"bill_lines"`
	Matched     int          `json:"matched"` // of those lines, when the last run began
	BillSHA256  string       `json:"bill_sha256"`
	LastError   string       `json:"last_error"` // why the last run did not finish
	CreatedAt   time.Time    `json:"created_at"`
	UpdatedAt   time.Time    `json:"updated_at"`
	Differences []Difference `json:"differences,omitzero"` // nil in lists

	nextRunAt   *time.Time
	wasComplete bool // before the run that is going on
}

// Class says how bill and books differ.
type Class string

// The classes.
const (
	ChannelOnly    Class = "channel_only"    // the bill has it, we did not
	LocalOnly      Class = "local_only"      // we have it, the bill does not
	AmountMismatch Class = "amount_mismatch" // both have it, with another amount, currency or number behind it
	RepeatedLine   Class = "repeated_line"   // the bill has the very same line twice
)

// Outcome says what became of a difference.
type Outcome uint8

// The outcomes. The numbers stand in the database.
const (
	Waiting  Outcome = 0 // for a person, who has an exception
	Repaired Outcome = 1 // it was booked
	Noted    Outcome = 2 // nothing is to be done
)

var outcomeNames = [...]string{"WAITING", "REPAIRED", "NOTED"}

func (o Outcome) String() string { return nameOf(outcomeNames[:], uint8(o)) }

// MarshalText makes the name the JSON form.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Difference is one thing that bill and books do not agree about.
type Difference struct {
	ID         int64          `json:"id"`
	Class      Class          `json:"kind"`
	Subject    string         `json:"subject"` // e.g. "payment:" and the trade_no, "refund:" and the refund_no
	OrderNo    string         `json:"order_no"`
	OurAmount  *money.Amount  `json:"our_amount"`  // nil: we have none
	BillAmount *money.Amount  `json:"bill_amount"` // nil: the bill has none
	Currency   money.Currency `json:"currency"`
	Outcome    Outcome        `json:"status"`
	Detail     string         `json:"detail"`
	CreatedAt  time.Time      `json:"created_at"`
}

// entry names a movement of money: the kind of line and the number by which it is matched.
type entry struct {
	kind   payment.BillKind
	number string
}

func (e entry) String() string { return string(e.kind) + ":" + e.number }

// entryOf is what a line of a bill is about.
func entryOf(l payment.BillLine) entry {
	if l.Kind == payment.BillPayment {
		return entry{l.Kind, l.TradeNo}
	}
	return entry{l.Kind, l.RefundNo}
}

// booked is money as we have it: a row of t_trade or t_refund.
type booked struct {
	entry    // of a refund: BillRefund, whatever became of it
	channel  string
	tradeNo  string
	payNo    string
	orderNo  string
	amount   money.Amount
	currency money.Currency
	at       time.Time            // when the channel decided; zero while it has not
	refund   payment.RefundStatus // of a refund
}

func (b booked) String() string {
	return fmt.Sprintf("%d %s, trade %s, payment %s", b.amount, b.currency, b.tradeNo, b.payNo)
}

func nameOf(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("status(%d)", i)
}
