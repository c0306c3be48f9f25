package mockpay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/payment"
)

const billHeader = "kind,trade_no,out_trade_no,out_refund_no,amount,currency,occurred_at\n"

// file is a channel that answers every call with these bytes and headers.
func file(t *testing.T, body []byte, header map[string]string) *Channel {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Method + " " + r.URL.String(); got != "GET /v1/bills/2026-05-01?merchant_id=m-mockpay" {
			t.Errorf("asked for %s", got)
		}
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.Write(body)
	}))
	t.Cleanup(server.Close)
	c := channel()
	c.BaseURL, c.Client = server.URL, server.Client()
	return c
}

func hash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// bill reads a bill whose headers are right.
func bill(t *testing.T, body string) (payment.Bill, error) {
	t.Helper()
	return file(t, []byte(body), map[string]string{"X-Content-SHA256": hash([]byte(body)), "X-Channel-Timezone": "+08:00"}).Bill(context.Background(), "2026-05-01")
}

// B79: amounts are exact to the last unit of int64.
func TestABillIsReadAsItIs(t *testing.T) {
	body := billHeader + "payment,T1,P1,,9223372036854775807,JPY,2026-05-01T15:59:59.9999999Z\n" +
		"refund,T1,P1,R1,0,KWD,2026-05-01T23:59:59+08:00\n" + "refund_reversal,T1,P1,R1,1,CNY,2026-05-01T00:00:00Z\n"
	got, err := bill(t, body)
	want := payment.Bill{Day: "2026-05-01", Raw: []byte(body), SHA256: hash([]byte(body)), Lines: []payment.BillLine{
		{Kind: payment.BillPayment, TradeNo: "T1", PayNo: "P1", Amount: 9223372036854775807, Currency: "JPY", At: time.Date(2026, 5, 1, 15, 59, 59, 999999000, time.UTC)},
		{Kind: payment.BillRefund, TradeNo: "T1", PayNo: "P1", RefundNo: "R1", Currency: "KWD", At: time.Date(2026, 5, 1, 15, 59, 59, 0, time.UTC)},
		{Kind: payment.BillReversal, TradeNo: "T1", PayNo: "P1", RefundNo: "R1", Amount: 1, Currency: "CNY", At: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if got, err := bill(t, billHeader); err != nil || len(got.Lines) != 0 {
		t.Errorf("a day without money: %+v, %v", got, err)
	}
}

// B79: whatever cannot be read for certain makes the whole bill unreadable.
func TestABillThatIsNotExactIsNotRead(t *testing.T) {
	const good = "payment,T1,P1,,100,CNY,2026-05-01T12:00:00Z\n"
	cases := map[string]string{
		"nothing": "", "no header": good, "unknown column": strings.Replace(billHeader, "amount", "total", 1) + good,
		"more columns": strings.Replace(billHeader, "\n", ",fee\n", 1) + "payment,T1,P1,,100,CNY,2026-05-01T12:00:00Z,1\n",
		"other order":  "trade_no,kind,out_trade_no,out_refund_no,amount,currency,occurred_at\n" + "T1,payment,P1,,100,CNY,2026-05-01T12:00:00Z\n",
		"a short line": billHeader + "payment,T1,P1,,100,CNY\n", "an open quote": billHeader + `payment,"T1,P1,,100,CNY,2026-05-01T12:00:00Z` + "\n",
		"cut off": (billHeader + good + good)[:len(billHeader)+len(good)+20],
	}
	for field, bad := range map[string][]string{
		"payment": {"", "Payment", "transfer"}, "T1": {"", "T 1", "T1 ", "Ü", strings.Repeat("T", 65)}, "P1": {"", " P1"},
		"P1,": {"P1,R1"}, "CNY": {"", "cny", "RMB1"},
		"100":                  {"", "-1", "-0", "+1", "1.0", "1.005", "19.99", "1e2", "01", "0x10", "１００", " 100", "9223372036854775808", "9007199254740993.0"},
		"2026-05-01T12:00:00Z": {"", "2026-05-01", "2026-05-01 12:00:00", "1777636800", "1969-12-31T23:59:59Z", "2026-05-01T25:00:00Z"},
	} {
		for _, value := range bad {
			cases[field+" as "+value] = billHeader + good + strings.Replace(good, field, value, 1)
		}
	}
	for _, kind := range []string{"refund", "refund_reversal"} {
		cases[kind+" without a number"] = billHeader + strings.Replace(good, "payment", kind, 1)
		cases[kind+" with a bad number"] = billHeader + kind + ",T1,P1,R 1,100,CNY,2026-05-01T12:00:00Z\n"
	}
	for name, body := range cases {
		if got, err := bill(t, body); !errors.Is(err, payment.ErrBillUnreadable) || len(got.Lines) != 0 {
			t.Errorf("%s: %+v, %v; want ErrBillUnreadable", name, got.Lines, err)
		}
	}
}

// The hash is looked at before a single line is: a bill that is both wrong and unreadable is wrong.
func TestABillIsTheOneItsHashIsOf(t *testing.T) {
	for name, sha := range map[string]string{"another's": hash(nil), "none": "", "in capitals": strings.ToUpper(hash([]byte("x")))} {
		_, err := file(t, []byte("x"), map[string]string{"X-Content-SHA256": sha, "X-Channel-Timezone": "+08:00"}).Bill(t.Context(), "2026-05-01")
		if !errors.Is(err, payment.ErrBillChecksum) {
			t.Errorf("%s: %v", name, err)
		}
	}
	body := []byte(billHeader)
	if _, err := file(t, body, map[string]string{"X-Content-SHA256": hash(body), "X-Channel-Timezone": "+00:00"}).Bill(t.Context(), "2026-05-01"); !errors.Is(err, payment.ErrBillUnreadable) {
		t.Errorf("a bill of another day than ours: %v", err)
	}
	body = bytes.Repeat([]byte("x"), maxBill+1)
	if _, err := file(t, body, map[string]string{"X-Content-SHA256": hash(body[:maxBill])}).Bill(t.Context(), "2026-05-01"); !errors.Is(err, payment.ErrBillUnreadable) {
		t.Errorf("a bill without end: %v", err)
	}
}

// An answer that is no bill says nothing of one.
func TestNoBillIsNoWrongBill(t *testing.T) {
	for _, status := range []int{204, 206, 302, 400, 404, 500, 503} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		c := channel()
		c.BaseURL, c.Client = server.URL, server.Client()
		_, err := c.Bill(t.Context(), "2026-05-01")
		server.Close()
		if err == nil || errors.Is(err, payment.ErrBillChecksum) || errors.Is(err, payment.ErrBillUnreadable) {
			t.Errorf("status %d: %v", status, err)
		}
	}
}
