package payment

import (
	"math"
	"strings"
	"testing"

	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	orderNo = "0197c0de0000700080000000000000ff"
	tradeNo = "TABCDEFGHIJKLMNOPQRSTUVWXYZ" // as the fake channel makes them
)

// B27: these values stand in databases and at channels. Whoever changes one needs a new version prefix and a migration.
func TestGoldenKeys(t *testing.T) {
	long := strings.Repeat("x", 64)
	for _, c := range []struct{ got, want string }{
		{tradeCause("mockpay", tradeNo), "t1:mockpay:TABCDEFGHIJKLMNOPQRSTUVWXYZ"},
		{tradeCause("mockpay", long), "t1:~hpY3I1fhNdn8Ju5arAqByxKFUd5ba0cYXkqsLXL01OVc"},
		{refundCause("R-1"), "r1:R-1"},
		{refundCause("ra1:mockpay:T1"), "r1:ra1~3amockpay~3aT1"},
		{refundCause(long), "r1:~hNrU_1P4c27O3rnr11UF7CF4LEVwzx_SH5DOLa5_atuU"},
		{autoRefundNo("mockpay", tradeNo), "ra1:mockpay:TABCDEFGHIJKLMNOPQRSTUVWXYZ"},
		{autoRefundNo("mockpay2", long), "ra1:~h_uQB6l55egUrjaf0JRozCmT23-5WsV9IBIkLVeAyaYo"},
		{keyedRefundNo(idemkey.Key{Caller: 1001, Value: "K1-0123456789-abcdef"}), "rk1:1001:K1-0123456789-abcdef"},
		{keyedRefundNo(idemkey.Key{Caller: 1001, Value: "K1:0123456789-abcdef"}), "rk1:1001:K1~3a0123456789-abcdef"},
		{keyedRefundNo(idemkey.Key{Caller: math.MaxInt64, Value: strings.Repeat("k", 255)}), "rk1:~hSl8niMYtoUj-mLzWsx0Wd3OZyHtYOPGpm8HJnwD7zKA"},
		{heldRefundNo(math.MaxInt64), "rx1:9223372036854775807"},
		{openKey(orderNo, "mockpay"), orderNo + ":mockpay"},
		{refundMessageID("R-1", "refund.succeeded"), "m1:r:R-1:refund.succeeded"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// B14: every key with parts of maximal length fits its column, and two that differ in their last character stay two.
func TestTheLongestKeysFitTheirColumns(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	last := func(n int) [2]string {
		return [2]string{strings.Repeat("x", n-1) + "a", strings.Repeat("x", n-1) + "b"}
	}
	each := func(n int, build func(string) string) [2]string {
		return [2]string{build(last(n)[0]), build(last(n)[1])}
	}
	keyed := func(value string) string { return keyedRefundNo(idemkey.Key{Caller: math.MaxInt64, Value: value}) }
	auto := func(no string) string { return autoRefundNo("mockpay2", no) }
	trade := func(no string) string { return tradeCause("mockpay2", no) }
	for column, pairs := range map[string][][2]string{
		"t_payment.pay_no":           {last(32)},
		"t_payment.open_key":         {each(32, func(channel string) string { return openKey(orderNo, channel) })},
		"t_payment.trade_no":         {last(64)},
		"t_trade.trade_no":           {last(64)},
		"t_refund.refund_no":         {last(maxRefundNo), each(255, keyed), each(64, auto)},
		"t_refund.trade_no":          {last(64)},
		"t_ledger_entry.cause":       {each(64, trade), each(maxRefundNo, refundCause), {refundCause(auto(last(64)[0])), refundCause(keyed(last(255)[0]))}},
		"t_order_history.cause":      {each(64, trade), each(maxRefundNo, func(no string) string { return refundCause(no) + ":failed" })},
		"t_outbox.msg_id":            {each(maxRefundNo, func(no string) string { return refundMessageID(no, "refund.succeeded") })},
		"t_exception.subject":        {each(64, func(no string) string { return "mockpay2:" + no + ":" + orderNo })},
		"t_idempotency_key.location": {each(maxRefundNo, func(no string) string { return "/v1/refunds/" + no })},
	} {
		table, name, _ := strings.Cut(column, ".")
		var width int
		err := db.QueryRow(`SELECT character_maximum_length FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?`, table, name).Scan(&width)
		if err != nil {
			t.Fatalf("%s: %v", column, err)
		}
		for _, pair := range pairs {
			if pair[0] == pair[1] || len(pair[0]) > width || len(pair[1]) > width {
				t.Errorf("%s is %d wide: %q and %q", column, width, pair[0], pair[1])
			}
		}
	}
	if maxRefundNo != bizkey.MaxLength {
		t.Errorf("a caller's refund_no has up to %d characters, a derived one up to %d", maxRefundNo, bizkey.MaxLength)
	}
}

// B23: parts that could run into each other do not, and a caller's number is never one of the derived forms.
func FuzzDifferentMoneyHasDifferentKeys(f *testing.F) {
	f.Add("mockpay", "1:2", "mockpay:1", "2")
	f.Add("mockpay", "{}", "mockpay", "~7b~7d")
	f.Add("a", "", "", "a")
	f.Add("mockpay", tradeNo, "mockpay", strings.ToLower(tradeNo))
	f.Fuzz(func(t *testing.T, channel1, no1, channel2, no2 string) {
		same := channel1 == channel2 && no1 == no2
		if (tradeCause(channel1, no1) == tradeCause(channel2, no2)) != same || (autoRefundNo(channel1, no1) == autoRefundNo(channel2, no2)) != same {
			t.Errorf("%q %q and %q %q: %s, %s", channel1, no1, channel2, no2, tradeCause(channel1, no1), tradeCause(channel2, no2))
		}
		if (refundCause(no1) == refundCause(no2)) != (no1 == no2) {
			t.Errorf("%q and %q are both %s", no1, no2, refundCause(no1))
		}
		if k := keyedRefundNo(idemkey.Key{Caller: 1, Value: no1}); k == autoRefundNo(channel2, no2) || checkRefundNo(k) == nil || checkRefundNo(autoRefundNo(channel1, no1)) == nil {
			t.Errorf("a derived number can be taken by somebody else: %s", k)
		}
		if checkRefundNo(no1) == nil && !storable(no1) {
			t.Errorf("%q is a refund_no and cannot be looked up", no1)
		}
	})
}

func TestRefundNumbers(t *testing.T) {
	for no, want := range map[string]struct{ ok, storable bool }{
		"R-1": {true, true}, "r_1": {true, true}, strings.Repeat("a", 64): {true, true}, "": {}, strings.Repeat("a", 65): {},
		"a b": {}, "a ": {}, "a:b": {false, true}, "a.b": {false, true}, "café": {}, "Ａ": {}, "a\x00": {}, "a\n": {}, "a'b": {false, true},
	} {
		if ok := checkRefundNo(no) == nil; ok != want.ok || storable(no) != want.storable {
			t.Errorf("%q: usable %v, storable %v; want %v", no, ok, storable(no), want)
		}
	}
}
