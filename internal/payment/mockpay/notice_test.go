package mockpay

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/oncepay/internal/apperr"
	fake "example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/payment"
)

const secret = "whsec_test"

func channel() *Channel {
	return &Channel{ChannelName: "mockpay", MerchantID: "m-mockpay", Secrets: []string{"whsec_other", secret}, Tolerance: 5 * time.Minute}
}

var signedAt = time.Unix(1767225600, 0)

const golden = `{"notify_id":"N1","event":"payment.succeeded","merchant_id":"m-mockpay","out_trade_no":"P1","trade_no":"T1","amount":1999,"currency":"CNY","occurred_at":"2026-01-01T00:00:00.123456Z"}`

func header(value string) http.Header { return http.Header{SignatureHeader: {value}} }

// The protocol's bytes, pinned: neither side may change them alone. The value is that of
// printf '1767225600.%s' '{}' | openssl dgst -sha256 -hmac whsec_test
func TestTheSignatureIsThatOfTheProtocol(t *testing.T) {
	const want = "t=1767225600,v1=4a942ef9477fb7b15b98664cf7ff2c2543984c1fa6bdf3520b48dcb25bcd1fe4"
	if SignatureHeader != fake.HeaderSignature {
		t.Errorf("we read %s, the channel writes %s", SignatureHeader, fake.HeaderSignature)
	}
	if got := fake.SignatureHeader([]string{secret}, signedAt, []byte("{}")); got != want {
		t.Errorf("the channel signs %s, want %s", got, want)
	}
	if err := channel().Verify(header(want), []byte("{}"), signedAt); err != nil {
		t.Errorf("the golden signature does not verify: %v", err)
	}
	for _, body := range []string{"", golden, "\x00\xff", strings.Repeat("é", 9999)} {
		for _, at := range []int64{0, 1, 1767225600, maxTime} {
			h := header(fake.SignatureHeader([]string{"whsec_older", secret}, time.Unix(at, 0), []byte(body)))
			if err := channel().Verify(h, []byte(body), time.Unix(at, 0)); err != nil {
				t.Errorf("signed at %d over %.20q: %v", at, body, err)
			}
		}
	}
}

// The tolerance holds to the second, in both directions.
func TestTheToleranceHasTwoSides(t *testing.T) {
	h := header(fake.SignatureHeader([]string{secret}, signedAt, []byte(golden)))
	for off, fresh := range map[time.Duration]bool{0: true, 300 * time.Second: true, -300 * time.Second: true, 301 * time.Second: false, -301 * time.Second: false} {
		err := channel().Verify(h, []byte(golden), signedAt.Add(off))
		if (err == nil) != fresh {
			t.Errorf("%v from now: %v; fresh: %v", off, err, fresh)
		}
		if e, ok := apperr.As(err); !fresh && (!ok || e.Kind != apperr.Unauthenticated || e.Code != "signature_stale") {
			t.Errorf("%v from now: %v, want signature_stale", off, err)
		}
	}
}

