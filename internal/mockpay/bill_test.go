package mockpay

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The channel's day begins at 16:00 UTC.
func TestABillHasTheMoneyOfTheChannelsDay(t *testing.T) {
	var now atomic.Pointer[time.Time]
	set := func(at time.Time) { now.Store(&at) }
	set(time.Date(2026, 5, 1, 15, 59, 59, 999999999, time.UTC))
	c := start(t, func(cfg *Config) { cfg.Now = func() time.Time { return *now.Load() } })
	a := c.paid("p-1", "")
	want[Trade](c, 200, "POST", "/v1/trades", `{"merchant_id":"m-mockpay2","out_trade_no":"p-2","amount":9223372036854775807,"currency":"JPY"}`)
	set(time.Date(2026, 5, 1, 16, 0, 0, 0, time.UTC))
	b := want[Trade](c, 200, "POST", "/v1/trades/p-2/pay", "")
	for _, no := range []string{"r-1", "r-2", "r-3"} {
		want[Refund](c, 200, "POST", "/v1/refunds", refundBody(no, "p-1", "30", ""))
	}
	want[Refund](c, 200, "POST", "/v1/refunds/r-1/succeed", "")
	want[Refund](c, 200, "POST", "/v1/refunds/r-2/fail", "") // moved no money
	want[Refund](c, 200, "POST", "/v1/refunds/r-1/fail", "")

	const header = "kind,trade_no,out_trade_no,out_refund_no,amount,currency,occurred_at\n"
	wantBill(t, c, "2026-05-01", header+"payment,"+a.TradeNo+",p-1,,100,CNY,2026-05-01T15:59:59.999999Z\n")
	other := "payment," + b.TradeNo + ",p-2,,9223372036854775807,JPY,2026-05-01T16:00:00Z\n"
	own := "refund," + a.TradeNo + ",p-1,r-1,30,CNY,2026-05-01T16:00:00Z\nrefund_reversal," + a.TradeNo + ",p-1,r-1,30,CNY,2026-05-01T16:00:00Z\n"
	wantBill(t, c, "2026-05-02", header+other+own)
	wantBill(t, c, "2026-05-02?merchant_id=m-mockpay", header+own)
	wantBill(t, c, "2026-05-03", header)
	for _, date := range []string{"2026-5-1", "2026-02-30", "today", "2026-05-01.md5"} {
		c.refused(400, "field_invalid", "GET", "/v1/bills/"+date, "")
	}
}

// Each fault spoils what it names and nothing else; all but wrong_sha are hidden from the hash.
func TestEveryBillCanBeSpoiled(t *testing.T) {
	c := start(t)
	a := c.paid("p-1", "")
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", ""))
	want[Refund](c, 200, "POST", "/v1/refunds/r-1/succeed", "")
	const header, at = "kind,trade_no,out_trade_no,out_refund_no,amount,currency,occurred_at\n", ",CNY,2026-05-01T12:00:00Z\n"
	pay, back := "payment,"+a.TradeNo+",p-1,,100"+at, "refund,"+a.TradeNo+",p-1,r-1,30"+at
	for fault, bill := range map[string]string{
		`{}`:                              pay + back,
		`{"repeat":"` + a.TradeNo + `"}`:  pay + pay + back,
		`{"repeat":"r-1"}`:                pay + back + back,
		`{"drop":"` + a.TradeNo + `"}`:    back,
		`{"drop":"r-1"}`:                  pay,
		`{"alter":"` + a.TradeNo + `"}`:   "payment," + a.TradeNo + ",p-1,,101" + at + back,
		`{"alter":"r-1","repeat":"p-1"}`:  pay + "refund," + a.TradeNo + ",p-1,r-1,31" + at,
		`{"alter":"r-1","repeat":"r-1"}`:  pay + strings.Repeat("refund,"+a.TradeNo+",p-1,r-1,31"+at, 2),
		`{"drop":"r-1","repeat":"other"}`: pay,
	} {
		want[Faults](c, 200, "PUT", "/v1/faults", `{"bill":`+fault+`}`)
		wantBill(t, c, "2026-05-01", header+bill)
	}
	want[Faults](c, 200, "PUT", "/v1/faults", `{"bill":{"status":503,"times":2}}`)
	c.refused(503, "fault", "GET", "/v1/bills/2026-05-01", "")
	c.refused(503, "fault", "GET", "/v1/bills/2026-05-01.sha256", "")
	wantBill(t, c, "2026-05-01", header+pay+back)
	want[Faults](c, 200, "PUT", "/v1/faults", `{"bill":{"wrong_sha":true,"times":1}}`)
	body, h := get(t, c.url+"/v1/bills/2026-05-01")
	if sum := sha256.Sum256([]byte(body)); body != header+pay+back || h.Get("X-Content-SHA256") == hex.EncodeToString(sum[:]) {
		t.Errorf("%q has the hash %s", body, h.Get("X-Content-SHA256"))
	}
	wantBill(t, c, "2026-05-01", header+pay+back)
}

func wantBill(t *testing.T, c *channel, date, want string) {
	t.Helper()
	got, header := get(t, c.url+"/v1/bills/"+date)
	if got != want {
		t.Errorf("bill of %s:\n%swant\n%s", date, got, want)
	}
	sum := sha256.Sum256([]byte(got))
	hash := hex.EncodeToString(sum[:])
	if header.Get("X-Content-SHA256") != hash || header.Get("X-Channel-Timezone") != "+08:00" || !strings.HasPrefix(header.Get("Content-Type"), "text/csv") {
		t.Errorf("header %v", header)
	}
	path, query, _ := strings.Cut(date, "?")
	if file, _ := get(t, c.url+"/v1/bills/"+path+".sha256?"+query); file != hash+"\n" {
		t.Errorf(".sha256: %q", file)
	}
}

func get(t *testing.T, url string) (string, http.Header) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %v", url, resp.StatusCode, err)
	}
	return string(body), resp.Header
}
