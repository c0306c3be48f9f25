package order

import (
	"fmt"
	"slices"
)

// Status is where an order stands.
type Status uint8

// The states. The article has the first six; Refunded is ours. The numbers stand in the database.
const (
	Init      Status = 0 // waiting for money
	Paid      Status = 1
	Shipped   Status = 2
	Finished  Status = 3
	Cancelled Status = 4 // ended without money, goods back on the shelf
	Refunding Status = 5 // all of the money is on its way back
	Refunded  Status = 6 // ended, all of the money is back
)

var statusNames = [...]string{"INIT", "PAID", "SHIPPED", "FINISHED", "CANCELLED", "REFUNDING", "REFUNDED"}

// Statuses lists every state.
func Statuses() []Status {
	return []Status{Init, Paid, Shipped, Finished, Cancelled, Refunding, Refunded}
}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// MarshalText makes the name the JSON form.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the JSON form.
func (s *Status) UnmarshalText(text []byte) error {
	i := slices.Index(statusNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("order status %q is not known", text)
	}
	*s = Status(i)
	return nil
}

// Next is the state table, the only one: from each state, the states an order may move to. The diagram in
// docs/state-machine.md is tested against it.
func (s Status) Next() []Status {
	switch s {
	case Init:
		return []Status{Paid, Cancelled}
	case Paid:
		return []Status{Shipped, Finished, Refunding} // straight to Finished: goods without shipping (S0 §6.1)
	case Shipped:
		return []Status{Finished, Refunding}
	case Finished:
		return []Status{Refunding}
	case Refunding:
		return []Status{Refunded, Paid, Shipped, Finished} // back to where it was when the refund fails
	case Refunded:
		return []Status{Paid, Shipped, Finished} // a channel takes a refund's success back, which needs a person too
	case Cancelled:
		return nil // late money is returned; it does not revive the order
	default:
		return nil
	}
}

// CanMoveTo reports whether the state table has the move.
func (s Status) CanMoveTo(to Status) bool { return slices.Contains(s.Next(), to) }

// EndedWithoutSale reports whether the buyer may buy the same thing again as a new attempt.
func (s Status) EndedWithoutSale() bool { return s == Cancelled || s == Refunded }