func TestMalformedSignaturesAreRefused(t *testing.T) {
	good := fake.SignatureHeader([]string{secret}, signedAt, []byte(golden))
	at, v1, _ := strings.Cut(good, ",")
	for name, values := range map[string][]string{
		"no header": nil, "two headers": {good, good}, "empty": {""}, "no time": {v1}, "no signature": {at}, "two times": {at + "," + good},
		"another scheme only": {at + ",v0=" + v1[3:]}, "half": {good[:len(good)-2]}, "no hex": {good[:len(good)-1] + "x"}, "longer": {good + "00"},
		"time with a sign": {"t=+1767225600," + v1}, "time with a zero": {"t=01767225600," + v1}, "negative": {"t=-1," + v1},
		"year 10000": {"t=253402300800," + v1}, "past int64": {"t=9223372036854775808," + v1}, "a fraction": {"t=1767225600.0," + v1},
		"eleven signatures": {at + strings.Repeat(","+v1, maxSignatures+1)},
	} {
		err := channel().Verify(http.Header{SignatureHeader: values}, []byte(golden), signedAt)
		if e, ok := apperr.As(err); !ok || e.Code != "signature_invalid" {
			t.Errorf("%s: %v, want signature_invalid", name, err)
		}
	}
	for name, value := range map[string]string{"spaces": at + " , " + v1, "other schemes beside": at + ",v0=abc,v2=x," + v1, "others' first": at + ",v1=" + strings.Repeat("00", 32) + "," + v1} {
		if err := channel().Verify(header(value), []byte(golden), signedAt); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParseSignature: no header makes the parser panic, and what it reads is what stands there.
func FuzzParseSignature(f *testing.F) {
	f.Add("t=1767225600,v1=" + strings.Repeat("0f", 32))
	f.Add("t=0, v1=" + strings.Repeat("AA", 32) + ",v1=" + strings.Repeat("bb", 32) + ",v0=x")
	f.Add("t=-1,,=,v1=")
	f.Fuzz(func(t *testing.T, line string) {
		at, signatures, err := parseSignature([]string{line})
		if err != nil {
			return
		}
		if at < 0 || at > maxTime || len(signatures) == 0 || len(signatures) > maxSignatures {
			t.Errorf("%q was read as time %d with %d signatures", line, at, len(signatures))
		}
		if !strings.Contains(line, fmt.Sprintf("t=%d", at)) {
			t.Errorf("%q has no time %d", line, at)
		}
		for _, s := range signatures {
			if !strings.Contains(strings.ToLower(line), "v1="+hex.EncodeToString(s)) {
				t.Errorf("%q has no signature %x", line, s)
			}
		}
	})
}

// FuzzVerify: only the bytes that were signed verify, under the time and a secret they were signed with.
func FuzzVerify(f *testing.F) {
	right := fake.SignatureHeader([]string{secret}, signedAt, []byte(golden))
	f.Add(right, []byte(golden), int64(0))
	f.Add(right, []byte(golden+" "), int64(0))
	f.Add(strings.Replace(right, "t=1767225600", "t=1767225601", 1), []byte(golden), int64(1))
	f.Add(strings.ToUpper(right), []byte(strings.ToUpper(golden)), int64(301))
	f.Fuzz(func(t *testing.T, value string, body []byte, off int64) {
		now := signedAt.Add(time.Duration(off%1000) * time.Second)
		if channel().Verify(header(value), body, now) != nil {
			return
		}
		at, signatures, err := parseSignature([]string{value})
		if err != nil {
			t.Fatalf("%q verifies and does not parse: %v", value, err)
		}
		if skew := now.Unix() - at; skew > 300 || skew < -300 {
			t.Errorf("%q verifies %d seconds off", value, skew)
		}
		ours := slices.ContainsFunc(channel().Secrets, func(s string) bool {
			want, err := hex.DecodeString(fake.Sign(s, time.Unix(at, 0), body))
			return err == nil && slices.ContainsFunc(signatures, func(got []byte) bool { return bytes.Equal(got, want) })
		})
		if !ours {
			t.Errorf("%q verifies over %q and nobody signed that", value, body)
		}
	})
}

func TestANoticeIsReadExactly(t *testing.T) {
	n, err := channel().ParseNotice([]byte(golden))
	want := payment.Notice{NotifyID: "N1", Fact: payment.Fact{
		Event: payment.EventPaid, Channel: "mockpay", Merchant: "m-mockpay", PayNo: "P1", TradeNo: "T1", Amount: 1999, Currency: "CNY",
		OccurredAt: time.Date(2026, 1, 1, 0, 0, 0, 123456000, time.UTC), Source: "notice",
	}}
	if err != nil || n != want {
		t.Errorf("read %+v, %v; want %+v", n, err, want)
	}
	exact := strings.Replace(golden, "1999", "9007199254740993", 1)
	if n, err := channel().ParseNotice([]byte(exact)); err != nil || n.Fact.Amount != 9007199254740993 {
		t.Errorf("read %d, %v; want 9007199254740993", n.Fact.Amount, err)
	}
}

// What the channel writes, we read: all of its events, in its own encoding.
func TestWhatTheChannelWritesWeRead(t *testing.T) {
	for _, event := range []string{
		fake.EventPaymentSucceeded, fake.EventPaymentFailed, fake.EventPaymentClosed, fake.EventRefundSucceeded, fake.EventRefundFailed,
	} {
		written := fake.Notice{NotifyID: "N", Event: event, MerchantID: "m", OutTradeNo: "P", TradeNo: "T", Amount: 1, Currency: "JPY", OccurredAt: signedAt}
		if strings.HasPrefix(event, "refund.") {
			written.OutRefundNo = "R"
		}
		body, err := json.Marshal(written)
		if err != nil {
			t.Fatal(err)
		}
		n, err := channel().ParseNotice(body)
		if err != nil || string(n.Fact.Event) != event || n.Fact.RefundNo != written.OutRefundNo {
			t.Errorf("%s: read %+v, %v", body, n, err)
		}
	}
}

// FuzzParseNotice: nothing makes the parser panic. What it reads has no repeated field, and written anew reads as the same.
func FuzzParseNotice(f *testing.F) {
	f.Add([]byte(golden))
	f.Add([]byte(strings.Replace(golden, `"amount":1999`, `"amount":1999,"amount":1`, 1)))
	f.Add([]byte(strings.Replace(golden, `"amount":1999`, `"amount":1.999e3`, 1)))
	f.Add([]byte(strings.Replace(golden, `payment.succeeded"`, `refund.failed","out_refund_no":"R1"`, 1)))
	f.Add([]byte(strings.Replace(golden, `mockpay`, `\u006dockpay`, 1) + "\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := channel().ParseNotice(body)
		if err != nil {
			if e, ok := apperr.As(err); !ok || e.Kind != apperr.Invalid || e.Code != "notice_invalid" {
				t.Errorf("%q: %v, want notice_invalid", body, err)
			}
			return
		}
		var fields map[string]jsontext.Value
		if err := json.Unmarshal(body, &fields); err != nil {
			t.Fatalf("%q was read and is not one object without repeats: %v", body, err)
		}
		if string(fields["amount"]) != fmt.Sprint(int64(n.Fact.Amount)) {
			t.Errorf("%q was read as amount %d", body, n.Fact.Amount)
		}
		again, err := json.Marshal(fake.Notice{
			NotifyID: n.NotifyID, Event: string(n.Fact.Event), MerchantID: n.Fact.Merchant, OutTradeNo: n.Fact.PayNo, TradeNo: n.Fact.TradeNo,
			OutRefundNo: n.Fact.RefundNo, Amount: n.Fact.Amount, Currency: n.Fact.Currency, OccurredAt: n.Fact.OccurredAt,
		})
		if err != nil {
			t.Fatalf("%q was read as %+v, which cannot be written: %v", body, n, err)
		}
		if reread, err := channel().ParseNotice(again); err != nil || reread != n {
			t.Errorf("%q was read as %+v, and written anew as %+v, %v", body, n, reread, err)
		}
	})
}
