package money

import (
	"encoding/json"
	"math"
	"testing"
)

// B79: an amount on the wire is a whole number of minor units and nothing that only looks like one.
func TestAmountAcceptsPlainIntegersOnly(t *testing.T) {
	for in, want := range map[string]Amount{"0": 0, "1": 1, "100": 100, "-5": -5, "9223372036854775807": math.MaxInt64, "9007199254740993": 9007199254740993} {
		var a Amount
		if err := json.Unmarshal([]byte(in), &a); err != nil || a != want {
			t.Errorf("%s = %d, %v; want %d", in, a, err, want)
		}
	}
	for _, in := range []string{"-0", "1.0", "1.005", "1e2", "1E2", `"1"`, `"19.99"`, "9223372036854775808", "true", "null", "[]", "{}", `"１"`} {
		var a Amount
		if err := json.Unmarshal([]byte(in), &a); err == nil {
			t.Errorf("%s was accepted as %d", in, a)
		}
	}
}

func TestTimesNeverWrapsAround(t *testing.T) {
	if got, ok := Amount(1999).Times(3); !ok || got != 5997 {
		t.Errorf("1999 x 3 = %d, %v", got, ok)
	}
	for _, c := range []struct {
		a Amount
		n int64
	}{{math.MaxInt64, 2}, {math.MaxInt64/2 + 1, 2}, {1 << 40, 1 << 40}, {-1, 1}, {1, -1}} {
		if got, ok := c.a.Times(c.n); ok {
			t.Errorf("%d x %d = %d; want refusal", c.a, c.n, got)
		}
	}
}

// B79: currencies with 0, 2 and 3 decimals.
func TestFormatUsesTheCurrencysOwnDecimals(t *testing.T) {
	for _, c := range []struct {
		a    Amount
		c    Currency
		want string
	}{{1999, "CNY", "19.99 CNY"}, {5, "EUR", "0.05 EUR"}, {500, "JPY", "500 JPY"}, {1234, "KWD", "1.234 KWD"}, {-7, "USD", "-0.07 USD"}} {
		if got := Format(c.a, c.c); got != c.want {
			t.Errorf("Format(%d, %s) = %q, want %q", c.a, c.c, got, c.want)
		}
	}
}
