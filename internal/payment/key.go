package payment

import (
	"strconv"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
)

// The business keys of money (contract section 4). Their values stand in databases and at channels: a changed rule needs a
// new version in the prefix and a migration.

// tradeCause names money that arrived, whatever way we heard of it: in histories, in the ledger, in exceptions.
func tradeCause(channel, tradeNo string) string { return bizkey.Build("t1", channel, tradeNo) }

// refundCause names a refund in histories and in the ledger.
func refundCause(refundNo string) string { return bizkey.Build("r1", refundNo) }

// autoRefundNo is the number of the refund that returns a trade nobody can use: derived, so that there is one.
func autoRefundNo(channel, tradeNo string) string { return bizkey.Build("ra1", channel, tradeNo) }

// heldRefundNo is the number of the refund that an operator sends back from an exception.
func heldRefundNo(exceptionID int64) string {
	return bizkey.Build("rx1", strconv.FormatInt(exceptionID, 10))
}

// keyedRefundNo is the number of a refund whose caller named none: the request's own key stands for it.
func keyedRefundNo(k idemkey.Key) string {
	return bizkey.Build("rk1", strconv.FormatInt(k.Caller, 10), k.Value)
}

// openKey lets an order have one open attempt on each channel.
func openKey(orderNo, channel string) string { return orderNo + ":" + channel }

func refundMessageID(refundNo, event string) string { return bizkey.Build("m1:r", refundNo, event) }

const maxRefundNo = 64 // the column's width, and what channels accept

// checkRefundNo checks a caller's own refund number. The forms of derived ones are not free to be taken: they hold a colon.
func checkRefundNo(s string) error {
	ok := s != "" && len(s) <= maxRefundNo
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}
	if !ok {
		return apperr.New(apperr.Invalid, "refund_no_invalid", "A refund_no has 1 to %d letters, digits, _ or -.", maxRefundNo)
	}
	return nil
}

// storable reports whether a number can be one of ours, derived or a caller's: what cannot must not reach the database, where
// even a binary collation ignores a trailing space.
func storable(s string) bool {
	if s == "" || len(s) > maxRefundNo {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
