// Package money holds amounts: whole minor units of an ISO 4217 currency. There is no float in it, and no rounding.
package money

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

// Amount is a number of minor units (cents, fen, or whole yen). On the wire it is a JSON integer and nothing else:
// "1", 1.0, 1e2 and -0 are refused, because a value that two readers may read differently is no amount.
type Amount int64

// UnmarshalJSON accepts plain decimal integers only.
func (a *Amount) UnmarshalJSON(b []byte) error {
	s := string(b)
	digits := s
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	plain := digits != "" && (digits[0] != '0' || s == "0")
	for i := 0; plain && i < len(digits); i++ {
		plain = digits[i] >= '0' && digits[i] <= '9'
	}
	if !plain {
		return fmt.Errorf("amount %s is not a whole number of minor units", s)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return fmt.Errorf("amount %s is out of range", s)
	}
	*a = Amount(n)
	return nil
}

// Times multiplies by a quantity and reports false when the product does not fit.
func (a Amount) Times(n int64) (Amount, bool) {
	if a < 0 || n < 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(a), uint64(n))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	return Amount(lo), true
}

// Currency is an ISO 4217 code of three capital letters.
type Currency string

// Exponent is the number of decimals of the currency (ISO 4217 list one, column "minor unit"): how many minor units
// make one major unit, as a power of ten. It serves display only; arithmetic is done in minor units.
func (c Currency) Exponent() int {
	switch c {
	case "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF":
		return 0
	case "BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND":
		return 3
	case "CLF", "UYW":
		return 4
	default:
		return 2
	}
}

// Valid reports whether the code has the form of ISO 4217.
func (c Currency) Valid() bool {
	if len(c) != 3 {
		return false
	}
	for i := range len(c) {
		if c[i] < 'A' || c[i] > 'Z' {
			return false
		}
	}
	return true
}

// Format renders an amount for people, e.g. 1999 CNY as "19.99 CNY".
func Format(a Amount, c Currency) string {
	exp := c.Exponent()
	sign, digits := "", strconv.FormatInt(int64(a), 10)
	if a < 0 {
		sign, digits = "-", digits[1:]
	}
	if exp > 0 {
		for len(digits) <= exp {
			digits = "0" + digits
		}
		digits = digits[:len(digits)-exp] + "." + digits[len(digits)-exp:]
	}
	return sign + digits + " " + string(c)
}
