package bill

import (
	"cmp"
	"fmt"
	"slices"

	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/payment"
)

// finding is a difference before it is decided what becomes of it.
type finding struct {
	class  Class
	entry  entry
	line   *payment.BillLine // nil: the bill has none
	ours   *booked           // nil: we have none
	detail string
}

func (f finding) difference() Difference {
	d := Difference{Class: f.class, Subject: f.entry.String(), Detail: f.detail}
	if f.ours != nil {
		d.OrderNo, d.OurAmount, d.Currency = f.ours.orderNo, &f.ours.amount, f.ours.currency
	}
	if f.line != nil {
		d.BillAmount, d.Currency = &f.line.Amount, f.line.Currency
	}
	return d
}

// amount is the money at stake.
func (d Difference) amount() money.Amount {
	switch {
	case d.BillAmount != nil:
		return *d.BillAmount
	case d.OurAmount != nil:
		return *d.OurAmount
	default:
		return 0
	}
}

// compare goes through a bill with what we have under its numbers, and returns where they differ and how many lines agree. Money
// comes first, then what goes back, then what of that is taken back (the kinds are in this order), so that repairs find what they
// build on.
func compare(channel string, lines []payment.BillLine, ours map[entry]booked) (findings []finding, matched int) {
	lines = slices.Clone(lines)
	slices.SortStableFunc(lines, func(a, b payment.BillLine) int { return cmp.Compare(a.Kind, b.Kind) })
	seen := make(map[entry]payment.BillLine, len(lines))
	for _, l := range lines {
		e := entryOf(l)
		f := finding{entry: e, line: &l}
		row := e
		if row.kind == payment.BillReversal {
			row.kind = payment.BillRefund // one row of ours tells of both
		}
		if b, have := ours[row]; have {
			f.ours = &b
		}
		first, repeated := seen[e]
		if !repeated {
			seen[e] = l
		}
		switch {
		case repeated && first == l:
			f.class, f.detail = RepeatedLine, "the bill has this line more than once; it is counted once"
		case repeated:
			f.class, f.detail = AmountMismatch, fmt.Sprintf("the bill has it twice: as %s, and as %s", show(first), show(l))
		case f.ours == nil:
			f.class = ChannelOnly
		case !sameMoney(channel, l, *f.ours):
			f.class, f.detail = AmountMismatch, fmt.Sprintf("the bill has %s; booked are %s", show(l), *f.ours)
		case !agreed(l, *f.ours):
			f.class = ChannelOnly
		default:
			matched++
			continue
		}
		findings = append(findings, f)
	}
	return findings, matched
}

func show(l payment.BillLine) string {
	return fmt.Sprintf("%d %s, trade %s, payment %s", l.Amount, l.Currency, l.TradeNo, l.PayNo)
}

func sameMoney(channel string, l payment.BillLine, b booked) bool {
	return b.channel == channel && b.tradeNo == l.TradeNo && b.payNo == l.PayNo && b.amount == l.Amount && b.currency == l.Currency
}

// agreed reports whether we have booked what a line says happened to money that we know. A refund that failed after the line's
// success was taken back since; the line of that stands in the bill of its own day.
func agreed(l payment.BillLine, b booked) bool {
	switch l.Kind {
	case payment.BillRefund:
		return b.refund == payment.RefundSuccess || b.refund == payment.RefundFailed && !l.At.After(b.at)
	case payment.BillReversal:
		return b.refund == payment.RefundFailed
	default:
		return true
	}
}

// missing returns what of our day the bill has no line for.
func missing(ours []booked, lines []payment.BillLine) []booked {
	have := make(map[entry]bool, len(lines))
	for _, l := range lines {
		have[entryOf(l)] = true
	}
	return slices.DeleteFunc(ours, func(b booked) bool { return have[b.entry] })
}
